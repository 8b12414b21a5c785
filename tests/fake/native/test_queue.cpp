// The queue's capacity, counters, and the names of schedules.
#include <algorithm>

#include "device.h"

namespace native {
namespace {

TEST_EACH_SCHEDULE(the_queue_runs_when_it_is_full) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  device().set_capacity(16);
  Log log;
  std::size_t most = 0;
  for (int i = 0; i < 200; ++i) {
    launch(i % 3 == 0 ? a : b, log, i);
    most = std::max(most, device().pending());
  }
  CHECK(!log.empty());
  CHECK(most <= 16);
  CHECK(most > 8);  // it does not run each at once: that would hide every race
  device().drain();
  CHECK_EQUAL(log.size(), 200U);
}

TEST_EACH_SCHEDULE(a_queue_of_one_runs_everything_before_the_next) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  device().set_capacity(1);
  Log log;
  Log expected;
  for (int i = 0; i < 20; ++i) {
    launch(i % 2 == 0 ? a : b, log, i);
    expected.push_back(i);
  }
  device().drain();
  CHECK_EQUAL(text(log), text(expected));
}

TEST_EACH_SCHEDULE(a_full_queue_keeps_the_waits) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  device().set_capacity(8);
  Log log;
  Log expected;
  for (int i = 0; i < 60; ++i) {
    const StreamKey from = i % 2 == 0 ? a : b;
    const StreamKey to = i % 2 == 0 ? b : a;
    launch(from, log, i);
    device().wait(to, device().record(from));
    expected.push_back(i);
  }
  device().drain();
  CHECK_EQUAL(text(log), text(expected));
}

TEST_EACH_SCHEDULE(the_queue_grows_behind_a_held_stream_up_to_a_limit) {
  const StreamKey a = new_stream();
  device().set_capacity(4);
  Log log;
  Held held(a);
  int submitted = 0;
  const auto fill = [&] {
    for (; submitted < 1000; ++submitted) launch(a, log, submitted);
  };
  CHECK_THROWS(DeviceError, "queue is full", fill());
  CHECK(submitted >= 200);
  CHECK(log.empty());
  held.open();
  device().drain();
  CHECK_EQUAL(log.size(), static_cast<std::size_t>(submitted));  // the one that was refused left nothing behind
  launch(a, log, -1);
  device().drain();
  CHECK_EQUAL(log.back(), -1);
}

TEST(a_queue_needs_room) {
  CHECK_THROWS(DeviceError, "at least one operation", device().set_capacity(0));
}

TEST(operations_are_counted_and_records_are_not) {
  const StreamKey stream = new_stream();
  const std::uint64_t before = device().operations();
  Log log;
  launch(stream, log, 1);
  launch(stream, log, 2);
  device().wait(stream, device().record(stream));
  CHECK_EQUAL(device().operations() - before, 2U);
  CHECK_EQUAL(device().pending(), 4U);
  device().drain();
  CHECK_EQUAL(device().operations() - before, 2U);
}

TEST(synchronizations_are_counted_by_name) {
  device().count_synchronization("item");
  device().count_synchronization("item");
  device().count_synchronization("nonzero");
  const auto counts = device().synchronizations();
  CHECK_EQUAL(counts.size(), 2U);
  CHECK_EQUAL(counts.at("item"), 2U);
  device().reset_counters();
  CHECK(device().synchronizations().empty());
}

TEST(an_unknown_schedule_is_refused_with_the_known_ones) {
  device().set_schedule("lifo", 3);
  CHECK_THROWS(DeviceError, "expected one of in-order, fifo, lifo, mru, lru, lazy, random, priority",
               device().set_schedule("alphabetical", 0));
  CHECK_EQUAL(device().schedule_name(), "lifo");
  CHECK_EQUAL(device().schedule_seed(), 3U);
}

}  // namespace
}  // namespace native
