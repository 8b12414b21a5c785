#include "schedule.h"

#include <algorithm>

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
  std::string known;
  for (const std::string& n : schedule_names()) known += (known.empty() ? "" : ", ") + n;
  throw DeviceError("unknown schedule '" + name + "' for the fake device: expected one of " + known);
}

}  // namespace accel_streams::fake
