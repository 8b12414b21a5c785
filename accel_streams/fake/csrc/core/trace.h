// What the host submitted and what ran, in a form that an analyser can read afterwards.
#pragma once

#include <atomic>
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
};

struct TraceRecord {
  RecordKind kind = RecordKind::Launch;
  std::uint64_t seq = 0;
  std::int32_t thread = 0;
  StreamKey stream;
  // Wait, SyncEvent: seq of the recording. Alloc, Free, Reuse, RecordStream, Name: the block. Ran: the order.
  std::uint64_t reference = 0;
  std::int64_t first = 0;   // Alloc: bytes. Ran: start of the virtual interval.
  std::int64_t second = 0;  // Ran: its end.
  std::string name;         // Launch, SyncStream: the operation. Name: the label.
  std::vector<Access> accesses;
  SourceId source = kNoSource;
};

// Guarded by the runtime's lock, but for `enabled`, which callers read to skip work.
class Trace {
 public:
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void enable(bool on) { enabled_.store(on, std::memory_order_relaxed); }
  void add(TraceRecord record) { records_.push_back(std::move(record)); }
  std::size_t size() const { return size_hint_.load(std::memory_order_relaxed); }
  void publish_size() { size_hint_.store(records_.size(), std::memory_order_relaxed); }

  std::vector<TraceRecord> take() {
    std::vector<TraceRecord> out;
    out.swap(records_);
    publish_size();
    return out;
  }

 private:
  std::atomic<bool> enabled_{false};
  std::atomic<std::size_t> size_hint_{0};
  std::vector<TraceRecord> records_;
};

// A small number for the calling host thread, in order of first use.
std::int32_t host_thread_index();

}  // namespace accel_streams::fake
