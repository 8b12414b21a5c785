"""The analyser against judges that share no code with it: no missed pair, no false alarm."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_streams.races import Analyser, Record
from accel_streams.races._clocks import Clocks, HostClock, StreamClock
from accel_streams.races._memory import Block, Cell
from brute_force import by_closure, judge, may_report
from race_programs import random_program

PROFILE = settings(max_examples=300)
# Every choice of the program is hypothesis's, so that what fails is shrunk to a small program.
SHRINKING = st.randoms(use_true_random=False)
# Many times faster, for what the test above would have shrunk.
SEEDED = st.integers(0, 2**32 - 1).map(random.Random)


def analysed(records: Iterable[Record]) -> Analyser:
    analyser = Analyser()
    analyser.feed(records)
    return analyser


@PROFILE
@given(SHRINKING)
def test_reports_exactly_what_can_run_in_either_order(rng: random.Random) -> None:
    records = random_program(rng, operations=7)
    judgement = judge(records, analysed(records).races())
    assert judgement.right, (judgement, records)


@settings(PROFILE, max_examples=100)
@given(SEEDED)
def test_keeping_little_loses_nothing(rng: random.Random) -> None:
    # Longer programs, and tidying at every opportunity instead of at hundreds of entries.
    records = random_program(rng, operations=24, nbytes=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_streams.races._memory._TIDY_AT", 2)
        patch.setattr("accel_streams.races._clocks._PRUNE_AT", 1)
        races = analysed(records).races()
    judgement = judge(records, races, by_running=False)
    assert judgement.right, (judgement, records)


@settings(PROFILE, max_examples=100)
@given(SEEDED, st.integers(0, 4))
def test_when_a_block_is_compared_changes_nothing(rng: random.Random, alone: int) -> None:
    records = random_program(rng, operations=24, nbytes=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_streams.races._analyse.ALONE_AT_MOST", alone)
        races = analysed(records).races()
    assert races == analysed(records).races()
    assert judge(records, races, by_running=False).right, records


@settings(PROFILE, max_examples=50)
@given(SEEDED, st.integers(1, 7))
def test_chunks_change_nothing(rng: random.Random, size: int) -> None:
    records = random_program(rng)
    analyser = Analyser()
    for start in range(0, len(records), size):
        analyser.feed(records[start : start + size])
    assert analyser.races() == analysed(records).races()


@settings(PROFILE, max_examples=50)
@given(SEEDED)
def test_removing_any_wait_is_reported_exactly(rng: random.Random) -> None:
    records = random_program(rng, operations=6, care=1.0)
    assert may_report(records, by_closure(records)) == set()
    assert analysed(records).races() == []
    for number, record in enumerate(records):
        if record[0] == "wait":
            mutant = records[:number] + records[number + 1 :]
            judgement = judge(mutant, analysed(mutant).races(), by_running=False)
            assert judgement.right, (record, judgement, mutant)


def without_host_joins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostClock, "join", lambda self, vector: None)


def without_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Clocks, "wait", lambda self, key, thread, record_seq: None)


def with_waits_that_bind_late(patch: pytest.MonkeyPatch) -> None:
    def wait(self: Clocks, key: tuple[int, int], thread: int, record_seq: int) -> None:
        recording = self._recordings.get(record_seq)
        if recording is not None:
            state = self.submitting(key, thread)
            other = self.streams[recording[1][3]]
            state.join(other.vector)

    patch.setattr(Clocks, "wait", wait)


def without_new_epochs(patch: pytest.MonkeyPatch) -> None:
    def record(self: Clocks, key: tuple[int, int], thread: int, record: Record) -> None:
        self._recordings[record[1]] = (tuple(self.submitting(key, thread).vector), record)

    patch.setattr(Clocks, "record", record)


def with_one_device(patch: pytest.MonkeyPatch) -> None:
    original = Clocks.stream

    def stream(self: Clocks, key: tuple[int, int]) -> StreamClock:
        self.streams[key] = original(self, (0, key[1]))
        return self.streams[key]

    patch.setattr(Clocks, "stream", stream)


def with_syncs_of_all_devices(patch: pytest.MonkeyPatch) -> None:
    def synchronize_device(self: Clocks, device: int, thread: int) -> None:
        for state in self.by_index:
            self.synchronize_stream(state.key, thread)

    patch.setattr(Clocks, "synchronize_device", synchronize_device)


def without_overlaps(patch: pytest.MonkeyPatch) -> None:
    def add(self: Block, lo: int, hi: int) -> Cell:
        self.cells[lo, hi] = Cell(lo, hi)
        return self.cells[lo, hi]

    patch.setattr(Block, "_add", add)


def without_what_one_stream_did(patch: pytest.MonkeyPatch) -> None:
    def compare(self: Block) -> None:
        self.alone = None

    patch.setattr(Block, "compare", compare)


def without_history_after_free(patch: pytest.MonkeyPatch) -> None:
    def free(self: Analyser, record: Record) -> None:
        self._blocks.pop(record[4], None)

    patch.setattr(Analyser, "_free", free)


def without_record_stream(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Analyser, "_record_stream", lambda self, record: None)


def without_allocation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Analyser, "_alloc", lambda self, record: None)


def with_one_reader_a_range(patch: pytest.MonkeyPatch) -> None:
    class Last(dict[int, object]):
        def __setitem__(self, key: int, value: object, /) -> None:
            self.clear()
            super().__setitem__(key, value)

    original = Cell.__init__

    def init(self: Cell, lo: int, hi: int) -> None:
        original(self, lo, hi)
        self.reads = Last()  # type: ignore[assignment]

    patch.setattr(Cell, "__init__", init)


@pytest.mark.parametrize(
    "break_it",
    [
        without_host_joins,
        without_waits,
        with_waits_that_bind_late,
        without_new_epochs,
        with_one_device,
        with_syncs_of_all_devices,
        without_overlaps,
        without_what_one_stream_did,
        without_history_after_free,
        without_record_stream,
        without_allocation,
        with_one_reader_a_range,
    ],
)
def test_the_oracle_finds_a_broken_analyser(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    for seed in range(300):
        records = random_program(random.Random(seed))
        if not judge(records, analysed(records).races(), by_running=False).right:
            return
    pytest.fail("300 random programs could not tell the broken analyser from a right one")
