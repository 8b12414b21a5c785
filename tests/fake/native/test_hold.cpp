// Held streams, and the host that waits for one.
#include <cmath>
#include <future>
#include <mutex>
#include <thread>

#include "device.h"

namespace native {
namespace {

TEST_EACH_SCHEDULE(a_held_stream_delays_no_other) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  launch(a, log, 1);
  Held held(a);
  launch(a, log, 2);
  launch(b, log, 3);
  synchronize(b);
  CHECK(contains(log, 3));
  CHECK(!contains(log, 2));
  for (int i = 0; i < 10; ++i) CHECK(!device().query_stream(a));
  held.open();
  synchronize(a);
  CHECK_EQUAL(log.size(), 3U);
}

TEST_EACH_SCHEDULE(opening_a_gate_twice_or_early_is_fine) {
  const StreamKey stream = new_stream();
  const PointRef gate = device().hold(stream);
  device().open(gate);
  device().open(gate);
  synchronize(stream);
  CHECK(device().query_stream(stream));
}

TEST_EACH_SCHEDULE(every_gate_of_a_stream_has_to_open) {
  const StreamKey stream = new_stream();
  Log log;
  Held first(stream);
  Held second(stream);
  launch(stream, log, 1);
  second.open();
  CHECK(!device().query_stream(stream));
  CHECK(log.empty());
  first.open();
  synchronize(stream);
  CHECK_EQUAL(text(log), "1 ");
}

// Another host thread that acts when the host begins to wait, whatever the machine's speed.
class WhenBlocked {
 public:
  explicit WhenBlocked(std::function<void()> act) : thread_([this, act] {
    if (blocked_.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready) act();
  }) {
    device().set_block_hooks(
        [this] {
          if (times_++ == 0) blocked_.set_value();
          return this;
        },
        [this](void* token) { back_ = token == this; });
  }
  ~WhenBlocked() { join(); }
  WhenBlocked(const WhenBlocked&) = delete;
  WhenBlocked& operator=(const WhenBlocked&) = delete;
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  int times() const { return times_; }
  bool back() const { return back_; }

 private:
  std::promise<void> blocked_;
  int times_ = 0;      // the host thread's, as `back_` is
  bool back_ = false;
  std::thread thread_;
};

TEST_EACH_SCHEDULE(a_waiting_host_goes_on_when_another_thread_opens_the_gate) {
  const StreamKey stream = new_stream();
  Log log;
  Held held(stream);
  launch(stream, log, 1);
  WhenBlocked other([&held] { held.open(); });
  synchronize(stream);
  other.join();
  CHECK_EQUAL(text(log), "1 ");
  CHECK_EQUAL(other.times(), 1);
  CHECK(other.back());
}

TEST_EACH_SCHEDULE(a_gate_that_opens_elsewhere_does_not_end_the_wait) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  Held held_a(a);
  Held held_b(b);
  launch(a, log, 1);
  WhenBlocked other([&] {
    held_b.open();
    held_a.open();
  });
  synchronize(a);
  other.join();
  CHECK_EQUAL(text(log), "1 ");
}

TEST_EACH_SCHEDULE(a_host_that_waits_for_an_event_behind_a_gate_of_another_stream_goes_on) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  Held held(a);
  launch(a, log, 1);
  device().wait(b, device().record(a));
  launch(b, log, 2);
  const PointRef point = device().record(b);
  WhenBlocked other([&held] { held.open(); });
  device().synchronize_point(point);
  other.join();
  CHECK_EQUAL(text(log), "1 2 ");
}

TEST_EACH_SCHEDULE(other_threads_work_while_the_host_waits) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  Held held(a);
  std::string failure;
  WhenBlocked other([&] {
    try {
      launch(b, log, 1);
      synchronize(b);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    held.open();
  });
  synchronize(a);
  other.join();
  CHECK_EQUAL(failure, "");
  CHECK_EQUAL(text(log), "1 ");
}

TEST(the_hook_after_the_wait_is_called_without_the_devices_lock) {
  // What it takes back (the interpreter's lock) may be held by a thread that wants the device's.
  const StreamKey stream = new_stream();
  Held held(stream);
  std::promise<void> blocked;
  bool reachable = false;
  device().set_block_hooks(
      [&blocked]() -> void* {
        blocked.set_value();
        return nullptr;
      },
      [&reachable](void*) {
        auto asked = std::async(std::launch::async, [] { return device().exists({0, 0}); });
        reachable = asked.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
      });
  std::thread other([&] {
    blocked.get_future().wait();
    held.open();
  });
  synchronize(stream);
  other.join();
  CHECK(reachable);
}

TEST(threads_that_share_a_lock_outside_the_device_do_not_block_each_other) {
  // As Python does it: a thread calls with the interpreter's lock held, and gives it up only around a wait.
  std::mutex interpreter;
  const StreamKey stream = new_stream();
  device().set_block_hooks(
      [&interpreter]() -> void* {
        interpreter.unlock();
        return nullptr;
      },
      [&interpreter](void*) { interpreter.lock(); });
  Log log;
  for (int round = 0; round < 20; ++round) {
    const PointRef gate = device().hold(stream);
    launch(stream, log, round);
    std::thread other([&] {
      const std::lock_guard<std::mutex> guard(interpreter);
      device().exists(stream);
      device().open(gate);
    });
    {
      const std::lock_guard<std::mutex> guard(interpreter);
      synchronize(stream);
    }
    other.join();
  }
  CHECK_EQUAL(log.size(), 20U);
}

TEST_EACH_SCHEDULE(a_host_that_would_wait_for_ever_gets_an_error) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  device().set_hold_timeout(0.05);
  Held held(a);
  launch(a, log, 1);
  device().wait(b, device().record(a));
  launch(b, log, 2);
  CHECK_THROWS(DeviceError, "waited 0.05 s for a stream of the fake device that is held: release it", synchronize(a));
  CHECK_THROWS(DeviceError, "held", synchronize(b));
  CHECK_THROWS(DeviceError, "held", device().drain());
  // The error took nothing away.
  held.open();
  synchronize(b);
  CHECK_EQUAL(text(log), "1 2 ");
}

TEST(a_time_to_wait_is_a_length_of_time) {
  CHECK_THROWS(DeviceError, "-1", device().set_hold_timeout(-1));
  CHECK_THROWS(DeviceError, "nan", device().set_hold_timeout(std::nan("")));
  CHECK_THROWS(DeviceError, "inf", device().set_hold_timeout(INFINITY));
}

TEST(two_hosts_that_wait_for_one_stream_both_go_on) {
  const StreamKey stream = new_stream();
  Held held(stream);
  Log log;
  launch(stream, log, 1);
  std::promise<void> both;
  int waiting = 0;
  device().set_block_hooks(
      [&]() -> void* {  // called with the device's lock held
        if (++waiting == 2) both.set_value();
        return nullptr;
      },
      nullptr);
  auto first = std::async(std::launch::async, [stream] { synchronize(stream); });
  auto second = std::async(std::launch::async, [stream] { synchronize(stream); });
  both.get_future().wait();
  held.open();
  first.get();
  second.get();
  CHECK_EQUAL(text(log), "1 ");
}

}  // namespace
}  // namespace native
