// Shorthand for programs on the simulated device, shared by the tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "memory.h"
#include "runtime.h"

namespace native {

using namespace accel_streams::fake;

inline Runtime& device() { return Runtime::instance(); }

inline StreamKey new_stream(int index = 0) { return device().new_stream(index, 0); }

// A device index that no test has used: its counters start at nothing.
inline int fresh_index() {
  static int next = 100;
  return ++next;
}

// The numbers of the operations in the order in which they ran; operations run one at a time. What is still
// queued when a test ends keeps its own share of it.
class Log {
 public:
  void push_back(int number) const { numbers_->push_back(number); }
  std::vector<int> numbers() const { return *numbers_; }
  std::size_t size() const { return numbers_->size(); }
  bool empty() const { return numbers_->empty(); }
  int operator[](std::size_t i) const { return (*numbers_)[i]; }
  int back() const { return numbers_->back(); }

 private:
  std::shared_ptr<std::vector<int>> numbers_ = std::make_shared<std::vector<int>>();
};

inline Launch work(std::function<void()> run, std::string name = "work") {
  Launch launch;
  launch.name = std::move(name);
  launch.run = std::move(run);
  return launch;
}

inline void launch(StreamKey stream, const Log& log, int number) {
  device().launch(stream, work([log, number] { log.push_back(number); }));
}

inline void launch(StreamKey stream, std::function<void()> run) { device().launch(stream, work(std::move(run))); }

inline void synchronize(StreamKey stream) { device().synchronize_stream(stream, ""); }

inline std::string text(const Log& log) {
  std::string out;
  for (const int number : log.numbers()) out += std::to_string(number) + " ";
  return out;
}

inline bool contains(const Log& log, int number) {
  const std::vector<int> all = log.numbers();
  return std::find(all.begin(), all.end(), number) != all.end();
}

// A gate that opens at the end of its scope, so that a failed check leaves no stream held.
class Held {
 public:
  explicit Held(StreamKey stream) : gate_(device().hold(stream)) {}
  ~Held() { device().open(gate_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void open() { device().open(gate_); }
  const PointRef& gate() const { return gate_; }

 private:
  PointRef gate_;
};

// Records what is submitted and what runs, for as long as it lives.
class Tracing {
 public:
  Tracing() {
    take();
    device().trace().enable(true);
  }
  ~Tracing() {
    device().trace().enable(false);
    take();
  }
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

  // What was recorded since the last call.
  static std::vector<TraceRecord> take() {
    const auto guard = device().lock();
    return device().trace().take();
  }
};

inline std::vector<TraceRecord> of_kind(const std::vector<TraceRecord>& records, RecordKind kind) {
  std::vector<TraceRecord> out;
  for (const TraceRecord& record : records) {
    if (record.kind == kind) out.push_back(record);
  }
  return out;
}

// Numbers that are the same with every standard library.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
  int below(int limit) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int>((state_ >> 33) % static_cast<std::uint64_t>(limit));
  }

 private:
  std::uint64_t state_;
};

}  // namespace native
