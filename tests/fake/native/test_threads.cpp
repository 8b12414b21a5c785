// Many host threads at once. Half of what is checked here is checked by the thread sanitizer.
#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <future>
#include <set>
#include <thread>

#include "program.h"

namespace native {
namespace {

constexpr int kThreads = 4;
constexpr int kOperations = 2000;

// Runs `body` on some threads; the first exception of one is this thread's.
void on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::future<void>> running;
  for (int i = 0; i < count; ++i) running.push_back(std::async(std::launch::async, body, i));
  std::exception_ptr first;
  for (auto& each : running) {
    try {
      each.get();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

// Numbers of one thread's operations on one stream: each has to be the next.
struct InOrder {
  int next = 0;
  bool kept = true;
  void ran(int number) { kept = kept && number == next++; }
};

void submit_and_wait(const std::string& schedule) {
  device().set_capacity(256);
  const StreamKey shared = new_stream();
  std::vector<InOrder> own(kThreads);
  std::vector<InOrder> common(kThreads);
  int shared_count = 0;
  on_threads(kThreads, [&](int thread) {
    const auto index = static_cast<std::size_t>(thread);
    const StreamKey stream = new_stream();
    Numbers numbers(index);
    PointRef last;
    int on_own = 0;
    int on_shared = 0;
    for (int i = 0; i < kOperations; ++i) {
      if (numbers.below(3) > 0) {
        launch(stream, [&own, index, number = on_own++] { own[index].ran(number); });
      } else {
        launch(shared, [&common, &shared_count, index, number = on_shared++] {
          common[index].ran(number);
          ++shared_count;
        });
      }
      switch (numbers.below(40)) {
        case 0:
          synchronize(stream);
          CHECK_EQUAL(own[index].next, on_own);  // no other thread submits to it
          break;
        case 1:
          if (last) device().synchronize_point(last);
          break;
        case 2:
          device().query_stream(shared);
          break;
        case 3:
        case 4:
        case 5:
          last = device().record(stream);
          device().wait(shared, last);
          break;
        case 6:
          device().wait(stream, device().record(shared));
          break;
        case 7:
          if (last) device().query_point(last);
          break;
        default:
          break;
      }
    }
    synchronize(shared);
    synchronize(stream);
    CHECK_EQUAL(own[index].next, on_own);
    CHECK_EQUAL(common[index].next, on_shared);
  });
  int on_shared = 0;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    CHECK(own[thread].kept);
    CHECK(common[thread].kept);
    on_shared += common[thread].next;
    CHECK_EQUAL(own[thread].next + common[thread].next, kOperations);
  }
  CHECK_EQUAL(shared_count, on_shared);
  CHECK_EQUAL(device().schedule_name(), schedule);
}

TEST_EACH_SCHEDULE(threads_submit_and_wait_on_their_own_and_on_shared_streams) { submit_and_wait(schedule); }

TEST(what_is_read_without_waiting_may_be_read_by_any_thread) {
  const Tracing tracing;
  const int index = fresh_index();
  // A thread for each, which shares nothing else with the others.
  const std::vector<std::function<std::uint64_t()>> readers{
      [] { return device().operations(); },
      [] { return static_cast<std::uint64_t>(device().pending()); },
      [] { return static_cast<std::uint64_t>(device().host_clock()); },
      [] { return static_cast<std::uint64_t>(device().schedule_name().size()); },
      [] { return device().schedule_seed(); },
      [] { return static_cast<std::uint64_t>(device().synchronizations().size()); },
      [] { return static_cast<std::uint64_t>(device().trace().size()); },
      [index] { return static_cast<std::uint64_t>(device().exists({index, 1})); },
      [index] { return Memory::instance().stats(index).allocations; },
      [] {  // sets what a waiting host reads
        device().set_hold_timeout(20);
        return std::uint64_t{1};
      },
  };
  const int count = static_cast<int>(readers.size());
  std::atomic<int> submitting{2};
  on_threads(count + 2, [&](int thread) {
    if (thread < count) {
      const auto& read = readers[static_cast<std::size_t>(thread)];
      std::uint64_t sum = 0;
      do {
        sum += read();
        std::this_thread::yield();
      } while (submitting > 0);
      CHECK(sum + read() > 0);
      return;
    }
    for (int i = 0; i < 200; ++i) {
      const StreamKey stream = i % 10 == 0 ? new_stream(index) : StreamKey{index, 0};
      Memory::instance().free(Memory::instance().allocate(stream, 64, kNoSource));
      launch(stream, [] {});
      device().count_synchronization("item");
      if (i % 50 == 0) device().set_schedule(schedule_names()[static_cast<std::size_t>(i / 50)], 1);
      device().set_capacity(128);
      device().set_hold_timeout(20);
      if (i % 10 == 0) synchronize(stream);
    }
    launch({index, 0}, [] {});  // something is pending for who reads late
    --submitting;
  });
}

TEST_EACH_SCHEDULE(threads_share_the_allocator) {
  const StreamKey shared = new_stream();
  const int index = fresh_index();
  std::atomic<int> wrong{0};
  on_threads(kThreads, [&](int thread) {
    const StreamKey own = new_stream(index);
    for (int i = 0; i < 200; ++i) {
      const auto block = Memory::instance().allocate(own, 100 + static_cast<std::size_t>(i % 7) * 300, kNoSource);
      const auto value = static_cast<unsigned char>(thread + 1);
      launch(own, [slab = block->slab, value] { static_cast<unsigned char*>(slab->data())[0] = value; });
      if (i % 3 == 0) {
        device().wait(shared, device().record(own));
        launch(shared, [slab = block->slab, value, &wrong] {
          if (static_cast<unsigned char*>(slab->data())[0] != value) ++wrong;
        });
        Memory::instance().record_stream(block, shared);
      }
      Memory::instance().free(block);
      if (i % 40 == 0) Memory::instance().empty_cache();
    }
    device().synchronize_device(index);
  });
  device().drain();
  CHECK_EQUAL(wrong.load(), 0);
  CHECK_EQUAL(Memory::instance().stats(index).allocated, 0U);
}

TEST(a_trace_of_many_threads_is_whole) {
  const Tracing tracing;
  std::atomic<bool> end{false};
  auto taker = std::async(std::launch::async, [&end] {
    std::vector<TraceRecord> all;
    while (!end) {
      for (TraceRecord& record : Tracing::take()) all.push_back(std::move(record));
    }
    return all;
  });
  on_threads(kThreads, [](int) {
    const StreamKey stream = new_stream();
    for (int i = 0; i < 200; ++i) launch(stream, [] {});
    synchronize(stream);
  });
  end = true;
  std::vector<TraceRecord> all = taker.get();
  for (TraceRecord& record : Tracing::take()) all.push_back(std::move(record));
  const auto launches = of_kind(all, RecordKind::Launch);
  CHECK_EQUAL(launches.size(), static_cast<std::size_t>(kThreads * 200));
  CHECK_EQUAL(of_kind(all, RecordKind::Ran).size(), launches.size());
  std::set<std::int32_t> threads;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    threads.insert(launches[i].thread);
    if (i > 0) CHECK(launches[i].seq > launches[i - 1].seq);
  }
  CHECK_EQUAL(threads.size(), static_cast<std::size_t>(kThreads));
}

TEST_EACH_SCHEDULE(a_failure_is_reported_to_one_of_the_hosts) {
  const StreamKey stream = new_stream();
  for (int round = 0; round < 10; ++round) {
    launch(stream, [] { throw std::runtime_error("once"); });
    std::atomic<int> reported{0};
    on_threads(kThreads, [&](int) {
      try {
        synchronize(stream);
      } catch (const DeviceError&) {
        ++reported;
      }
    });
    CHECK_EQUAL(reported.load(), 1);
  }
}

TEST(the_place_of_a_failure_is_described_without_the_devices_lock) {
  // To describe it needs the interpreter's lock, and its holder may be waiting for the device's.
  const StreamKey stream = new_stream();
  bool reachable = false;
  device().set_describe_source([&reachable](SourceId) {
    auto asked = std::async(std::launch::async, [] { return device().exists({0, 0}); });
    reachable = asked.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    return std::string("here");
  });
  Launch failing = work([] { throw std::runtime_error("no"); });
  failing.source = 1;
  device().launch(stream, std::move(failing));
  CHECK_THROWS(DeviceError, "submitted at here", synchronize(stream));
  CHECK(reachable);
}

TEST(collectives_of_a_program_end_while_other_threads_submit) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Program program(seed, 5, 200, true);
    std::atomic<bool> end{false};
    auto other = std::async(std::launch::async, [&end] {
      const StreamKey stream = new_stream();
      while (!end) {
        launch(stream, [] {});
        synchronize(stream);
      }
    });
    program.submit();
    device().drain();
    end = true;
    other.get();
    CHECK_EQUAL(program.broken_rule(), "");
    CHECK_EQUAL(program.log().size(), program.size());
  }
}

}  // namespace
}  // namespace native
