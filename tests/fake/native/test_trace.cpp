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

}  // namespace
}  // namespace native
