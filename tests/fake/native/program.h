// Random programs of launches, recordings and waits, and what has to hold of every run of one.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace native {

enum class Step : std::uint8_t { Launch, Collective, Record, Wait };

// Which of a program's operations: one place for each. (A set takes most of a test's time under a sanitizer.)
using Which = std::vector<char>;

struct Operation {
  Step step = Step::Launch;
  int stream = 0;
  std::size_t recording = 0;  // Wait: the operation that recorded
  Nanoseconds cost = 0;       // Launch, Collective
  Which before;               // every operation that has to run earlier
};

// A collective whose peers are modelled: they have begun everything submitted up to it, and are blocked in
// it until this process has begun the same.
class PeerCheck {
 public:
  std::vector<int> submitted;
  std::set<int> begun;
  std::string failure;  // of the first broken rule

  void begin(int number) {
    if (!begun.insert(number).second) note(number, "began twice");
  }
  void finish(int number) {
    if (begun.count(number) == 0) note(number, "finished before it began");
    for (const int earlier : submitted) {
      if (earlier == number) break;
      if (begun.count(earlier) == 0) note(number, "finishes while an earlier one has not begun: its peers wait there");
    }
  }

 private:
  void note(int number, const char* what) {
    if (failure.empty()) failure = "collective " + std::to_string(number) + ": " + what;
  }
};

class Collective final : public Asynchronous {
 public:
  Collective(PeerCheck& peers, Log log, int number) : peers_(peers), log_(std::move(log)), number_(number) {}
  void begin() override { peers_.begin(number_); }
  void finish() override {
    peers_.finish(number_);
    log_.push_back(number_);
  }

 private:
  PeerCheck& peers_;
  Log log_;
  int number_;
};

class Program {
 public:
  // It has to outlive its run. `collectives`: the last two streams carry collectives, as the streams of two
  // communicators do.
  Program(std::uint64_t seed, int streams, std::size_t operations, bool collectives = false) : streams_(streams) {
    Numbers numbers(seed);
    std::vector<std::size_t> recordings;
    std::vector<Which> before(static_cast<std::size_t>(streams), Which(operations));
    for (std::size_t i = 0; i < operations; ++i) {
      Operation operation;
      operation.stream = numbers.below(streams);
      operation.cost = numbers.below(5000);
      const int kind = numbers.below(10);
      Which& earlier = before[static_cast<std::size_t>(operation.stream)];
      if (kind >= 8 && !recordings.empty()) {
        operation.step = Step::Wait;
        operation.recording = recordings[static_cast<std::size_t>(numbers.below(static_cast<int>(recordings.size())))];
        add(earlier, operations_[operation.recording].before);
        earlier[operation.recording] = 1;
      } else if (kind >= 6) {
        operation.step = Step::Record;
        recordings.push_back(i);
      } else if (collectives && operation.stream >= streams - 2) {
        operation.step = Step::Collective;
      }
      operation.before = earlier;
      earlier[i] = 1;
      operations_.push_back(std::move(operation));
    }
  }

  // Submits everything to fresh streams.
  void submit() {
    for (int i = 0; i < streams_; ++i) keys_.push_back(new_stream());
    std::vector<PointRef> points(operations_.size());
    start_ = device().host_clock();
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const Operation& operation = operations_[i];
      const StreamKey stream = key(operation.stream);
      if (operation.step == Step::Record) {
        points[i] = device().record(stream);
      } else if (operation.step == Step::Wait) {
        device().wait(stream, points[operation.recording]);
      } else {
        submit_work(stream, operation, static_cast<int>(i));
      }
    }
  }

  StreamKey key(int stream) const { return keys_[static_cast<std::size_t>(stream)]; }
  const Log& log() const { return log_; }
  Nanoseconds start() const { return start_; }
  int streams() const { return streams_; }

  // The number of launches and collectives.
  std::size_t size() const {
    const Which all = kept(Which(operations_.size(), 1));
    return static_cast<std::size_t>(std::count(all.begin(), all.end(), 1));
  }

  // The launches and collectives that have run.
  Which ran() const {
    Which out(operations_.size());
    for (const int number : log_.numbers()) out[static_cast<std::size_t>(number)] = 1;
    return out;
  }

  // Those that have to run before the streams from `first` on are through.
  Which needed_from(int first) const {
    Which out(operations_.size());
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i].stream < first) continue;
      add(out, operations_[i].before);
      out[i] = 1;
    }
    return kept(out);
  }

  // Why the run is wrong, or nothing: each at most once, and after all that it is ordered after.
  std::string broken_rule() const {
    Which ran(operations_.size());
    for (const int number : log_.numbers()) {
      const auto place = static_cast<std::size_t>(number);
      const Which earlier = kept(operations_[place].before);
      for (std::size_t i = 0; i < place; ++i) {
        if (earlier[i] && !ran[i]) {
          return std::to_string(number) + " ran before " + std::to_string(i) + "; the order: " + text(log_);
        }
      }
      if (ran[place]) return std::to_string(number) + " ran twice";
      ran[place] = 1;
    }
    return peers_.failure;
  }

 private:
  void submit_work(StreamKey stream, const Operation& operation, int number) {
    Launch launch;
    launch.name = std::to_string(number);
    launch.cost = operation.cost;
    if (operation.step == Step::Launch) {
      launch.run = [log = log_, number] { log.push_back(number); };
      device().launch(stream, std::move(launch));
      return;
    }
    launch.async = std::make_unique<Collective>(peers_, log_, number);
    const auto guard = device().lock();  // collectives may be running on another host thread
    peers_.submitted.push_back(number);
    device().launch(stream, std::move(launch));
  }

  static void add(Which& to, const Which& from) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i]) to[i] = 1;
    }
  }

  // Without the recordings and waits.
  Which kept(Which which) const {
    for (std::size_t i = 0; i < which.size(); ++i) {
      const Step step = operations_[i].step;
      if (step == Step::Record || step == Step::Wait) which[i] = 0;
    }
    return which;
  }

  int streams_;
  std::vector<Operation> operations_;
  std::vector<StreamKey> keys_;
  Log log_;
  PeerCheck peers_;
  Nanoseconds start_ = 0;
};

}  // namespace native
