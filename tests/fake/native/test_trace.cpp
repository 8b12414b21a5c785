// What a trace holds.
#include <algorithm>
#include <map>

#include "program.h"

namespace native {
namespace {

TEST_EACH_SCHEDULE(each_operation_is_recorded_as_it_was_submitted) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  const Tracing tracing;
  Launch launch;
  launch.name = "add";
  launch.accesses = {{5, 0, 16, Mode::Read}, {6, 8, 24, Mode::ReadWrite}};
  launch.source = 3;
  device().launch(a, std::move(launch));
  const PointRef point = device().record(a, true, 4);
  device().wait(b, point, 5);
  device().synchronize_stream(b, "item", 6);
  device().synchronize_point(point, 7);
  device().synchronize_device(0, 8);

  std::vector<TraceRecord> records = Tracing::take();
  records.erase(std::remove_if(records.begin(), records.end(),
                               [](const TraceRecord& record) { return record.kind == RecordKind::Ran; }),
                records.end());
  CHECK_EQUAL(records.size(), 6U);
  for (std::size_t i = 1; i < records.size(); ++i) CHECK(records[i].seq > records[i - 1].seq);
  for (std::size_t i = 0; i < records.size(); ++i) {
    CHECK_EQUAL(records[i].source, static_cast<SourceId>(i + 3));
    CHECK_EQUAL(records[i].thread, host_thread_index());
  }
  CHECK(records[0].kind == RecordKind::Launch);
  CHECK(records[0].stream == a);
  CHECK_EQUAL(records[0].name, "add");
  CHECK_EQUAL(records[0].accesses.size(), 2U);
  CHECK_EQUAL(records[0].accesses[1].block, 6U);
  CHECK_EQUAL(records[0].accesses[1].lo, 8);
  CHECK_EQUAL(records[0].accesses[1].hi, 24);
  CHECK(records[0].accesses[1].mode == Mode::ReadWrite);
  CHECK(records[1].kind == RecordKind::Record);
  CHECK(records[1].stream == a);
  CHECK_EQUAL(records[1].seq, point->seq);
  CHECK(records[2].kind == RecordKind::Wait);
  CHECK(records[2].stream == b);
  CHECK_EQUAL(records[2].reference, point->seq);
  CHECK(records[3].kind == RecordKind::SyncStream);
  CHECK(records[3].stream == b);
  CHECK_EQUAL(records[3].name, "item");
  CHECK(records[4].kind == RecordKind::SyncEvent);
  CHECK_EQUAL(records[4].reference, point->seq);
  CHECK(records[5].kind == RecordKind::SyncDevice);
  CHECK_EQUAL(records[5].stream.device, 0);
}

TEST_EACH_SCHEDULE(each_operation_in_the_trace_runs_once_and_nothing_else_does) {
  const StreamKey held = new_stream();
  const StreamKey stream = new_stream();
  const Tracing tracing;
  // Beside the program: a gate, and the allocator's own recording and poisoning. None is in the trace.
  device().open(device().hold(held));
  const auto block = Memory::instance().allocate(stream, 64, kNoSource);
  Memory::instance().record_stream(block, held);
  Memory::instance().free(block);
  Memory::instance().free(Memory::instance().allocate(stream, 64, kNoSource));
  const auto again = Memory::instance().allocate(stream, 64, kNoSource);
  Program program(4, 4, 80, true);
  program.submit();
  device().drain();
  Memory::instance().free(again);
  std::map<std::uint64_t, int> submitted;
  std::map<std::uint64_t, int> ran;
  std::map<std::uint64_t, int> orders;
  for (const TraceRecord& record : Tracing::take()) {
    if (record.kind == RecordKind::Ran) {
      ++ran[record.seq];
      ++orders[record.reference];
      CHECK(record.first <= record.second);
    } else if (record.kind == RecordKind::Launch || record.kind == RecordKind::Record ||
               record.kind == RecordKind::Wait) {
      ++submitted[record.seq];
    }
  }
  CHECK_EQUAL(submitted.size(), 80U);
  CHECK(ran == submitted);
  CHECK_EQUAL(orders.size(), ran.size());
}

TEST_EACH_SCHEDULE(a_poll_is_recorded_when_it_succeeds) {
  const StreamKey stream = new_stream();
  const Tracing tracing;
  launch(stream, [] {});
  const PointRef point = device().record(stream);
  while (!device().query_point(point)) {
  }
  device().query_stream(stream);
  const auto records = Tracing::take();
  CHECK_EQUAL(of_kind(records, RecordKind::SyncEvent).size(), 1U);
  CHECK_EQUAL(of_kind(records, RecordKind::SyncEvent)[0].reference, point->seq);
  CHECK_EQUAL(of_kind(records, RecordKind::SyncStream).size(), 1U);
  CHECK(of_kind(records, RecordKind::SyncStream)[0].stream == stream);
}

TEST(memory_is_recorded) {
  const StreamKey stream = new_stream();
  const StreamKey reader = new_stream();
  Memory& memory = Memory::instance();
  const Tracing tracing;
  const auto a = memory.allocate(stream, 100, 9);
  memory.name(a->id, "bucket");
  const auto b = memory.allocate(stream, 200, kNoSource);
  memory.record_stream(b, reader);
  memory.free(a);
  memory.free(b);
  device().drain();
  const auto c = memory.allocate(stream, 300, kNoSource);
  const auto records = Tracing::take();
  const auto allocs = of_kind(records, RecordKind::Alloc);
  CHECK_EQUAL(allocs.size(), 3U);
  CHECK_EQUAL(allocs[0].reference, a->id);
  CHECK_EQUAL(allocs[0].first, 100);
  CHECK_EQUAL(allocs[0].source, 9);
  CHECK(allocs[0].stream == stream);
  const auto names = of_kind(records, RecordKind::Name);
  CHECK_EQUAL(names.size(), 1U);
  CHECK_EQUAL(names[0].reference, a->id);
  CHECK_EQUAL(names[0].name, "bucket");
  const auto recorded = of_kind(records, RecordKind::RecordStream);
  CHECK_EQUAL(recorded.size(), 1U);
  CHECK_EQUAL(recorded[0].reference, b->id);
  CHECK(recorded[0].stream == reader);
  CHECK_EQUAL(of_kind(records, RecordKind::Free).size(), 2U);
  const auto reused = of_kind(records, RecordKind::Reuse);
  CHECK_EQUAL(reused.size(), 2U);
  CHECK_EQUAL(reused[0].reference, a->id);
  CHECK_EQUAL(reused[1].reference, b->id);
  CHECK(reused[0].seq < allocs[2].seq);
  memory.free(c);
}

TEST(nothing_is_recorded_without_a_trace) {
  Tracing::take();
  const StreamKey stream = new_stream();
  launch(stream, [] {});
  device().wait(stream, device().record(stream));
  synchronize(stream);
  Memory::instance().free(Memory::instance().allocate(stream, 64, kNoSource));
  CHECK(Tracing::take().empty());
  CHECK_EQUAL(device().trace().size(), 0U);
}

TEST(a_trace_that_begins_late_holds_no_run_of_what_came_before) {
  const StreamKey stream = new_stream();
  launch(stream, [] {});
  const Tracing tracing;
  device().drain();
  CHECK(Tracing::take().empty());
}

TEST(the_size_of_a_trace_is_known_without_taking_it) {
  const StreamKey stream = new_stream();
  const Tracing tracing;
  launch(stream, [] {});
  device().record(stream);
  CHECK_EQUAL(device().trace().size(), 2U);
  CHECK_EQUAL(Tracing::take().size(), 2U);
  CHECK_EQUAL(device().trace().size(), 0U);
}

TEST(a_recording_that_nobody_can_wait_for_any_more_is_dropped) {
  const StreamKey stream = new_stream();
  const Tracing tracing;
  PointRef point = device().record(stream);
  const std::uint64_t seq = point->seq;
  device().wait(new_stream(), point);
  point.reset();
  CHECK(of_kind(Tracing::take(), RecordKind::Drop).empty());  // the wait needs it still
  device().drain();
  const auto dropped = of_kind(Tracing::take(), RecordKind::Drop);
  CHECK_EQUAL(dropped.size(), 1U);
  CHECK_EQUAL(dropped[0].reference, seq);
}

TEST(what_threads_hand_over_is_recorded) {
  const Tracing tracing;
  device().release_to(7, 3);
  device().acquire_from(7);
  const auto records = Tracing::take();
  CHECK_EQUAL(records.size(), 2U);
  CHECK(records[0].kind == RecordKind::Release);
  CHECK_EQUAL(records[0].thread, 3);
  CHECK_EQUAL(records[0].reference, 7U);
  CHECK(records[1].kind == RecordKind::Acquire);
  CHECK_EQUAL(records[1].thread, host_thread_index());
}

Access accessed(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides, std::int64_t offset = 0) {
  return access_of(1, offset, sizes.data(), strides.data(), sizes.size(), 4, Mode::Read);
}

TEST(a_view_without_gaps_is_a_range) {
  for (const auto& [sizes, strides] : std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>{
           {{3, 4}, {4, 1}}, {{4, 3}, {1, 4}}, {{3, 1, 4}, {4, 99, 1}}, {{3, 5, 4}, {4, 0, 1}}, {{3, 6}, {3, 1}}}) {
    const Access access = accessed(sizes, strides, 2);
    CHECK(access.shape == nullptr);
    CHECK_EQUAL(access.lo, 8);
    CHECK_EQUAL(access.hi, 8 + 48);
  }
}

TEST(a_view_with_gaps_is_rows_of_bytes) {
  const Access column = accessed({5, 2}, {8, 1}, 3);
  CHECK_EQUAL(column.lo, 12);
  CHECK_EQUAL(column.hi, 12 + 4 * 32 + 8);
  CHECK(*column.shape == std::vector<std::int64_t>({8, 5, 32}));
  // Every second element of every second row of eight.
  CHECK(*accessed({4, 4}, {16, 2}).shape == std::vector<std::int64_t>({4, 4, 64, 4, 8}));
  // Every second element of rows of eight goes on over the rows.
  CHECK(*accessed({4, 4}, {8, 2}).shape == std::vector<std::int64_t>({4, 16, 8}));
}

TraceRecord memory_record(RecordKind kind, std::uint64_t seq, StreamKey stream, std::uint64_t block,
                          std::int32_t thread = 0) {
  TraceRecord record;
  record.kind = kind;
  record.seq = seq;
  record.thread = thread;
  record.stream = stream;
  record.reference = block;
  return record;
}

TraceRecord launch_record(std::uint64_t seq, StreamKey stream, std::vector<std::uint64_t> blocks,
                          std::int32_t thread = 0) {
  TraceRecord record = memory_record(RecordKind::Launch, seq, stream, 0, thread);
  for (const auto block : blocks) record.accesses.push_back({block, 0, 16, Mode::ReadWrite, nullptr});
  return record;
}

// Allocations 5 to 8 live and end here; `second` is how the second operation uses the first of them.
std::vector<TraceRecord> brief(const TraceRecord& second, Hosts hosts = {}, bool ended = true) {
  const StreamKey a{0, 1};
  std::vector<TraceRecord> records;
  records.push_back(memory_record(RecordKind::Alloc, 1, a, 5));
  records.push_back(launch_record(2, a, {5}));
  records.push_back(second);
  records.push_back(memory_record(RecordKind::Free, 8, a, 5));
  if (ended) records.push_back(memory_record(RecordKind::Reuse, 9, a, 5));
  leave_out_private(records, hosts);
  return records;
}

TEST(memory_that_one_stream_uses_and_that_ends_is_left_out) {
  const StreamKey a{0, 1};
  const auto records = brief(launch_record(3, a, {5, 2}));
  CHECK_EQUAL(records.size(), 2U);
  CHECK(records[0].kind == RecordKind::Launch);  // for the memory that stays
  CHECK_EQUAL(records[0].accesses.size(), 1U);
  CHECK_EQUAL(records[0].accesses[0].block, 2U);
  CHECK(records[1].kind == RecordKind::LeftOut);
  CHECK_EQUAL(records[1].reference, 1U);
  CHECK_EQUAL(records[1].seq, 9U);
}

TEST(memory_that_can_race_is_not_left_out) {
  const StreamKey a{0, 1};
  const StreamKey b{0, 2};
  CHECK_EQUAL(brief(launch_record(3, b, {5})).size(), 5U);                                // two streams
  CHECK_EQUAL(brief(memory_record(RecordKind::RecordStream, 3, b, 5)).size(), 5U);        // and an allocator told of it
  CHECK_EQUAL(brief(launch_record(3, a, {5}), {}, false).size(), 4U);                     // it goes on
  CHECK_EQUAL(brief(launch_record(3, a, {5}, 1)).size(), 5U);                             // two threads
}

TEST(threads_that_hand_over_may_share_what_is_left_out) {
  const StreamKey a{0, 1};
  const auto handed = [a](std::uint64_t released) {
    Hosts hosts;
    hosts.note(memory_record(RecordKind::Release, released, {}, 4, 0));
    hosts.note(memory_record(RecordKind::Acquire, 100, {}, 4, 1));
    return brief(launch_record(3, a, {5}, 1), hosts);
  };
  CHECK_EQUAL(handed(0).size(), 5U);  // before the allocation
  CHECK_EQUAL(handed(2).size(), 1U);
}

}  // namespace
}  // namespace native
