// Schedules: which of the streams that could go on does so next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace accel_streams::fake {

struct StreamQueue;

// Names an entry so that a schedule can be written down. The names are the same under every schedule as long as
// the program submits the same.
struct EntryId {
  std::uint64_t number = 0;  // among what the program has submitted since the schedule was set, from 1
  std::uint32_t own = 0;     // the allocator's own entries are numbered after that one, from 1
  bool end = false;          // the end of a collective, not its begin

  std::uint64_t key() const { return number << 25 | std::uint64_t{own} << 1 | std::uint64_t{end}; }
};

// A stream whose head could run now.
struct Candidate {
  StreamQueue* stream = nullptr;
  std::uint64_t head_seq = 0;  // submission order of its head
  bool wanted = false;         // the host's present wait can't end without it
  EntryId id;                  // of its head
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  // Picks one of `candidates` (never empty, sorted by stream creation).
  virtual StreamQueue* pick(const std::vector<Candidate>& candidates) = 0;
  // True when the schedule looks at `Candidate::wanted`, which costs a walk over the waits.
  virtual bool looks_at_goal() const { return false; }
  // Told of everything that has run, chosen or without a choice.
  virtual void ran(EntryId) {}
};

// Every name that make_schedule accepts, in the order in which they are documented.
const std::vector<std::string>& schedule_names();

// Takes these names, and "delay:A-B,..." (A does not run before B as long as another stream can go on; otherwise
// in-order), where A and B are written N, N.K (the allocator's K-th entry after N) or Ne (the end of collective N).
// Throws DeviceError for an unknown name. The same name and seed give the same choices.
std::unique_ptr<Schedule> make_schedule(const std::string& name, std::uint64_t seed);

}  // namespace accel_streams::fake
