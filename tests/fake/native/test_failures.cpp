// Operations that fail: the host learns of it once, where it waits next, and the device goes on.
#include "program.h"

namespace native {
namespace {

void launch_failing(StreamKey stream, const std::string& what, SourceId source = kNoSource) {
  Launch failing = work([what] { throw std::runtime_error(what); }, "divide");
  failing.source = source;
  device().launch(stream, std::move(failing));
}

TEST_EACH_SCHEDULE(a_failure_is_reported_once_and_later_work_runs) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  launch(a, log, 1);
  launch_failing(a, "by zero");
  launch(a, log, 2);
  device().wait(b, device().record(a));
  launch(b, log, 3);
  CHECK_THROWS(DeviceError, "divide: by zero", synchronize(b));
  CHECK_EQUAL(text(log), "1 2 3 ");
  synchronize(a);
  synchronize(b);
  device().synchronize_device(0);
  device().drain();
}

TEST_EACH_SCHEDULE(every_way_of_waiting_reports_a_failure) {
  const StreamKey stream = new_stream();
  launch_failing(stream, "one");
  CHECK_THROWS(DeviceError, "one", device().synchronize_point(device().record(stream)));
  launch_failing(stream, "two");
  CHECK_THROWS(DeviceError, "two", device().synchronize_device(0));
  launch_failing(stream, "three");
  CHECK_THROWS(DeviceError, "three", device().drain());
  launch_failing(stream, "four");
  while (!device().query_stream(stream)) {
  }
  CHECK_THROWS(DeviceError, "four", synchronize(stream));
}

TEST_EACH_SCHEDULE(what_follows_from_a_failure_is_not_reported_beside_it) {
  const StreamKey stream = new_stream();
  launch_failing(stream, "cause");
  launch_failing(stream, "consequence");
  CHECK_THROWS(DeviceError, "cause", synchronize(stream));
  synchronize(stream);
}

TEST_EACH_SCHEDULE(exceptions_of_every_type_are_failures) {
  const StreamKey stream = new_stream();
  Log log;
  device().launch(stream, work([] { throw 42; }, "divide"));
  launch(stream, log, 1);
  CHECK_THROWS(DeviceError, "divide: an exception of an unknown type", synchronize(stream));
  CHECK_EQUAL(text(log), "1 ");
}

TEST_EACH_SCHEDULE(a_failure_names_the_place_of_the_operation_that_failed) {
  const StreamKey stream = new_stream();
  bool lock_was_free = false;
  device().set_describe_source([&lock_was_free](SourceId source) {
    lock_was_free = true;  // called without the device's lock; see test_threads.cpp
    return "train.py:" + std::to_string(source);
  });
  launch_failing(stream, "first", 12);
  launch_failing(stream, "second", 13);
  CHECK_THROWS(DeviceError, "it was submitted at train.py:12", synchronize(stream));
  CHECK(lock_was_free);
  launch_failing(stream, "no place");
  device().set_describe_source(nullptr);
  CHECK_THROWS(DeviceError, "no place", synchronize(stream));
}

TEST_EACH_SCHEDULE(an_operation_that_waits_for_the_device_fails) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  launch(b, log, 1);
  launch(a, [b] { synchronize(b); });
  launch(a, log, 2);
  CHECK_THROWS(DeviceError, "waited for the device while it ran", device().drain());
  CHECK_EQUAL(log.size(), 2U);
}

class Failing final : public Asynchronous {
 public:
  Failing(bool in_begin, Log log) : in_begin_(in_begin), log_(std::move(log)) {}
  void begin() override {
    log_.push_back(1);
    if (in_begin_) throw std::runtime_error("no peers");
  }
  void finish() override {
    log_.push_back(2);
    if (!in_begin_) throw std::runtime_error("peers lost");
  }

 private:
  bool in_begin_;
  Log log_;
};

TEST_EACH_SCHEDULE(a_collective_that_fails_lets_the_next_one_go_on) {
  for (const bool in_begin : {true, false}) {
    const StreamKey a = new_stream();
    const StreamKey b = new_stream();
    Log failing;
    Log log;
    PeerCheck peers;
    Launch first;
    first.name = "all_reduce";
    first.async = std::make_unique<Failing>(in_begin, failing);
    device().launch(a, std::move(first));
    Launch second;
    second.async = std::make_unique<Collective>(peers, log, 3);
    device().launch(b, std::move(second));
    launch(a, log, 4);
    CHECK_THROWS(DeviceError, in_begin ? "all_reduce: no peers" : "all_reduce: peers lost", device().drain());
    CHECK_EQUAL(text(failing), "1 2 ");
    CHECK_EQUAL(log.size(), 2U);
    CHECK_EQUAL(peers.failure, "");
  }
}

class Reentrant final : public Asynchronous {
 public:
  Reentrant(StreamKey own, StreamKey other, Log log) : own_(own), other_(other), log_(std::move(log)) {}
  void begin() override {
    for (int i = 0; i < 8; ++i) launch(other_, log_, 1);  // more than the queue holds
    device().query_stream(own_);
    CHECK(log_.empty());
    log_.push_back(2);
  }
  void finish() override { log_.push_back(3); }

 private:
  StreamKey own_;
  StreamKey other_;
  Log log_;
};

TEST_EACH_SCHEDULE(a_collective_that_submits_and_polls_as_it_begins_runs_nothing) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  device().set_capacity(4);
  Log log;
  Launch launch;
  launch.async = std::make_unique<Reentrant>(a, b, log);
  device().launch(a, std::move(launch));
  device().drain();
  device().drain();
  CHECK_EQUAL(log.size(), 10U);
  CHECK_EQUAL(log[0], 2);
}

}  // namespace
}  // namespace native
