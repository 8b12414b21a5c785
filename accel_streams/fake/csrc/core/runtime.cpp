#include "runtime.h"

#include <algorithm>
#include <chrono>
#include <sstream>

namespace accel_streams::fake {
namespace {

// The cost model of the virtual clock: a fixed launch time and a memory bandwidth of 100 bytes a nanosecond.
constexpr Nanoseconds kLaunchCost = 2000;
constexpr std::int64_t kBytesPerNanosecond = 100;
// What submitting one operation costs the host.
constexpr Nanoseconds kSubmitCost = 1000;
// Work that can't run because a stream is held may exceed the queue's capacity by this factor.
constexpr std::size_t kHeldFactor = 64;
constexpr double kLongestHoldTimeout = 1e6;

Nanoseconds cost_of(const std::vector<Access>& accesses) {
  std::int64_t bytes = 0;
  for (const Access& a : accesses) bytes += a.hi - a.lo;
  return kLaunchCost + bytes / kBytesPerNanosecond;
}

}  // namespace

Point::~Point() {
  if (traced) Runtime::instance().note_dropped(seq);
}

bool Goal::reached() const {
  return std::all_of(targets.begin(), targets.end(),
                     [](const auto& t) { return t.first->completed >= t.second; });
}

Runtime& Runtime::instance() {
  static Runtime* const runtime = new Runtime();  // leaked on purpose, see the header
  return *runtime;
}

Runtime::Runtime() { set_schedule("in-order", 0); }

void Runtime::set_schedule(const std::string& name, std::uint64_t seed) {
  Lock guard(mutex_);
  schedule_ = make_schedule(name, seed);
  schedule_name_ = name;
  schedule_seed_ = seed;
  newest_ = {};
}

void Runtime::note_steps(bool on) {
  Lock guard(mutex_);
  notes_steps_ = on;
}

void Runtime::note_poll() {
  Lock guard(mutex_);
  if (notes_steps_) steps_.emplace_back();
}

std::vector<Step> Runtime::take_steps() {
  Lock guard(mutex_);
  return std::exchange(steps_, {});
}

void Runtime::note_step(const Entry& entry, StreamKey stream, bool end) {
  EntryId id = entry.id;
  id.end = end;
  schedule_->ran(id);
  if (notes_steps_) steps_.push_back({entry.seq, id, stream});
}

std::string Runtime::schedule_name() {
  Lock guard(mutex_);
  return schedule_name_;
}

std::uint64_t Runtime::schedule_seed() {
  Lock guard(mutex_);
  return schedule_seed_;
}

void Runtime::set_hold_timeout(double seconds) {
  Lock guard(mutex_);
  if (!(seconds >= 0 && seconds <= kLongestHoldTimeout)) {  // nor NaN
    throw DeviceError("the time to wait for a held stream has to be 0 to 1000000 seconds, got " +
                      std::to_string(seconds));
  }
  hold_timeout_ = seconds;
}

void Runtime::set_capacity(std::size_t entries) {
  Lock guard(mutex_);
  if (entries == 0) throw DeviceError("the fake device's queue needs room for at least one operation, got 0");
  capacity_ = entries;
}

StreamQueue& Runtime::queue(StreamKey key) {
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) return *found->second;
  if (key.id != 0) {
    throw DeviceError("no stream with id " + std::to_string(key.id) + " exists on fake:" +
                      std::to_string(key.device) + "; create streams with torch.Stream(device='fake')");
  }
  auto created = std::make_unique<StreamQueue>();  // the default stream exists from the first use on
  created->key = key;
  created->ordinal = streams_.size();
  StreamQueue* const raw = created.get();
  streams_.push_back(std::move(created));
  by_key_[key] = raw;
  return *raw;
}

bool Runtime::exists(StreamKey key) {
  Lock guard(mutex_);
  return key.id == 0 || by_key_.count(key) != 0;
}

StreamKey Runtime::new_stream(int device, int priority) {
  Lock guard(mutex_);
  queue({device, 0});  // so that the default stream is the first of its device
  StreamKey key{device, ++next_stream_id_[device]};
  auto created = std::make_unique<StreamQueue>();
  created->key = key;
  created->ordinal = streams_.size();
  created->priority = priority;
  by_key_[key] = created.get();
  streams_.push_back(std::move(created));
  return key;
}

void Runtime::add_record(TraceRecord record) {
  record.thread = host_thread_index();
  trace_.add(std::move(record));
  trace_.publish_size();
}

// The allocator's own entries cost the host nothing: how many there are depends on what has run already, and
// the virtual clock must not.
Entry& Runtime::submit(StreamQueue& stream, EntryKind kind, SourceId source, bool costs_host) {
  Entry entry;
  entry.kind = kind;
  entry.seq = next_seq();
  entry.submitted = host_clock_;
  entry.source = source;
  if (costs_host) {
    host_clock_ += kSubmitCost;
    newest_ = {newest_.number + 1, 0, false};
  } else {
    ++newest_.own;
  }
  entry.id = newest_;
  ++stream.submitted;
  ++pending_;
  stream.entries.push_back(std::move(entry));
  return stream.entries.back();
}

void Runtime::launch(StreamKey key, Launch work) {
  Lock guard(mutex_);
  make_room(guard);
  StreamQueue& stream = queue(key);
  const EntryKind kind = work.async ? EntryKind::Collective : EntryKind::Launch;
  Entry& entry = submit(stream, kind, work.source, work.traced);
  ++operations_;
  entry.name = work.name;
  entry.run = std::move(work.run);
  entry.async = std::move(work.async);
  if (entry.async) unbegun_.emplace(entry.seq, &stream);
  entry.cost = work.cost ? *work.cost : cost_of(work.accesses);
  if (work.traced && trace_.enabled()) {
    entry.traced = true;
    TraceRecord record;
    record.kind = RecordKind::Launch;
    record.seq = entry.seq;
    record.stream = key;
    record.name = std::move(work.name);
    record.accesses = std::move(work.accesses);
    record.source = work.source;
    add_record(std::move(record));
  }
}

PointRef Runtime::record(StreamKey key, bool traced, SourceId source) {
  Lock guard(mutex_);
  if (traced) make_room(guard);  // the allocator's own may come from where nothing may run
  StreamQueue& stream = queue(key);
  Entry& entry = submit(stream, EntryKind::Record, source, traced);
  entry.point = std::make_shared<Point>();
  entry.point->stream = &stream;
  entry.point->ordinal = stream.submitted;
  entry.point->seq = entry.seq;
  if (traced && trace_.enabled()) {
    entry.traced = true;
    entry.point->traced = true;
    TraceRecord record;
    record.kind = RecordKind::Record;
    record.seq = entry.seq;
    record.stream = key;
    record.source = source;
    add_record(std::move(record));
  }
  return entry.point;
}

void Runtime::wait(StreamKey key, const PointRef& point, SourceId source) {
  if (!point) return;  // an event that was never recorded gives no edge
  Lock guard(mutex_);
  make_room(guard);
  StreamQueue& stream = queue(key);
  Entry& entry = submit(stream, EntryKind::Wait, source);
  entry.point = point;
  if (trace_.enabled()) {
    entry.traced = true;
    TraceRecord record;
    record.kind = RecordKind::Wait;
    record.seq = entry.seq;
    record.stream = key;
    record.reference = point->seq;
    record.source = source;
    add_record(std::move(record));
  }
}

PointRef Runtime::hold(StreamKey key) {
  Lock guard(mutex_);
  Entry& entry = submit(queue(key), EntryKind::Gate, kNoSource);
  entry.point = std::make_shared<Point>();
  entry.point->seq = entry.seq;
  return entry.point;
}

void Runtime::open(const PointRef& gate) {
  {
    Lock guard(mutex_);
    gate->done = true;
    ++gates_opened_;
  }
  changed_.notify_all();
}

void Runtime::trace_sync(RecordKind kind, StreamKey stream, std::uint64_t reference, std::string name,
                         SourceId source) {
  if (!trace_.enabled()) return;
  TraceRecord record;
  record.kind = kind;
  record.seq = next_seq();
  record.stream = stream;
  record.reference = reference;
  record.name = std::move(name);
  record.source = source;
  add_record(std::move(record));
}

void Runtime::note_dropped(std::uint64_t recording) {
  Lock guard(mutex_);
  trace_sync(RecordKind::Drop, {}, recording, {}, kNoSource);
}

void Runtime::release_to(std::uint64_t token, std::int32_t thread) {
  Lock guard(mutex_);
  if (!trace_.enabled()) return;
  TraceRecord record;
  record.kind = RecordKind::Release;
  record.seq = next_seq();
  record.thread = thread;
  record.reference = token;
  trace_.add(std::move(record));
  trace_.publish_size();
}

void Runtime::acquire_from(std::uint64_t token) {
  Lock guard(mutex_);
  trace_sync(RecordKind::Acquire, {}, token, {}, kNoSource);
}

void Runtime::synchronize_stream(StreamKey key, const std::string& why, SourceId source) {
  Lock guard(mutex_);
  StreamQueue& stream = queue(key);
  run_until(Goal{{{&stream, stream.submitted}}}, guard);
  advance_host(stream.clock);
  trace_sync(RecordKind::SyncStream, key, 0, why, source);
  raise_failure(guard);
}

void Runtime::synchronize_point(const PointRef& point, SourceId source) {
  if (!point) return;
  Lock guard(mutex_);
  run_until(Goal{{{point->stream, point->ordinal}}}, guard);
  advance_host(point->time);
  trace_sync(RecordKind::SyncEvent, point->stream->key, point->seq, "", source);
  raise_failure(guard);
}

void Runtime::synchronize_device(int device, SourceId source) {
  Lock guard(mutex_);
  Goal goal;
  for (const auto& stream : streams_) {
    if (stream->key.device == device) goal.targets.emplace_back(stream.get(), stream->submitted);
  }
  run_until(goal, guard);
  for (const auto& target : goal.targets) advance_host(target.first->clock);
  trace_sync(RecordKind::SyncDevice, {device, 0}, 0, "", source);
  raise_failure(guard);
}

void Runtime::drain() {
  Lock guard(mutex_);
  Goal goal;
  for (const auto& stream : streams_) goal.targets.emplace_back(stream.get(), stream->submitted);
  run_until(goal, guard);
  raise_failure(guard);
}

bool Runtime::query_stream(StreamKey key, SourceId source) {
  Lock guard(mutex_);
  StreamQueue& stream = queue(key);
  const Goal goal{{{&stream, stream.submitted}}};
  note_poll();
  if (!goal.reached() && !running_) step(goal);
  if (!goal.reached()) return false;
  trace_sync(RecordKind::SyncStream, key, 0, "query", source);
  return true;
}

bool Runtime::query_point(const PointRef& point, SourceId source) {
  if (!point) return true;
  Lock guard(mutex_);
  note_poll();
  if (!point->done && !running_) step(Goal{{{point->stream, point->ordinal}}});
  if (!point->done) return false;
  trace_sync(RecordKind::SyncEvent, point->stream->key, point->seq, "query", source);
  return true;
}

void Runtime::mark_wanted(const Goal& goal, std::vector<Candidate>& candidates) const {
  for (const auto& target : goal.targets) {
    if (target.first->completed >= target.second) continue;
    // Follow what blocks it back to a stream that can go on. That ends: each refers to an earlier submission.
    StreamQueue* stream = target.first;
    while (!stream->entries.empty()) {
      const Entry& head = stream->entries.front();
      if (head.kind == EntryKind::Wait && !head.point->done) {
        stream = head.point->stream;
      } else if (must_not_finish(head)) {
        stream = unbegun_.begin()->second;
      } else {
        break;
      }
    }
    for (Candidate& candidate : candidates) {
      if (candidate.stream == stream) candidate.wanted = true;
    }
  }
}

bool Runtime::gate_closed() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& s) {
    return !s->entries.empty() && s->entries.front().kind == EntryKind::Gate &&
           !s->entries.front().point->done;
  });
}

// Finishing blocks until the other ranks have begun. They may be blocked in finishing one that was submitted
// earlier, so that one has to begin here first, or all would wait for each other.
bool Runtime::must_not_finish(const Entry& head) const {
  return head.begun && !unbegun_.empty() && unbegun_.begin()->first < head.seq;
}

bool Runtime::step(const Goal& goal) {
  candidates_.clear();
  for (const auto& stream : streams_) {
    if (stream->entries.empty()) continue;
    const Entry& head = stream->entries.front();
    const bool blocked = (head.kind == EntryKind::Wait || head.kind == EntryKind::Gate) && !head.point->done;
    if (blocked) continue;
    if (must_not_finish(head)) continue;
    candidates_.push_back({stream.get(), head.seq, false, head.id});
    candidates_.back().id.end = head.begun;
  }
  if (candidates_.empty()) return false;
  if (schedule_->looks_at_goal()) mark_wanted(goal, candidates_);
  StreamQueue& chosen = *(candidates_.size() == 1 ? candidates_.front().stream : schedule_->pick(candidates_));
  Entry& head = chosen.entries.front();
  chosen.last_ran = ++order_;
  if (head.kind == EntryKind::Collective && !head.begun) {
    head.begun = true;
    unbegun_.erase(head.seq);
    note_step(head, chosen.key, false);
    // It stays at the head of its stream until it is finished.
    if (succeeds(head, [&head] { head.async->begin(); })) return true;
  }
  complete_head(chosen);
  return true;
}

void Runtime::complete_head(StreamQueue& stream) {
  Entry& head = stream.entries.front();  // stays where it is when the operation submits more
  succeeds(head, [&head] {
    if (head.run) head.run();
    if (head.async) head.async->finish();
  });
  const Nanoseconds start = std::max(stream.clock, head.submitted);
  if (head.kind == EntryKind::Wait) {
    stream.clock = std::max(start, head.point->time);
  } else {
    stream.clock = start + head.cost;
  }
  if (head.kind == EntryKind::Record) {
    head.point->done = true;
    head.point->time = stream.clock;
  }
  if (head.traced && trace_.enabled() && !trace_.brief()) {
    TraceRecord record;
    record.kind = RecordKind::Ran;
    record.seq = head.seq;
    record.stream = stream.key;
    record.reference = order_;
    record.first = start;
    record.second = stream.clock;
    add_record(std::move(record));
  }
  note_step(head, stream.key, head.begun);
  // The entry's closure may release the last reference to memory: let that happen with the queue consistent.
  const Entry done = std::move(head);
  stream.entries.pop_front();
  ++stream.completed;
  --pending_;
}

bool Runtime::succeeds(const Entry& entry, const std::function<void()>& part) {
  running_ = true;
  bool succeeded = false;
  try {
    part();
    succeeded = true;
  } catch (const std::exception& error) {
    note_failure(entry, error.what());
  } catch (...) {
    note_failure(entry, "an exception of an unknown type");
  }
  running_ = false;
  return succeeded;
}

void Runtime::advance_host(Nanoseconds to) {
  if (to > host_clock_) host_clock_ = to;
}

void Runtime::wait_for_host(Lock& lock, const std::function<bool()>& ready) {
  void* const token = before_block_ ? before_block_() : nullptr;
  const auto limit = std::chrono::duration<double>(hold_timeout_);
  const bool woke = changed_.wait_for(lock, limit, ready);
  if (after_block_) {
    lock.unlock();  // what is taken back may be held by a thread that wants this lock
    after_block_(token);
    lock.lock();
  }
  if (!woke) {
    std::ostringstream text;
    text << "the host waited " << limit.count()
         << " s for a stream of the fake device that is held: release it (gate.release()) from another thread, "
            "or before waiting";
    throw DeviceError(text.str());
  }
}

void Runtime::run_until(const Goal& goal, Lock& lock) {
  if (running_) {
    throw DeviceError("an operation of the fake device waited for the device while it ran");
  }
  while (!goal.reached()) {
    if (step(goal)) continue;
    if (!gate_closed()) {
      throw DeviceError("internal error: the fake device has work queued and nothing that can run");
    }
    wait_for_host(lock, [this, seen = gates_opened_] { return gates_opened_ != seen; });
  }
}

void Runtime::make_room(Lock&) {
  if (pending_ < capacity_ || running_) return;
  const Goal nothing;
  while (pending_ > capacity_ / 2) {
    if (step(nothing)) continue;
    if (pending_ > capacity_ * kHeldFactor) {
      throw DeviceError("the fake device's queue is full (" + std::to_string(pending_) +
                        " operations) behind a held stream: release the stream");
    }
    return;  // a held stream: let the queue grow
  }
}

void Runtime::note_failure(const Entry& entry, const std::string& what) {
  if (!failure_.empty()) return;  // what follows from it says nothing new
  failure_ = entry.name + ": " + what;
  failure_source_ = entry.source;
}

void Runtime::raise_failure(Lock& lock) {
  if (failure_.empty()) return;
  std::string text = "an operation on the fake device failed: ";
  text += std::exchange(failure_, {});
  const SourceId source = failure_source_;
  const auto describe = describe_source_;
  lock.unlock();  // to describe the place needs the interpreter's lock, and its holder may wait for this one
  if (describe && source != kNoSource) text += "\n(it was submitted at " + describe(source) + ")";
  throw DeviceError(text);
}

void Runtime::count_synchronization(const std::string& operation) {
  Lock guard(mutex_);
  ++synchronizations_[operation];
}

std::map<std::string, std::uint64_t> Runtime::synchronizations() {
  Lock guard(mutex_);
  return synchronizations_;
}

void Runtime::reset_counters() {
  Lock guard(mutex_);
  synchronizations_.clear();
}

void Runtime::set_block_hooks(std::function<void*()> before, std::function<void(void*)> after) {
  Lock guard(mutex_);
  before_block_ = std::move(before);
  after_block_ = std::move(after);
}

void Runtime::set_describe_source(std::function<std::string(SourceId)> describe) {
  Lock guard(mutex_);
  describe_source_ = std::move(describe);
}

}  // namespace accel_streams::fake
