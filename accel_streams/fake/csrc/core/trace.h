// What the host submitted and what ran, in a form that an analyser can read afterwards.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "types.h"

namespace accel_streams::fake {

enum class RecordKind : std::uint8_t {
  Launch,
  Record,
  Wait,
  SyncStream,
  SyncEvent,
  SyncDevice,
  Alloc,
  RecordStream,
  Free,
  Reuse,
  Ran,
  Name,
  Drop,
  Release,
  Acquire,
  LeftOut,
};

struct TraceRecord {
  RecordKind kind = RecordKind::Launch;
  std::uint64_t seq = 0;
  std::int32_t thread = 0;
  StreamKey stream;
  // Wait, SyncEvent, Drop: seq of the recording. Alloc, Free, Reuse, RecordStream, Name: the block. Ran: the order.
  // Release, Acquire: the token. LeftOut: how many launches.
  std::uint64_t reference = 0;
  std::int64_t first = 0;   // Alloc: bytes. Ran: start of the virtual interval.
  std::int64_t second = 0;  // Ran: its end.
  std::string name;         // Launch, SyncStream: the operation. Name: the label.
  std::vector<Access> accesses;
  SourceId source = kNoSource;
};

// Which records of other host threads each host thread has come after, by the releases and acquires of the trace.
class Hosts {
 public:
  void note(const TraceRecord& record);
  // Whether `thread` has taken over what `other` had done when it made the record `seq`.
  bool knows(std::int32_t thread, std::int32_t other, std::uint64_t seq) const;

 private:
  using Known = std::map<std::int32_t, std::uint64_t>;  // by thread: its newest record
  std::map<std::int32_t, Known> threads_;
  std::map<std::uint64_t, Known> tokens_;
};

// Removes allocations that begin and end in `records` and were used by one stream only, and the launches that
// touched nothing else: nothing in them can race. An allocation used by a host thread other than the one that made
// it stays, unless the threads' hand-overs order the two already. `hosts` goes on from one call to the next.
void leave_out_private(std::vector<TraceRecord>& records, Hosts& hosts);

// Guarded by the runtime's lock, but for `enabled`, which callers read to skip work.
class Trace {
 public:
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void enable(bool on) {
    enabled_.store(on, std::memory_order_relaxed);
    if (on) hosts_ = {};
  }
  // A brief trace holds no more than the search for races needs: see leave_out_private.
  bool brief() const { return brief_.load(std::memory_order_relaxed); }
  void set_brief(bool on) { brief_.store(on, std::memory_order_relaxed); }
  void add(TraceRecord record) { records_.push_back(std::move(record)); }
  std::size_t size() const { return size_hint_.load(std::memory_order_relaxed); }
  void publish_size() { size_hint_.store(records_.size(), std::memory_order_relaxed); }

  std::vector<TraceRecord> take();

 private:
  std::atomic<bool> enabled_{false};
  std::atomic<bool> brief_{false};
  std::atomic<std::size_t> size_hint_{0};
  std::vector<TraceRecord> records_;
  Hosts hosts_;
};

// A small number for the calling host thread, in order of first use.
std::int32_t host_thread_index();

}  // namespace accel_streams::fake
