#include "schedule.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <unordered_set>

#include "runtime.h"

namespace accel_streams::fake {
namespace {

// SplitMix64: the standard library's distributions differ between implementations, and a schedule's
// name and seed have to mean the same everywhere.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}
  std::uint64_t next() { return mix(state_++); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

 private:
  std::uint64_t state_;
};

class InOrder final : public Schedule {
 public:
  StreamQueue* pick(const std::vector<Candidate>& c) override {
    return std::min_element(c.begin(), c.end(), [](const Candidate& a, const Candidate& b) {
             return a.head_seq < b.head_seq;
           })->stream;
  }
};

class Fifo final : public Schedule {
 public:
  StreamQueue* pick(const std::vector<Candidate>& c) override { return c.front().stream; }
};

class Lifo final : public Schedule {
 public:
  StreamQueue* pick(const std::vector<Candidate>& c) override { return c.back().stream; }
};

bool ran_earlier(const Candidate& a, const Candidate& b) {
  return a.stream->last_ran < b.stream->last_ran;
}

class MostRecentlyUsed final : public Schedule {
 public:
  StreamQueue* pick(const std::vector<Candidate>& c) override {
    return std::max_element(c.begin(), c.end(), ran_earlier)->stream;
  }
};

class LeastRecentlyUsed final : public Schedule {
 public:
  StreamQueue* pick(const std::vector<Candidate>& c) override {
    return std::min_element(c.begin(), c.end(), ran_earlier)->stream;
  }
};

// Runs only what the host's present wait needs; everything else stays queued as long as it can.
class Lazy final : public Schedule {
 public:
  StreamQueue* pick(const std::vector<Candidate>& c) override {
    for (const Candidate& candidate : c) {
      if (candidate.wanted) return candidate.stream;
    }
    return c.front().stream;
  }
  bool looks_at_goal() const override { return true; }
};

class Uniform final : public Schedule {
 public:
  explicit Uniform(std::uint64_t seed) : random_(seed) {}
  StreamQueue* pick(const std::vector<Candidate>& c) override {
    return c[random_.below(c.size())].stream;
  }

 private:
  Random random_;
};

// A random order of the streams, kept for a while and then drawn again (about every 512 choices): one
// stream runs as far ahead of the others as the waits allow, which uniform choices hardly ever do.
class Priority final : public Schedule {
 public:
  explicit Priority(std::uint64_t seed) : seed_(seed), random_(seed) {}
  StreamQueue* pick(const std::vector<Candidate>& c) override {
    if (random_.below(512) == 0) ++epoch_;
    return std::max_element(c.begin(), c.end(), [this](const Candidate& a, const Candidate& b) {
             return rank(a) < rank(b);
           })->stream;
  }

 private:
  std::uint64_t rank(const Candidate& c) const {
    return mix(mix(seed_ ^ mix(epoch_)) + c.stream->ordinal);
  }
  std::uint64_t seed_;
  std::uint64_t epoch_ = 0;
  Random random_;
};

constexpr char kDelays[] = "delay:";

// Reads "5-9,7-9.1,8e-12".
class DelayReader {
 public:
  explicit DelayReader(const std::string& text) : text_(text), at_(sizeof(kDelays) - 1) {}

  std::vector<std::pair<EntryId, EntryId>> read() {
    std::vector<std::pair<EntryId, EntryId>> out;
    do {
      const EntryId late = entry();
      expect('-');
      out.emplace_back(late, entry());
    } while (at_ < text_.size() && (expect(','), true));
    return out;
  }

 private:
  EntryId entry() {
    EntryId id;
    id.number = number();
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      id.own = static_cast<std::uint32_t>(number());
    } else if (at_ < text_.size() && text_[at_] == 'e') {
      ++at_;
      id.end = true;
    }
    return id;
  }
  std::uint64_t number() {
    constexpr std::uint64_t kLargest = 999'999'999;
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      value = value * 10 + static_cast<std::uint64_t>(text_[at_++] - '0');
      if (value > kLargest) refuse();
    }
    if (at_ == begin) refuse();
    return value;
  }
  void expect(char c) {
    if (at_ >= text_.size() || text_[at_] != c) refuse();
    ++at_;
  }
  [[noreturn]] void refuse() const {
    throw DeviceError("schedule '" + text_ + "' can't be read at character " + std::to_string(at_ + 1) +
                      ": expected delay:A-B,A-B,... with A and B like 12, 12.1 or 12e");
  }
  const std::string& text_;
  std::size_t at_;
};

// In-order, but some entries run only after others that would otherwise follow them. A delay that would leave
// nothing to run is not kept: the host waits for it.
class Delays final : public Schedule {
 public:
  explicit Delays(const std::string& text) {
    for (const auto& [late, early] : DelayReader(text).read()) {
      awaited_[late.key()].push_back(early.key());
      not_run_.insert(early.key());
    }
  }
  StreamQueue* pick(const std::vector<Candidate>& c) override {
    const auto later = [this](const Candidate& a, const Candidate& b) {
      const bool a_delayed = delayed(a.id);
      const bool b_delayed = delayed(b.id);
      return a_delayed != b_delayed ? b_delayed : a.head_seq < b.head_seq;
    };
    return std::min_element(c.begin(), c.end(), later)->stream;
  }
  void ran(EntryId id) override { not_run_.erase(id.key()); }

 private:
  bool delayed(EntryId id) const {
    const auto found = awaited_.find(id.key());
    return found != awaited_.end() && std::any_of(found->second.begin(), found->second.end(), [this](std::uint64_t early) {
             return not_run_.count(early) != 0;
           });
  }
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> awaited_;
  std::unordered_set<std::uint64_t> not_run_;  // of those that others wait for
};

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"in-order", "fifo", "lifo",   "mru",
                                                 "lru",      "lazy", "random", "priority"};
  return names;
}

std::unique_ptr<Schedule> make_schedule(const std::string& name, std::uint64_t seed) {
  if (name == "in-order") return std::make_unique<InOrder>();
  if (name == "fifo") return std::make_unique<Fifo>();
  if (name == "lifo") return std::make_unique<Lifo>();
  if (name == "mru") return std::make_unique<MostRecentlyUsed>();
  if (name == "lru") return std::make_unique<LeastRecentlyUsed>();
  if (name == "lazy") return std::make_unique<Lazy>();
  if (name == "random") return std::make_unique<Uniform>(seed);
  if (name == "priority") return std::make_unique<Priority>(seed);
  if (name.rfind(kDelays, 0) == 0) return std::make_unique<Delays>(name);
  std::string known;
  for (const std::string& n : schedule_names()) known += (known.empty() ? "" : ", ") + n;
  throw DeviceError("unknown schedule '" + name + "' for the fake device: expected one of " + known + ", or delay:A-B,...");
}

}  // namespace accel_streams::fake
