// Schedules: which of the streams that could go on does so next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace accel_streams::fake {

struct StreamQueue;

// A stream whose head could run now.
struct Candidate {
  StreamQueue* stream = nullptr;
  std::uint64_t head_seq = 0;  // submission order of its head
  bool wanted = false;         // the host's present wait can't end without it
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  // Picks one of `candidates` (never empty, sorted by stream creation).
  virtual StreamQueue* pick(const std::vector<Candidate>& candidates) = 0;
  // True when the schedule looks at `Candidate::wanted`, which costs a walk over the waits.
  virtual bool looks_at_goal() const { return false; }
};

// Every name that make_schedule accepts, in the order in which they are documented.
const std::vector<std::string>& schedule_names();

// Throws DeviceError for an unknown name. The same name and seed give the same choices.
std::unique_ptr<Schedule> make_schedule(const std::string& name, std::uint64_t seed);

}  // namespace accel_streams::fake
