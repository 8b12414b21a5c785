// What is ordered and what is not: streams, recordings, waits, polling.
#include "device.h"

namespace native {
namespace {

TEST_EACH_SCHEDULE(work_of_one_stream_runs_in_the_order_of_its_submission) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log in_a;
  Log in_b;
  for (int i = 0; i < 20; ++i) {
    launch(a, in_a, i);
    launch(b, in_b, i);
  }
  device().synchronize_device(0);
  Log expected;
  for (int i = 0; i < 20; ++i) expected.push_back(i);
  CHECK_EQUAL(text(in_a), text(expected));
  CHECK_EQUAL(text(in_b), text(expected));
}

TEST_EACH_SCHEDULE(nothing_runs_before_the_host_waits) {
  const StreamKey stream = new_stream();
  Log log;
  launch(stream, log, 1);
  device().wait(stream, device().record(stream));
  CHECK(log.empty());
  CHECK_EQUAL(device().pending(), 3U);
  synchronize(stream);
  CHECK_EQUAL(text(log), "1 ");
  CHECK_EQUAL(device().pending(), 0U);
}

TEST_EACH_SCHEDULE(a_wait_orders_what_follows_it_after_what_the_recording_covers) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  launch(a, log, 1);
  device().wait(b, device().record(a));
  launch(b, log, 2);
  device().synchronize_device(0);
  CHECK_EQUAL(text(log), "1 2 ");
}

TEST_EACH_SCHEDULE(a_wait_covers_what_came_before_the_recording_only) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  launch(a, log, 1);
  const PointRef point = device().record(a);
  const Held held(a);
  launch(a, log, 2);
  device().wait(b, point);
  launch(b, log, 3);
  synchronize(b);  // would never end if the wait covered the held work
  CHECK_EQUAL(text(log), "1 3 ");
}

TEST_EACH_SCHEDULE(what_was_in_the_stream_before_the_wait_does_not_wait) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  const Held held(a);
  const PointRef point = device().record(a);
  launch(b, log, 1);
  const PointRef early = device().record(b);
  device().wait(b, point);
  launch(b, log, 2);
  device().synchronize_point(early);
  CHECK_EQUAL(text(log), "1 ");
}

TEST_EACH_SCHEDULE(a_wait_keeps_the_recording_it_was_issued_for) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  launch(a, log, 1);
  PointRef event = device().record(a);
  device().wait(b, event);
  launch(b, log, 2);
  const Held held(a);
  event = device().record(a);  // recorded again; the new recording can't complete
  device().synchronize_point(device().record(b));
  CHECK_EQUAL(text(log), "1 2 ");
  CHECK(!device().query_point(event));
}

TEST_EACH_SCHEDULE(a_wait_outlives_the_event) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  launch(a, log, 1);
  {
    PointRef event = device().record(a);
    device().wait(b, event);
    event.reset();
  }
  launch(b, log, 2);
  device().synchronize_device(0);
  CHECK_EQUAL(text(log), "1 2 ");
}

TEST_EACH_SCHEDULE(an_event_that_was_never_recorded_gives_no_edge) {
  const StreamKey stream = new_stream();
  device().wait(stream, nullptr);
  device().synchronize_point(nullptr);
  CHECK(device().query_point(nullptr));
  CHECK_EQUAL(device().pending(), 0U);
}

TEST_EACH_SCHEDULE(waits_order_streams_of_different_devices) {
  const StreamKey a = new_stream(0);
  const StreamKey b = new_stream(1);
  Log log;
  launch(a, log, 1);
  device().wait(b, device().record(a));
  launch(b, log, 2);
  device().synchronize_device(1);
  CHECK_EQUAL(text(log), "1 2 ");
}

TEST_EACH_SCHEDULE(waits_in_a_ring_end) {
  // Each stream waits for the one before, many times round: the longest chains of waits a program can make.
  std::vector<StreamKey> ring;
  for (int i = 0; i < 5; ++i) ring.push_back(new_stream());
  Log log;
  Log expected;
  PointRef last;
  for (int i = 0; i < 50; ++i) {
    const StreamKey stream = ring[static_cast<std::size_t>(i) % ring.size()];
    device().wait(stream, last);
    launch(stream, log, i);
    last = device().record(stream);
    expected.push_back(i);
  }
  device().synchronize_point(last);
  CHECK_EQUAL(text(log), text(expected));
}

TEST_EACH_SCHEDULE(a_host_that_waits_for_a_point_finds_all_before_it_done) {
  const StreamKey stream = new_stream();
  Log log;
  launch(stream, log, 1);
  const PointRef point = device().record(stream);
  device().synchronize_point(point);
  CHECK_EQUAL(text(log), "1 ");
  CHECK(point->done);
}

TEST_EACH_SCHEDULE(a_host_that_waits_for_a_device_waits_for_all_its_streams) {
  const int index = fresh_index();
  Log log;
  launch({index, 0}, log, 1);
  launch(new_stream(index), log, 2);
  launch(new_stream(index), log, 3);
  device().synchronize_device(index);
  CHECK_EQUAL(log.size(), 3U);
}

TEST_EACH_SCHEDULE(a_host_that_waits_for_a_device_does_not_wait_for_another) {
  const int index = fresh_index();
  const StreamKey other = new_stream(fresh_index());
  Log log;
  const Held held(other);
  launch({index, 0}, log, 1);
  device().synchronize_device(index);  // would never end
  CHECK_EQUAL(text(log), "1 ");
}

TEST_EACH_SCHEDULE(draining_waits_for_every_device) {
  Log log;
  launch(new_stream(fresh_index()), log, 1);
  launch(new_stream(fresh_index()), log, 2);
  device().drain();
  CHECK_EQUAL(log.size(), 2U);
  CHECK_EQUAL(device().pending(), 0U);
}

TEST_EACH_SCHEDULE(polling_makes_progress) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  for (int i = 0; i < 10; ++i) {
    launch(a, log, i);
    launch(b, log, i);
  }
  const PointRef point = device().record(a);
  int polls = 0;
  while (!device().query_point(point)) CHECK(++polls < 100);
  CHECK(polls > 0);
  polls = 0;
  while (!device().query_stream(b)) CHECK(++polls < 100);
  CHECK_EQUAL(log.size(), 20U);
}

TEST_EACH_SCHEDULE(an_idle_stream_is_through) {
  const StreamKey stream = new_stream();
  CHECK(device().query_stream(stream));
  synchronize(stream);
}

TEST_EACH_SCHEDULE(an_operation_may_submit_work) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  launch(a, [&log, a, b] {
    log.push_back(1);
    for (int i = 0; i < 600; ++i) launch(a, log, 2);  // enough for the queue's storage to move
    launch(b, log, 3);
    log.push_back(4);
  });
  launch(a, log, 5);
  device().drain();
  device().drain();
  CHECK_EQUAL(log.size(), 604U);
  CHECK_EQUAL(log[0], 1);
  CHECK_EQUAL(log[1], 4);
  CHECK(contains(log, 3));
}

TEST_EACH_SCHEDULE(an_operation_that_polls_runs_nothing) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  const PointRef earlier = device().record(a);
  PointRef later;
  bool seen = false;
  launch(a, [&] {
    const std::size_t ran = log.size();
    seen = device().query_point(earlier) && !device().query_stream(a) && !device().query_point(later);
    device().query_stream(b);
    CHECK_EQUAL(log.size(), ran);
    log.push_back(1);
  });
  later = device().record(a);
  launch(b, log, 2);
  synchronize(a);
  synchronize(b);
  CHECK(seen);
  CHECK_EQUAL(log.size(), 2U);
}

struct AtRelease {
  AtRelease(StreamKey where, Log what) : stream(where), log(std::move(what)) {}
  ~AtRelease() { launch(stream, log, 2); }
  AtRelease(const AtRelease&) = delete;
  AtRelease& operator=(const AtRelease&) = delete;
  StreamKey stream;
  Log log;
};

TEST_EACH_SCHEDULE(releasing_an_operation_may_submit_work) {
  // The last reference to something may lie in an operation; what its release does finds a consistent queue.
  const StreamKey stream = new_stream();
  Log log;
  launch(stream, [last = std::make_shared<AtRelease>(stream, log), &log] { log.push_back(1); });
  device().drain();
  device().drain();
  CHECK_EQUAL(text(log), "1 2 ");
}

TEST(streams_that_were_never_made_are_refused) {
  const StreamKey bogus{0, 123456789};
  CHECK(!device().exists(bogus));
  CHECK_THROWS(DeviceError, "no stream with id 123456789", device().launch(bogus, Launch{}));
  CHECK_THROWS(DeviceError, "no stream with id", device().record(bogus));
  CHECK_THROWS(DeviceError, "no stream with id", device().hold(bogus));
  CHECK_THROWS(DeviceError, "no stream with id", synchronize(bogus));
  CHECK_THROWS(DeviceError, "no stream with id", device().query_stream(bogus));
  CHECK_EQUAL(device().pending(), 0U);
}

TEST(the_default_stream_is_the_first_of_its_device) {
  const int index = fresh_index();
  const StreamKey created = new_stream(index);
  device().set_schedule("fifo", 0);
  Log log;
  launch(created, log, 2);
  launch({index, 0}, log, 1);
  device().synchronize_device(index);
  CHECK_EQUAL(text(log), "1 2 ");
}

TEST(each_new_stream_is_another) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  CHECK(a != b);
  CHECK(a.id != 0);
  CHECK(device().exists(a));
  CHECK(device().exists({0, 0}));
}

}  // namespace
}  // namespace native
