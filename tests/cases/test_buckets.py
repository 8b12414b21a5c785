"""Cases 1 to 4: one gradient bucket, several streams, with the DeepSpeed that is installed.

1. Two producers of one bucket (DeepSpeed #8061, #8080).
2. Buffers used in turn, with several communication dtypes (#7805, #6993, #7188, #7371).
3. Communication slower than computation (#5606, #5545).
4. The other side of 3: reductions run beside the backward (#8364, #8366, #7804).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version

from bucket_cases import AS_SHIPPED, OURS, Buckets, Train
from hook_streams import DEEPSPEED

# Starting the processes may build the device's extension.
pytestmark = pytest.mark.timeout(600)

SCHEDULES = ("in-order", "fifo", "lifo", "mru", "lru", "lazy", "priority:1", "random:1")

# A random order does not show every release wrong. These do, of all that the tests run with.
SHOWING = (*SCHEDULES, "priority:3", "priority:7")

# p2's hook, on A, finds the bucket full and has it reduced.
TWO_PRODUCERS = Buckets([(64, "fp32", "A"), (64, "fp32", "B"), (64, "fp32", "A")], bucket=128)
IN_TURN = Buckets([(64, dtype, "A") for _ in range(6) for dtype in ("bf16", "fp32")], 128)
FIVE_FILLS = Buckets([(64, "fp32", name) for _ in range(5) for name in "AB"], 128, hold=True)


def edges(races: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Return each race as its kind and, after "waits for", who should have waited for whom."""
    return {(race["kind"], race["second"]["stream"], race["first"]["stream"]) for race in races}


class TestTwoProducers:
    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_both_gradients_arrive_under_every_schedule(
        self, train_pair: Train, schedule: str
    ) -> None:
        outcome = train_pair(TWO_PRODUCERS, OURS, schedule)
        assert outcome.is_right(TWO_PRODUCERS)
        assert outcome.races == []

    def test_with_the_wait_of_before_0_19_3_one_is_lost(self, train_pair: Train) -> None:
        case = replace(TWO_PRODUCERS, old_wait=True)
        outcomes = (train_pair(case, AS_SHIPPED, schedule) for schedule in SHOWING)
        assert not all(outcome.is_right(case) for outcome in outcomes)
        unwritten = [
            race
            for race in train_pair(case, AS_SHIPPED).races
            if race["kind"] == "read-after-write"
        ]
        assert {
            (race["first"]["operation"], race["first"]["stream"], race["second"]["stream"])
            for race in unwritten
        } == {("aten::copy_", "B", "reduction_stream")}
        assert all(
            race["missing_edge"].startswith("stream `reduction_stream` must wait for `B`")
            for race in unwritten
        )

    def test_with_that_wait_and_ours_both_arrive(self, train_pair: Train) -> None:
        case = replace(TWO_PRODUCERS, old_wait=True)
        outcome = train_pair(case, OURS, "lazy")
        assert outcome.is_right(case)
        assert outcome.races == []

    def test_without_our_wait_the_race_is_named(self, train_pair: Train) -> None:
        case = replace(TWO_PRODUCERS, old_wait=True, skip_edge="bucket: producer->read")
        found = edges(train_pair(case).races)
        assert ("read-after-write", "reduction_stream", "B") in found


class TestBuffersInTurn:
    """Where DeepSpeed has a bucket for each communication dtype, from 0.17.2 on; else with one."""

    @pytest.fixture
    def case(self) -> Buckets:
        return replace(IN_TURN, autocast=Version("0.17.2") <= DEEPSPEED)

    def test_it_trains_what_one_giant_bucket_does(self, train: Train, case: Buckets) -> None:
        giant = train(replace(case, bucket=1 << 20))
        assert giant.races == []
        for schedule in ("in-order", "lazy", "priority:1"):
            outcome = train(case, OURS, schedule)
            assert outcome.parameters == giant.parameters, schedule
            assert outcome.races == []

    @pytest.mark.skipif(
        Version("0.17.2") > DEEPSPEED, reason="buckets of several dtypes came with 0.17.2"
    )
    def test_an_index_that_is_reset_overwrites_what_is_read(
        self, train: Train, case: Buckets
    ) -> None:
        giant = train(replace(case, bucket=1 << 20), AS_SHIPPED)
        # As 0.17.2 to 0.18.2 did by themselves.
        broken = replace(case, reset_index=True)
        outcome = train(broken, AS_SHIPPED, "lazy")
        assert outcome.parameters != giant.parameters
        assert ("write-after-read", "A", "reduction_stream") in edges(outcome.races)

    @pytest.mark.skipif(
        not Version("0.17.2") <= DEEPSPEED < Version("0.18.3"), reason="of 0.17.2 to 0.18.2"
    )
    def test_deepspeed_as_shipped_did_so(self, train: Train, case: Buckets) -> None:
        giant = train(replace(case, bucket=1 << 20), AS_SHIPPED)
        outcome = train(case, AS_SHIPPED, "lazy")
        assert outcome.parameters != giant.parameters
        assert ("write-after-read", "A", "reduction_stream") in edges(outcome.races)


class TestSlowCommunication:
    @pytest.mark.parametrize("schedule", ["in-order", "lazy", "lifo"])
    def test_nothing_is_overwritten_before_it_was_read(self, train: Train, schedule: str) -> None:
        outcome = train(FIVE_FILLS, OURS, schedule)
        assert outcome.is_right(FIVE_FILLS)
        assert outcome.races == []

    def test_deepspeed_as_shipped_overwrites(self, train: Train) -> None:
        outcome = train(FIVE_FILLS, AS_SHIPPED)
        assert not outcome.is_right(FIVE_FILLS)
        assert "write-after-read" in {race["kind"] for race in outcome.races}

    def test_without_our_wait_it_is_overwritten(self, train: Train) -> None:
        broken = replace(FIVE_FILLS, skip_edge="bucket: release->write")
        outcome = train(broken)
        assert not outcome.is_right(broken)
        assert {race["kind"] for race in outcome.races} == {"write-after-read"}


class TestOverlap:
    """On the virtual clock: k buckets that each take c to compute and c to reduce."""

    K, C = 6, 1_000_000
    CASE = Buckets([(64, "fp32", "A")] * K, bucket=64, compute_ns=C, communicate_ns=C)
    TWO_STREAMS = replace(CASE, parameters=[(64, "fp32", name) for name in "AB" * (K // 2)])

    # Besides the k computations. The hook that finds a bucket full comes after the next computation
    # was submitted; on one stream that counts as use of the bucket, because the user's own hooks
    # may read gradients in it there. Ours is not to be less careful than DeepSpeed.
    @pytest.mark.parametrize(
        ("case", "more"), [(CASE, 2), (TWO_STREAMS, 1)], ids=["one stream", "two streams"]
    )
    def test_a_reduction_runs_beside_the_next_computation(
        self, train: Train, case: Buckets, more: int
    ) -> None:
        outcome = train(case)
        assert outcome.is_right(case)
        assert outcome.races == []
        # Not the first step: a second stream is known only once it has been seen.
        assert max(outcome.makespans[0][1:]) < 1.02 * (self.K + more) * self.C

    def test_deepspeed_as_shipped_is_no_faster(self, train: Train) -> None:
        shipped, ours = train(self.CASE, AS_SHIPPED), train(self.CASE)
        # But for some operations more, of a thousandth of the time of a reduction each.
        assert max(ours.makespans[0]) < 1.001 * max(shipped.makespans[0])

    def test_waiting_for_each_reduction_takes_twice_as_long(self, train: Train) -> None:
        outcome = train(self.CASE, "sync")
        assert min(outcome.makespans[0]) > 0.98 * 2 * self.K * self.C
