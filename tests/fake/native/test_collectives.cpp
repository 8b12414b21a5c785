// Collectives begin early and finish late, so that processes that wait for each other always go on.
#include "program.h"

namespace native {
namespace {

Launch collective(PeerCheck& peers, Log& log, int number) {
  peers.submitted.push_back(number);
  Launch launch;
  launch.name = "all_reduce";
  launch.async = std::make_unique<Collective>(peers, log, number);
  return launch;
}

TEST_EACH_SCHEDULE(a_collective_is_ordered_like_any_work_of_its_stream) {
  const StreamKey compute = new_stream();
  const StreamKey communicator = new_stream();
  Log log;
  PeerCheck peers;
  launch(compute, log, 1);
  device().wait(communicator, device().record(compute));
  device().launch(communicator, collective(peers, log, 2));
  const PointRef done = device().record(communicator);
  launch(compute, log, 3);
  device().wait(compute, done);
  launch(compute, log, 4);
  synchronize(compute);
  CHECK_EQUAL(peers.failure, "");
  CHECK(text(log) == "1 2 3 4 " || text(log) == "1 3 2 4 ");
}

TEST_EACH_SCHEDULE(collectives_of_a_communicator_finish_in_order) {
  const StreamKey stream = new_stream();
  Log log;
  PeerCheck peers;
  Log expected;
  for (int i = 0; i < 10; ++i) {
    device().launch(stream, collective(peers, log, i));
    expected.push_back(i);
  }
  synchronize(stream);
  CHECK_EQUAL(text(log), text(expected));
  CHECK_EQUAL(peers.failure, "");
}

TEST_EACH_SCHEDULE(a_collective_finishes_only_after_all_earlier_ones_have_begun) {
  // Two communicators; the earlier collective is far back in its stream when the host waits for the later one.
  const StreamKey a = new_stream();
  const StreamKey b = new_stream();
  Log log;
  PeerCheck peers;
  for (int i = 0; i < 10; ++i) launch(a, log, i);
  device().launch(a, collective(peers, log, 100));
  device().launch(b, collective(peers, log, 101));
  synchronize(b);
  CHECK_EQUAL(peers.failure, "");
  CHECK(peers.begun.count(100) == 1);
  device().drain();
  CHECK_EQUAL(log.size(), 12U);
}

TEST_EACH_SCHEDULE(random_programs_with_two_communicators_end) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Program program(seed, 5, 160, true);
    program.submit();
    synchronize(program.key(static_cast<int>(seed) % 5));
    device().drain();
    CHECK_EQUAL(program.broken_rule(), "");
    CHECK_EQUAL(program.log().size(), program.size());
  }
}

TEST_EACH_SCHEDULE(a_collective_behind_a_gate_does_not_begin) {
  const StreamKey stream = new_stream();
  Log log;
  PeerCheck peers;
  Held held(stream);
  device().launch(stream, collective(peers, log, 1));
  for (int i = 0; i < 5; ++i) CHECK(!device().query_stream(stream));
  CHECK(peers.begun.empty());
  held.open();
  synchronize(stream);
  CHECK_EQUAL(text(log), "1 ");
}

TEST_EACH_SCHEDULE(a_polling_host_finishes_a_collective) {
  const StreamKey stream = new_stream();
  Log log;
  PeerCheck peers;
  device().launch(stream, collective(peers, log, 1));
  int polls = 0;
  while (!device().query_stream(stream)) CHECK(++polls < 10);
  CHECK_EQUAL(peers.failure, "");
  CHECK_EQUAL(text(log), "1 ");
}

}  // namespace
}  // namespace native
