"""What orders two operations, what does not, and how a race is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from accel_streams._errors import TraceFormatError
from accel_streams.races import READ, WRITE, Access, Analyser, Race, Record
from race_programs import (
    BOTH,
    COMMUNICATOR,
    DEFAULT,
    REDUCTION,
    STREAM_NAMES,
    DoubleBuffer,
    Recorder,
    with_times,
)

P, Q = (0, 1), (0, 2)


def races_of(records: Iterable[Record]) -> list[Race]:
    analyser = Analyser()
    analyser.feed(records)
    return analyser.races(STREAM_NAMES)


def kinds(program: Recorder) -> list[str]:
    return [race.kind for race in races_of(program.records)]


@pytest.fixture
def program() -> Recorder:
    return Recorder()


def owned_by(program: Recorder, *streams: tuple[int, int]) -> int:
    """Return a block that the streams may use: its allocation is ordered before all they do."""
    block = program.alloc(streams[0])
    for stream in streams[1:]:
        program.edge(streams[0], stream)
    return block


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (WRITE, READ, "read-after-write"),
        (READ, WRITE, "write-after-read"),
        (WRITE, WRITE, "write-after-write"),
        (BOTH, READ, "read-after-write"),
        (BOTH, WRITE, "write-after-read"),
        (READ, BOTH, "write-after-read"),
        (BOTH, BOTH, "read-after-write"),
        (READ, READ, None),
    ],
)
def test_unordered_conflicts_are_named_by_what_the_data_suffers(
    program: Recorder, first: int, second: int, kind: str | None
) -> None:
    block = owned_by(program, P, Q)
    program.launch(P, (block, 0, 16, first))
    program.launch(Q, (block, 0, 16, second))
    assert kinds(program) == ([kind] if kind else [])


def test_an_event_orders_what_comes_before_its_recording_only(program: Recorder) -> None:
    block = owned_by(program, P, Q)
    program.write(P, block, 0, 8)
    program.record(P, "e")
    late = program.write(P, block, 8, 16)
    program.wait(Q, "e")
    read = program.read(Q, block)
    (race,) = races_of(program.records)
    assert (race.first.seq, race.second.seq) == (late, read)
    assert (race.lo, race.hi) == (8, 16)
    # The wait that exists is told, because it looks as if it were enough.
    assert "`reduction_stream` does wait for `side1`, but for an event recorded before" in race.note


def test_a_wait_keeps_the_recording_it_was_issued_for(program: Recorder) -> None:
    block = owned_by(program, P, Q)
    program.record(P, "e")
    program.wait(Q, "e")
    program.write(P, block)
    program.record(P, "e")
    program.read(Q, block)
    assert kinds(program) == ["read-after-write"]


def test_a_recorded_again_event_orders_at_the_next_wait(program: Recorder) -> None:
    block = owned_by(program, P, Q)
    program.record(P, "e")
    program.write(P, block)
    program.record(P, "e")
    program.wait(Q, "e")
    program.read(Q, block)
    assert kinds(program) == []


def test_order_passes_from_stream_to_stream(program: Recorder) -> None:
    block = owned_by(program, P, Q)
    program.write(P, block)
    program.edge(P, DEFAULT)
    program.edge(DEFAULT, Q)
    program.read(Q, block)
    assert kinds(program) == []


def test_submission_orders_nothing_between_streams(program: Recorder) -> None:
    block = owned_by(program, P, Q)
    program.write(P, block)
    for _ in range(5):
        program.launch(DEFAULT)
    program.read(Q, block)
    assert kinds(program) == ["read-after-write"]


@pytest.mark.parametrize("synchronise", ["stream", "event", "device"])
def test_what_the_host_waited_for_comes_before_all_it_submits_later(
    program: Recorder, synchronise: str
) -> None:
    block = owned_by(program, P, Q)
    program.write(P, block)
    program.record(P, "e")
    if synchronise == "stream":
        program.synchronize_stream(P, "item")
    elif synchronise == "event":
        program.synchronize_event("e")
    else:
        program.synchronize_device(0)
    program.read(Q, block)
    assert kinds(program) == []


def test_the_host_knows_only_of_the_stream_it_waited_for(program: Recorder) -> None:
    block = owned_by(program, P, Q)
    program.write(P, block)
    program.synchronize_stream(DEFAULT)
    program.read(Q, block)
    assert kinds(program) == ["read-after-write"]


def test_synchronising_one_device_says_nothing_of_another(program: Recorder) -> None:
    one, other = (0, 0), (1, 0)
    block = owned_by(program, one, other)
    program.write(other, block)
    program.synchronize_device(0)
    program.read(one, block)
    assert kinds(program) == ["read-after-write"]


def test_equal_stream_ids_of_two_devices_are_two_streams(program: Recorder) -> None:
    one, other = (0, 0), (1, 0)
    block = owned_by(program, one, other)
    program.write(one, block)
    program.read(other, block)
    (race,) = races_of(program.records)
    assert (race.first.stream, race.second.stream) == (one, other)


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ((0, 8), (8, 16), None),
        ((0, 8), (7, 16), (7, 8)),
        ((0, 16), (4, 12), (4, 12)),
        ((4, 12), (0, 16), (4, 12)),
        ((0, 0), (0, 16), None),
        ((4, 4), (0, 16), None),
    ],
)
def test_views_conflict_in_the_bytes_they_share(
    program: Recorder,
    first: tuple[int, int],
    second: tuple[int, int],
    overlap: tuple[int, int] | None,
) -> None:
    block = owned_by(program, P, Q)
    program.write(P, block, *first)
    program.write(Q, block, *second)
    assert [(race.lo, race.hi) for race in races_of(program.records)] == (
        [overlap] if overlap else []
    )


def test_every_stream_that_wrote_is_remembered(program: Recorder) -> None:
    block = owned_by(program, DEFAULT, P, Q)
    program.write(P, block, 0, 8)
    program.write(Q, block, 8, 16)
    program.edge(Q, DEFAULT)
    program.read(DEFAULT, block)
    (race,) = races_of(program.records)
    assert race.first.stream == P


def test_reading_memory_that_nobody_wrote_is_no_race(program: Recorder) -> None:
    block = program.alloc(P)
    program.read(Q, block)
    assert kinds(program) == []


def test_writing_memory_that_was_just_handed_out_needs_its_stream(program: Recorder) -> None:
    block = program.alloc(P)
    program.write(Q, block)
    (race,) = races_of(program.records)
    assert (race.kind, race.first.name) == ("write-after-write", "alloc")
    assert "must wait for `side1` (an event recorded after the allocation" in race.missing_edge


class TestFree:
    @pytest.fixture
    def block(self, program: Recorder) -> int:
        block = owned_by(program, P, Q)
        program.write(P, block)
        program.edge(P, Q)
        return block

    def test_reuse_while_another_stream_reads(self, program: Recorder, block: int) -> None:
        program.read(Q, block)
        program.free(block)
        program.reuse(block)
        (race,) = races_of(program.records)
        assert (race.kind, race.second.name) == ("use-after-free", "reuse")
        assert "record_stream(`reduction_stream`)" in race.missing_edge

    def test_memory_that_is_never_handed_out_again_harms_nobody(
        self, program: Recorder, block: int
    ) -> None:
        program.read(Q, block)
        program.free(block)
        assert kinds(program) == []

    def test_a_wait_of_the_owner_before_reuse_is_enough(
        self, program: Recorder, block: int
    ) -> None:
        program.read(Q, block)
        program.free(block)
        program.edge(Q, P)
        program.reuse(block)
        assert kinds(program) == []

    def test_record_stream_covers_its_stream(self, program: Recorder, block: int) -> None:
        program.record_stream(block, Q)
        program.read(Q, block)
        program.free(block)
        program.reuse(block)
        assert kinds(program) == []

    def test_record_stream_covers_no_other_stream(self, program: Recorder, block: int) -> None:
        program.record_stream(block, DEFAULT)
        program.read(Q, block)
        program.free(block)
        program.reuse(block)
        assert kinds(program) == ["use-after-free"]

    def test_record_stream_covers_what_its_stream_waited_for(
        self, program: Recorder, block: int
    ) -> None:
        program.edge(P, DEFAULT)
        program.read(DEFAULT, block)  # of this stream the allocator knows nothing
        program.edge(DEFAULT, Q)
        program.record_stream(block, Q)
        program.read(Q, block)
        program.free(block)
        program.reuse(block)
        assert kinds(program) == []

    def test_what_the_freeing_thread_waited_for_is_over(
        self, program: Recorder, block: int
    ) -> None:
        program.read(Q, block)
        program.synchronize_stream(Q)
        program.free(block)
        program.thread = 1
        program.reuse(block)
        assert kinds(program) == []

    def test_record_stream_covers_nothing_after_the_free(
        self, program: Recorder, block: int
    ) -> None:
        # The allocator looks at the stream when the memory is freed, and never again.
        program.record_stream(block, Q)
        program.read(Q, block)
        program.free(block)
        late = program.read(Q, block)
        program.reuse(block)
        (race,) = races_of(program.records)
        assert (race.kind, race.first.seq) == ("use-after-free", late)

    def test_record_stream_is_no_order_between_streams(self, program: Recorder, block: int) -> None:
        other = owned_by(program, P, Q)
        program.write(Q, other)
        program.record_stream(block, Q)
        program.free(block)
        program.reuse(block)
        program.read(P, other)
        assert kinds(program) == ["read-after-write"]

    def test_a_new_allocation_has_no_history(self, program: Recorder, block: int) -> None:
        program.record_stream(block, Q)
        program.read(Q, block)
        program.free(block)
        program.reuse(block)
        fresh = program.alloc(P)
        program.write(P, fresh)
        assert kinds(program) == []


class TestWords:
    def test_the_reduction_must_wait_for_every_producer(self) -> None:
        races = races_of(DoubleBuffer(DoubleBuffer.ALL - {"producers"}).records)
        assert {race.kind for race in races} == {"read-after-write"}
        assert races[0].buffer == "ipg_buckets[bf16].buffer[0]"
        assert races[0].missing_edge == (
            "stream `reduction_stream` must wait for `side1` (an event recorded after its `copy_` "
            "at stage_1_and_2.py:1456) before `div_` at stage_1_and_2.py:1497"
        )
        # Also said of the collective: what the program can make wait is the stream that issues it.
        for race in races:
            assert race.missing_edge.startswith("stream `reduction_stream` must wait for `side1`")

    def test_a_producer_must_wait_for_the_last_reduction(self) -> None:
        races = races_of(DoubleBuffer(DoubleBuffer.ALL - {"release"}).records)
        assert {race.kind for race in races} == {"write-after-read"}
        # The first one told is the wait that mends all: after the last operation of the reduction.
        assert races[0].missing_edge == (
            "stream `init` must wait for `reduction_stream` (an event recorded after its `copy_` "
            "at stage_1_and_2.py:1528) before `copy_` at stage_1_and_2.py:1456"
        )
        assert ("reduction_stream", "side1") in races[0].streams

    def test_a_producer_must_wait_for_the_allocation(self) -> None:
        races = races_of(DoubleBuffer(DoubleBuffer.ALL - {"allocation"}).records)
        assert {race.first.name for race in races} == {"alloc"}
        assert {race.second.stream_name for race in races} == {"side1"}

    def test_nothing_is_said_when_all_waits_are_there(self) -> None:
        assert races_of(DoubleBuffer().records) == []

    def test_races_of_one_pair_of_places_are_one_report(self) -> None:
        few = races_of(DoubleBuffer(frozenset({"allocation", "release"}), fills=2).records)
        many = races_of(DoubleBuffer(frozenset({"allocation", "release"}), fills=20).records)
        assert len(many) == len(few)
        assert sum(race.count for race in many) > 5 * sum(race.count for race in few)

    @pytest.mark.parametrize(("missing", "waits"), [("producers", 1), ("release", 1)])
    def test_races_that_one_wait_mends_have_one_cause(self, missing: str, waits: int) -> None:
        races = races_of(DoubleBuffer(DoubleBuffer.ALL - {missing}).records)
        assert len(races) > waits
        assert {race.cause for race in races} == set(range(waits))

    def test_each_missing_wait_is_a_cause_of_its_own(self) -> None:
        alone = [
            {
                (race.first.source, race.second.source)
                for race in races_of(DoubleBuffer(waits).records)
            }
            for waits in (DoubleBuffer.ALL - {"producers"}, DoubleBuffer.ALL - {"release"})
        ]
        races = races_of(DoubleBuffer(frozenset({"allocation"})).records)
        causes = [
            {race.cause for race in races if (race.first.source, race.second.source) in places}
            for places in alone
        ]
        assert all(causes)
        assert not causes[0] & causes[1]

    def test_a_wait_too_early_or_on_another_stream_mends_nothing(self, program: Recorder) -> None:
        block, other = owned_by(program, P, Q, DEFAULT), owned_by(program, P, Q, DEFAULT)
        program.write(P, block)
        program.read(Q, block)
        program.write(P, other)  # after what the first wait would cover
        program.read(Q, other)
        program.read(DEFAULT, block)  # another stream
        races = races_of(program.records)
        assert [race.cause for race in races] == [0, 1, 2]

    def test_a_collective_nobody_waited_for(self, program: Recorder) -> None:
        block = owned_by(program, REDUCTION)
        program.collective(REDUCTION, COMMUNICATOR, (block, 0, 16, BOTH))
        program.write(REDUCTION, block)
        (race,) = races_of(program.records)
        assert race.missing_edge.startswith(
            "stream `reduction_stream` must wait for the end of `fccl::all_reduce` at program.py:"
        )
        assert "Work.wait()" in race.missing_edge

    def test_a_buffer_without_a_name_is_told_by_its_birth(self, program: Recorder) -> None:
        block = program.alloc(P, 4096)
        program.write(Q, block)
        assert races_of(program.records)[0].buffer == "4 KiB allocated at program.py:1 in main"

    def test_a_buffer_older_than_the_trace(self, program: Recorder) -> None:
        program.write(P, 77)
        program.write(Q, 77)
        assert "before the trace began" in races_of(program.records)[0].buffer

    def test_a_name_given_after_the_race_counts(self, program: Recorder) -> None:
        block = owned_by(program, P, Q)
        source = ("a.py", 3, "f")
        for _ in range(2):
            program.add("launch", P, "op", ((block, 0, 16, WRITE),), source)
            program.add("launch", Q, "op", ((block, 0, 16, WRITE),), source)
            program.name(block, "weights")
        (race,) = races_of(program.records)
        assert (race.buffer, race.count) == ("weights", 3)

    def test_streams_without_names_are_told_by_number(self, program: Recorder) -> None:
        block = owned_by(program, (0, 0), (1, 7))
        program.write((0, 0), block)
        program.read((1, 7), block)
        analyser = Analyser(device_type="npu")
        analyser.feed(program.records)
        (race,) = analyser.races()
        assert race.first.stream_name == "default stream of npu:0"
        assert race.second.stream_name == "stream 7 of npu:1"
        assert race.missing_edge.startswith(
            "`stream 7 of npu:1` must wait for `default stream of npu:0` (an event"
        )

    def test_operations_without_a_source_are_told_by_name(self, program: Recorder) -> None:
        block = owned_by(program, P, Q)
        program.add("launch", P, "aten::add_", ((block, 0, 16, WRITE),), None)
        program.add("launch", Q, "aten::mul_", ((block, 0, 16, WRITE),), None)
        program.add("launch", Q, "aten::sub_", ((block, 0, 16, WRITE),), None)
        races = races_of(program.records)
        assert [race.second.name for race in races] == ["aten::mul_", "aten::sub_"]
        assert "`add_` at an unknown place" in races[0].missing_edge


class TestThreads:
    """What one host thread waited for, another knows only if it comes after it."""

    @pytest.fixture
    def block(self, program: Recorder) -> int:
        block = owned_by(program, P, Q)
        program.write(P, block)
        program.synchronize_stream(P)
        return block

    def test_a_sync_in_another_thread_orders_nothing(self, program: Recorder, block: int) -> None:
        program.thread = 1
        program.read(Q, block)
        assert kinds(program) == ["read-after-write"]

    def test_a_hand_over_does(self, program: Recorder, block: int) -> None:
        program.hand_over(1)
        program.read(Q, block)
        assert kinds(program) == []

    def test_a_hand_over_before_the_sync_does_not(self, program: Recorder) -> None:
        block = owned_by(program, P, Q)
        program.write(P, block)
        program.release(1)
        program.synchronize_stream(P)
        program.thread = 1
        program.acquire(1)
        program.read(Q, block)
        assert kinds(program) == ["read-after-write"]

    def test_what_was_handed_over_is_handed_on(self, program: Recorder, block: int) -> None:
        program.hand_over(1)
        program.hand_over(2, token=2)
        program.read(Q, block)
        assert kinds(program) == []

    def test_memory_comes_from_its_thread(self, program: Recorder, block: int) -> None:
        fresh = program.alloc(Q)
        program.thread = 1
        program.launch(Q, (fresh, 0, 16, WRITE), (block, 0, 16, READ))
        assert kinds(program) == []

    def test_a_recording_comes_from_its_thread(self, program: Recorder, block: int) -> None:
        program.record(DEFAULT, "e")
        program.thread = 1
        program.wait(DEFAULT, "e")
        program.read(Q, block)
        assert kinds(program) == []

    def test_one_stream_is_in_order_whoever_submits(self, program: Recorder) -> None:
        block = owned_by(program, P)
        program.write(P, block)
        program.thread = 1
        program.write(P, block)
        assert kinds(program) == []


class TestStrides:
    """Rows of 4 bytes: columns of one byte each."""

    COLUMN = (1, 4, 4)

    def meet(self, program: Recorder, first: Access, second: Access) -> list[str]:
        block = owned_by(program, P, Q)
        program.launch(P, (block, *first[1:]))
        program.launch(Q, (block, *second[1:]))
        return kinds(program)

    def test_interleaved_columns_are_no_race(self, program: Recorder) -> None:
        first, second = (0, 1, 14, WRITE, self.COLUMN), (0, 2, 15, WRITE, self.COLUMN)
        assert self.meet(program, first, second) == []

    def test_one_column_is(self, program: Recorder) -> None:
        first = second = (0, 1, 14, WRITE, self.COLUMN)
        assert self.meet(program, first, second) == ["write-after-write"]

    def test_a_row_meets_every_column(self, program: Recorder) -> None:
        first, second = (0, 2, 15, WRITE, self.COLUMN), (0, 4, 8, READ)
        assert self.meet(program, first, second) == ["read-after-write"]


def test_an_operation_with_unknown_accesses_is_listed(program: Recorder) -> None:
    for name in ("triton::f", "triton::f", "custom"):
        program.add("launch", P, name, None, None)
    analyser = Analyser()
    analyser.feed(program.records)
    assert analyser.races() == []
    assert analyser.operations == 3
    assert analyser.unseen == [
        "triton::f (2 times): nobody knows which memory it touches",
        "custom (1 time): nobody knows which memory it touches",
    ]


def test_launches_that_were_left_out_count(program: Recorder) -> None:
    program.launch(P)
    program.add("left_out", 41)
    analyser = Analyser()
    analyser.feed(program.records)
    assert analyser.operations == 42


class TestMemory:
    def test_it_is_bounded_by_what_is_in_use_not_by_the_trace(self) -> None:
        analyser = Analyser()
        kept = []
        program = Recorder()
        block = owned_by(program, P, Q)
        for step in range(400):
            for lo in range(0, 16, 4):
                program.edge(Q, P)
                program.write(P, block, lo, lo + 4)
            temporary = program.alloc(P)
            program.write(P, temporary)
            program.edge(P, Q)
            program.read(Q, block)
            program.free(temporary)
            program.reuse(temporary)
            if step % 10 == 0:
                program.synchronize_device(0)
            analyser.feed(program.records)
            program.records = []
            kept.append((analyser.kept_accesses, len(analyser._clocks._recordings)))
        assert max(entries for entries, _ in kept) <= 2 * (4 + 2)
        assert max(recordings for _, recordings in kept) <= 600
        assert analyser.races() == []

    def test_ever_new_views_are_tidied(self) -> None:
        analyser = Analyser()
        program = Recorder()
        block = owned_by(program, P, Q)
        for number in range(5000):
            program.launch(P, (block, 0, number + 1, BOTH))
        program.write(Q, block, 0, 1)
        analyser.feed(program.records)
        assert analyser.kept_accesses < 1000
        assert len(analyser.races()) >= 1


BAD: list[tuple[Any, str]] = [
    (("launch", 9, 0, P, "op", ((1, 0, 16, 7),), None), "malformed"),
    (("launch", 9, 0, P, "op", ((1, 8, 4, 1),), None), "0 <= lo <= hi"),
    (("launch", 9, 0, P, "op", ((1, 0, 16),), None), "malformed"),
    (("launch", 9, 0, P, "op", ((1, 0, 16, 1, ()),), None), "malformed"),
    (("launch", 9, 0, P, "op", ((1, 0, 16, 1, (4, 2)),), None), "malformed"),
    (("launch", 9, 0, P, "op", ((1, 0, 16, 1, (4, 2, 0)),), None), "malformed"),
    (("launch", 9, 0, P, "op", ((1, 0, 16, 1, (4, 9, 8)),), None), "malformed"),
    (("launch", 9, 0, P, "op", 5, None), "malformed"),
    (("acquire", 9, 0), "(kind, seq, thread, token)"),
    (("launch", 9, 0, P, "op"), "(kind, seq, thread, stream, name, accesses, source)"),
    (("alloc", 9, 0, P, 1), "(kind, seq, thread, stream, block, nbytes, source)"),
    (("wait", 9, 0, P, 12, None), "comes later"),
    (("teleport", 9, 0), "unknown kind of record 'teleport'"),
    (([], 9, 0), "malformed"),
    ((), "malformed"),
    (17, "malformed"),
    (("record", 0, 0, P, None), "order of submission"),
    (("launch", 0, 0, P, "op", (), None), "order of submission"),
]


@pytest.mark.parametrize(("record", "message"), BAD)
def test_a_bad_record_is_an_error_never_no_races(record: Any, message: str) -> None:
    analyser = Analyser()
    analyser.feed([("alloc", 5, 0, P, 1, 16, None)])
    with pytest.raises(TraceFormatError) as raised:
        analyser.feed([record])
    assert message in str(raised.value)
    # Not even when whoever feeds it has lost the error on the way.
    with pytest.raises(TraceFormatError, match="has no result"):
        analyser.races()
    with pytest.raises(TraceFormatError, match="has no result"):
        analyser.feed([("alloc", 10, 0, P, 2, 16, None)])


def test_when_operations_ran_orders_nothing(program: Recorder) -> None:
    block = owned_by(program, P, Q)
    program.write(P, block)
    program.read(Q, block)
    assert races_of(with_times(program.records)) == races_of(program.records)


def test_operations_are_counted(program: Recorder) -> None:
    block = owned_by(program, P, Q)
    program.write(P, block)
    program.read(Q, block)
    analyser = Analyser()
    analyser.feed(with_times(program.records))
    assert (analyser.operations, analyser.race_count) == (2, 1)
