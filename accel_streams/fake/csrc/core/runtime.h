// The simulated device: streams of queued work, events, and the scheduler that runs the work when the
// host waits, polls, or has filled the queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "schedule.h"
#include "trace.h"
#include "types.h"

namespace accel_streams::fake {

// One recording of an event. An event's handle points to the newest; a wait keeps the one it was issued for.
struct Point {
  Point() = default;
  ~Point();  // nobody can wait for it any more: the trace says so
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;
  StreamQueue* stream = nullptr;
  std::uint64_t ordinal = 0;  // place in its stream, from 1
  std::uint64_t seq = 0;
  bool done = false;
  bool traced = false;
  Nanoseconds time = 0;
};
using PointRef = std::shared_ptr<Point>;

// Work that begins at one moment and completes at a later one with the help of other processes.
class Asynchronous {
 public:
  virtual ~Asynchronous() = default;
  virtual void begin() = 0;   // must not block
  virtual void finish() = 0;  // may block until the others have begun; called also after a begin that failed
};

enum class EntryKind : std::uint8_t { Launch, Collective, Record, Wait, Gate };

struct Entry {
  EntryKind kind = EntryKind::Launch;
  std::uint64_t seq = 0;
  EntryId id;
  std::string name;
  std::function<void()> run;             // Launch
  std::unique_ptr<Asynchronous> async;   // Collective
  bool begun = false;                    // Collective
  bool traced = false;                   // the trace has a record of it
  PointRef point;                        // Record: completes it. Wait: waits for it. Gate: opened from the host.
  Nanoseconds cost = 0;
  Nanoseconds submitted = 0;
  SourceId source = kNoSource;
};

struct StreamQueue {
  StreamKey key;
  std::uint64_t ordinal = 0;  // order of creation in the process
  int priority = 0;
  std::deque<Entry> entries;
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  std::uint64_t last_ran = 0;
  Nanoseconds clock = 0;
};

// What a waiting host needs: streams, each up to a place.
struct Goal {
  std::vector<std::pair<StreamQueue*, std::uint64_t>> targets;
  bool reached() const;
};

struct Launch {
  std::string name;
  std::vector<Access> accesses;
  std::function<void()> run;
  std::unique_ptr<Asynchronous> async;  // set for collectives, in place of `run`
  std::optional<Nanoseconds> cost;      // by default from the bytes accessed
  bool traced = true;                   // false for the allocator's own work
  SourceId source = kNoSource;
};

// One thing that ran: an entry, or the begin or the end of a collective.
struct Step {
  std::uint64_t seq = 0;
  EntryId id;
  StreamKey stream;
};

class Runtime {
 public:
  using Mutex = std::recursive_mutex;
  using Lock = std::unique_lock<Mutex>;

  // Never destroyed: engine threads outlive static destruction.
  static Runtime& instance();

  Lock lock() { return Lock(mutex_); }
  Trace& trace() { return trace_; }

  void set_schedule(const std::string& name, std::uint64_t seed);
  std::string schedule_name();
  std::uint64_t schedule_seed();
  // While on, what runs is noted in order, the allocator's own entries too. A step with the number 0 says that the
  // host looked how far the device had come.
  void note_steps(bool on);
  void note_poll();
  std::vector<Step> take_steps();
  void set_capacity(std::size_t entries);
  void set_hold_timeout(double seconds);

  StreamKey new_stream(int device, int priority);
  bool exists(StreamKey key);

  void launch(StreamKey stream, Launch work);
  // `traced` is false for the allocator's own recordings.
  PointRef record(StreamKey stream, bool traced = true, SourceId source = kNoSource);
  void wait(StreamKey stream, const PointRef& point, SourceId source = kNoSource);
  PointRef hold(StreamKey stream);
  void open(const PointRef& gate);

  void synchronize_stream(StreamKey stream, const std::string& why, SourceId source = kNoSource);
  void synchronize_point(const PointRef& point, SourceId source = kNoSource);
  void synchronize_device(int device, SourceId source = kNoSource);
  void drain();  // everything on every device; used before the host blocks elsewhere, and at exit

  // Runs one entry when there is one, so that a loop that polls ends. Called by an operation, runs none.
  bool query_stream(StreamKey stream, SourceId source = kNoSource);
  bool query_point(const PointRef& point, SourceId source = kNoSource);

  // These three may be called at any time by any thread: they take no lock.
  std::uint64_t operations() const { return operations_; }
  std::size_t pending() const { return pending_; }
  Nanoseconds host_clock() const { return host_clock_; }

  void count_synchronization(const std::string& operation);
  std::map<std::string, std::uint64_t> synchronizations();
  void reset_counters();

  // Called around a wait for another host thread, to give up and take back what that thread may need.
  void set_block_hooks(std::function<void*()> before, std::function<void(void*)> after);
  void set_describe_source(std::function<std::string(SourceId)> describe);

  // Hand-overs between host threads, for the trace: `thread` makes what it knows available under the token; the
  // calling thread takes it over.
  void release_to(std::uint64_t token, std::int32_t thread);
  void acquire_from(std::uint64_t token);

  // For parts that add records of their own. The caller holds the lock.
  std::uint64_t next_seq() { return ++seq_; }
  void add_record(TraceRecord record);
  StreamQueue& queue(StreamKey key);

 private:
  Runtime();
  Entry& submit(StreamQueue& stream, EntryKind kind, SourceId source, bool costs_host = true);
  bool step(const Goal& goal);
  void note_step(const Entry& entry, StreamKey stream, bool end);
  void complete_head(StreamQueue& stream);
  bool succeeds(const Entry& entry, const std::function<void()>& part);
  void note_failure(const Entry& entry, const std::string& what);
  void advance_host(Nanoseconds to);
  void run_until(const Goal& goal, Lock& lock);
  void make_room(Lock& lock);
  void wait_for_host(Lock& lock, const std::function<bool()>& ready);
  void mark_wanted(const Goal& goal, std::vector<Candidate>& candidates) const;
  bool must_not_finish(const Entry& head) const;
  bool gate_closed() const;
  void raise_failure(Lock& lock);
  void note_dropped(std::uint64_t recording);
  friend struct Point;
  void trace_sync(RecordKind kind, StreamKey stream, std::uint64_t reference, std::string name, SourceId source);

  Mutex mutex_;
  std::condition_variable_any changed_;
  Trace trace_;
  std::unique_ptr<Schedule> schedule_;
  std::string schedule_name_;
  std::uint64_t schedule_seed_ = 0;
  std::vector<std::unique_ptr<StreamQueue>> streams_;
  std::map<StreamKey, StreamQueue*> by_key_;
  std::map<int, std::int64_t> next_stream_id_;
  std::vector<Candidate> candidates_;
  std::size_t capacity_ = 4096;
  std::atomic<std::size_t> pending_{0};
  double hold_timeout_ = 60.0;
  std::map<std::uint64_t, StreamQueue*> unbegun_;  // collectives submitted and not begun
  std::uint64_t gates_opened_ = 0;
  std::uint64_t seq_ = 0;
  std::uint64_t order_ = 0;
  EntryId newest_;  // since the schedule was set
  bool notes_steps_ = false;
  std::vector<Step> steps_;
  std::atomic<std::uint64_t> operations_{0};
  std::atomic<Nanoseconds> host_clock_{0};
  bool running_ = false;  // an operation runs: what it calls must not run another
  std::string failure_;  // of the first operation that failed and was not reported yet
  SourceId failure_source_ = kNoSource;
  std::map<std::string, std::uint64_t> synchronizations_;
  std::function<void*()> before_block_;
  std::function<void(void*)> after_block_;
  std::function<std::string(SourceId)> describe_source_;
};

}  // namespace accel_streams::fake
