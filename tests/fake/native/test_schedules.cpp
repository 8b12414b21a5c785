// What holds of random programs under every schedule, and what each schedule is for.
#include <algorithm>
#include <map>
#include <set>

#include "program.h"

namespace native {
namespace {

constexpr int kPrograms = 8;

TEST_EACH_SCHEDULE(a_run_keeps_every_edge_of_the_program) {
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
    Program program(seed, 2 + static_cast<int>(seed % 5), 120);
    program.submit();
    device().drain();
    CHECK_EQUAL(program.broken_rule(), "");
    CHECK_EQUAL(program.log().size(), program.size());
  }
}

TEST_EACH_SCHEDULE(a_run_with_polls_and_a_small_queue_keeps_every_edge) {
  device().set_capacity(32);
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
    Program program(seed, 4, 120, true);
    program.submit();
    for (int poll = 0; poll < 40; ++poll) device().query_stream(program.key(poll % 4));
    for (int stream = 3; stream >= 0; --stream) {
      synchronize(program.key(stream));
      const Which ran = program.ran();
      const Which needed = program.needed_from(stream);
      for (std::size_t i = 0; i < needed.size(); ++i) CHECK(ran[i] || !needed[i]);
    }
    CHECK_EQUAL(program.broken_rule(), "");
    CHECK_EQUAL(program.log().size(), program.size());
  }
}

TEST(in_order_runs_in_the_order_of_submission) {
  Program program(3, 5, 200);
  program.submit();
  device().drain();
  const std::vector<int> order = program.log().numbers();
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST(lazy_runs_only_what_the_host_waits_for) {
  device().set_schedule("lazy", 0);
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
    Program program(seed, 5, 120);
    program.submit();
    for (int stream = program.streams() - 1; stream >= 0; --stream) {
      synchronize(program.key(stream));
      CHECK(program.ran() == program.needed_from(stream));
    }
    CHECK_EQUAL(program.broken_rule(), "");
  }
}

TEST(lazy_runs_only_what_the_host_polls_for) {
  device().set_schedule("lazy", 0);
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  const StreamKey c = new_stream();
  Log log;
  launch(a, log, 1);
  launch(b, log, 2);
  launch(c, log, 3);
  device().wait(c, device().record(b));
  while (!device().query_stream(c)) {
  }
  CHECK(!contains(log, 1));
  CHECK_EQUAL(log.size(), 2U);
}

TEST(lazy_begins_the_collectives_that_come_first_and_nothing_else) {
  // The one that the host waits for can finish only after the earlier one of the other communicator has begun.
  device().set_schedule("lazy", 0);
  const StreamKey idle = new_stream();
  const StreamKey before = new_stream();
  const StreamKey first = new_stream();
  const StreamKey second = new_stream();
  Log log;
  PeerCheck peers;
  launch(idle, log, 100);
  launch(before, log, 1);
  launch(before, log, 2);
  device().wait(first, device().record(before));
  launch(before, log, 101);
  const auto collective = [&](StreamKey stream, int number) {
    peers.submitted.push_back(number);
    Launch launch;
    launch.async = std::make_unique<Collective>(peers, log, number);
    device().launch(stream, std::move(launch));
  };
  collective(first, 3);
  launch(first, log, 102);
  collective(second, 4);
  synchronize(second);
  CHECK_EQUAL(peers.failure, "");
  CHECK_EQUAL(text(log), "1 2 4 ");
  device().drain();
}

// When each operation of a program ran, in the time of the device.
std::map<std::uint64_t, std::pair<Nanoseconds, Nanoseconds>> times_of(std::uint64_t seed) {
  const Tracing tracing;
  Program program(seed, 5, 120, seed % 2 == 1);
  program.submit();
  const std::uint64_t base = Tracing::take().front().seq;
  device().drain();
  std::map<std::uint64_t, std::pair<Nanoseconds, Nanoseconds>> out;
  for (const TraceRecord& ran : of_kind(Tracing::take(), RecordKind::Ran)) {
    out[ran.seq - base] = {ran.first - program.start(), ran.second - program.start()};
  }
  return out;
}

TEST_EACH_SCHEDULE(the_devices_time_does_not_depend_on_the_schedule) {
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
    device().set_schedule("in-order", 0);
    const auto expected = times_of(seed);
    device().set_schedule(schedule, 5);
    CHECK_EQUAL(expected.size(), 120U);
    CHECK(times_of(seed) == expected);
  }
}

TEST(the_devices_time_has_streams_side_by_side) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  const Nanoseconds start = device().host_clock();
  const auto sleep = [](StreamKey stream, Nanoseconds cost) {
    Launch launch;
    launch.cost = cost;
    device().launch(stream, std::move(launch));
  };
  sleep(a, 1'000'000);
  sleep(b, 3'000'000);
  const PointRef of_b = device().record(b);
  device().wait(a, of_b);
  const PointRef of_a = device().record(a);
  synchronize(a);
  CHECK(of_b->time - start >= 3'000'000);
  CHECK(of_a->time >= of_b->time);
  CHECK(of_a->time - start < 3'100'000);
  CHECK(device().host_clock() >= of_a->time);  // the host waited for it
}

TEST(an_operation_takes_longer_the_more_it_touches) {
  const StreamKey stream = new_stream();
  const auto cost = [stream](std::int64_t bytes) {
    synchronize(stream);
    const PointRef start = device().record(stream);
    Launch launch;
    launch.accesses = {{1, 0, bytes, Mode::Read}, {2, 0, bytes, Mode::Write}};
    device().launch(stream, std::move(launch));
    const PointRef end = device().record(stream);
    device().synchronize_point(end);
    return end->time - start->time;
  };
  const Nanoseconds small = cost(0);
  CHECK(small > 0);
  CHECK_EQUAL(cost(1'000'000) - small, 2 * 1'000'000 / 100);
}

// Two streams with work and no edges between them: a schedule's own choices.
Log choices(const std::string& schedule, std::uint64_t seed) {
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  device().set_schedule(schedule, seed);
  Log log;
  for (int i = 0; i < 8; ++i) {
    launch(a, log, 1);
    launch(b, log, 2);
  }
  device().drain();
  return log;
}

TEST(schedules_order_streams_as_their_names_say) {
  const std::string first_a = "1 1 1 1 1 1 1 1 2 2 2 2 2 2 2 2 ";
  const std::string first_b = "2 2 2 2 2 2 2 2 1 1 1 1 1 1 1 1 ";
  const std::string in_turns = "1 2 1 2 1 2 1 2 1 2 1 2 1 2 1 2 ";
  CHECK_EQUAL(text(choices("in-order", 0)), in_turns);
  CHECK_EQUAL(text(choices("fifo", 0)), first_a);
  CHECK_EQUAL(text(choices("lifo", 0)), first_b);
  CHECK_EQUAL(text(choices("mru", 0)), first_a);
  CHECK_EQUAL(text(choices("lru", 0)), in_turns);
}

TEST(priority_runs_one_stream_ahead_of_the_other_and_either_comes_first_under_some_seed) {
  std::set<std::string> orders;
  int changes_midway = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Log log = choices("priority", seed);
    int changes = 0;
    for (std::size_t i = 1; i < log.size(); ++i) changes += log[i] != log[i - 1] ? 1 : 0;
    if (changes > 1) ++changes_midway;
    orders.insert(text(log));
  }
  CHECK(orders.size() >= 2);
  CHECK(changes_midway <= 8);  // the order is drawn again now and then, and only then
}

TEST(random_mixes_streams) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) orders.insert(text(choices("random", seed)));
  CHECK(orders.size() >= 15);
}

}  // namespace
}  // namespace native
