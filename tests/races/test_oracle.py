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


Patch = pytest.MonkeyPatch
Key = tuple[int, int]


def without_host_joins(patch: Patch) -> None:
    patch.setattr(HostClock, "join", lambda self, vector: None)


def with_one_clock_for_all_threads(patch: Patch) -> None:
    original = Clocks.host
    patch.setattr(Clocks, "host", lambda self, thread: original(self, 0))
    # The hot path looks them up itself.
    patch.setattr(HostClock, "take", lambda self, other: None)
    patch.setattr(Clocks, "submitting", _submitting_for_all)


def _submitting_for_all(self: Clocks, key: Key, host: HostClock) -> StreamClock:
    state = self.stream(key)
    for each in self.hosts.values():
        state.join(each.vector)
    state.told = host.vector
    return state


def without_acquisitions(patch: Patch) -> None:
    patch.setattr(Clocks, "acquire", lambda self, thread, token: None)


def with_acquisitions_that_bind_late(patch: Patch) -> None:
    def acquire(self: Clocks, thread: int, token: int) -> None:
        if token in self._releases:
            self.host(thread).join(self.host(self._releases[token].host.thread).vector)

    patch.setattr(Clocks, "acquire", acquire)


def without_what_a_recording_tells_its_waiter(patch: Patch) -> None:
    def wait(self: Clocks, key: Key, thread: int, record_seq: int) -> None:
        state = self.submitting(key, self.host(thread))
        if record_seq in self._recordings:
            state.join(self._recordings[record_seq].vector)

    patch.setattr(Clocks, "wait", wait)


def without_what_an_allocation_tells_its_users(patch: Patch) -> None:
    def look_around(self: Clocks, host: HostClock) -> None:
        host.behind, host.checked = False, self.changes[0]

    patch.setattr(Clocks, "look_around", look_around)


def with_syncs_that_tell_the_stream(patch: Patch) -> None:
    original = Clocks.synchronize_stream

    def synchronize_stream(self: Clocks, key: Key, thread: int) -> None:
        self.submitting(key, self.host(thread))
        original(self, key, thread)

    patch.setattr(Clocks, "synchronize_stream", synchronize_stream)


def without_waits(patch: Patch) -> None:
    patch.setattr(Clocks, "wait", lambda self, key, thread, record_seq: None)


def with_waits_that_bind_late(patch: Patch) -> None:
    def wait(self: Clocks, key: Key, thread: int, record_seq: int) -> None:
        recording = self._recordings.get(record_seq)
        if recording is not None:
            host = self.host(thread)
            host.take(recording.host)
            state = self.submitting(key, host)
            state.join(self.streams[recording.record[3]].vector)

    patch.setattr(Clocks, "wait", wait)


def without_new_epochs(patch: Patch) -> None:
    original = Clocks.record

    def record(self: Clocks, key: Key, thread: int, record: Record) -> None:
        original(self, key, thread, record)
        state = self.streams[key]
        state.vector[state.index] -= 1

    patch.setattr(Clocks, "record", record)


def without_new_epochs_at_syncs(patch: Patch) -> None:
    original = Clocks.synchronize_stream

    def synchronize_stream(self: Clocks, key: Key, thread: int) -> None:
        original(self, key, thread)
        state = self.streams[key]
        state.vector[state.index] -= 1

    patch.setattr(Clocks, "synchronize_stream", synchronize_stream)


def with_recordings_dropped_too_early(patch: Patch) -> None:
    original = Clocks.record

    def record(self: Clocks, key: Key, thread: int, record: Record) -> None:
        original(self, key, thread, record)
        for seq in sorted(self._recordings)[:-1]:
            self.drop(seq)

    patch.setattr(Clocks, "record", record)


def with_one_device(patch: Patch) -> None:
    original = Clocks.stream

    def stream(self: Clocks, key: Key) -> StreamClock:
        self.streams[key] = original(self, (0, key[1]))
        return self.streams[key]

    patch.setattr(Clocks, "stream", stream)


def with_syncs_of_all_devices(patch: Patch) -> None:
    def synchronize_device(self: Clocks, device: int, thread: int) -> None:
        for state in self.by_index:
            self.synchronize_stream(state.key, thread)

    patch.setattr(Clocks, "synchronize_device", synchronize_device)


def without_overlaps(patch: Patch) -> None:
    patch.setattr(Cell, "meets", lambda self, other: False)


def with_the_bounds_of_strided_views(patch: Patch) -> None:
    patch.setattr(Cell, "meets", lambda self, other: self.lo < other.hi and other.lo < self.hi)


def with_the_first_column_of_strided_views(patch: Patch) -> None:
    def meet(lo: int, shape: tuple[int, ...], other_lo: int, other: tuple[int, ...]) -> bool:
        return lo < other_lo + other[0] and other_lo < lo + shape[0]

    patch.setattr("accel_streams.races._memory.meet", meet)


def without_what_one_stream_did(patch: Patch) -> None:
    def compare(self: Block) -> None:
        self.alone = None

    patch.setattr(Block, "compare", compare)


def without_history_after_free(patch: Patch) -> None:
    def free(self: Analyser, record: Record) -> None:
        self._blocks.pop(record[4], None)

    patch.setattr(Analyser, "_free", free)


def without_record_stream(patch: Patch) -> None:
    patch.setattr(Analyser, "_record_stream", lambda self, record: None)


def with_record_stream_for_its_own_accesses_only(patch: Patch) -> None:
    original = Analyser._free

    def free(self: Analyser, record: Record) -> None:
        block = self._blocks.get(record[4])
        originals = {}
        for index in block.recorded if block is not None else ():
            state = self._clocks.by_index[index]
            originals[index] = list(state.vector)
            state.vector = [0] * len(state.vector)
            state.vector[index] = originals[index][index]
        original(self, record)
        for index, vector in originals.items():
            vector[index] += 1
            self._clocks.by_index[index].vector = vector

    patch.setattr(Analyser, "_free", free)


def with_record_stream_for_later_accesses_too(patch: Patch) -> None:
    original = Analyser._free

    def free(self: Analyser, record: Record) -> None:
        before = [list(state.vector) for state in self._clocks.by_index]
        original(self, record)
        for state, vector in zip(self._clocks.by_index, before, strict=True):
            state.vector = vector

    patch.setattr(Analyser, "_free", free)


def without_what_the_freeing_thread_knows(patch: Patch) -> None:
    original = Analyser._free

    def free(self: Analyser, record: Record) -> None:
        block = self._blocks.get(record[4])
        original(self, record)
        if block is not None and not block.recorded:
            block.freed = []

    patch.setattr(Analyser, "_free", free)


def without_allocation(patch: Patch) -> None:
    patch.setattr(Analyser, "_alloc", lambda self, record: None)


def with_one_reader_a_range(patch: Patch) -> None:
    class Last(dict[int, object]):
        def __setitem__(self, key: int, value: object, /) -> None:
            self.clear()
            super().__setitem__(key, value)

    original = Cell.__init__

    def init(self: Cell, lo: int, hi: int, shape: tuple[int, ...] | None = None) -> None:
        original(self, lo, hi, shape)
        self.reads = Last()  # type: ignore[assignment]

    patch.setattr(Cell, "__init__", init)


FAULTS = [
    without_host_joins,
    with_one_clock_for_all_threads,
    without_acquisitions,
    with_acquisitions_that_bind_late,
    without_what_a_recording_tells_its_waiter,
    without_what_an_allocation_tells_its_users,
    with_syncs_that_tell_the_stream,
    without_waits,
    with_waits_that_bind_late,
    without_new_epochs,
    without_new_epochs_at_syncs,
    with_recordings_dropped_too_early,
    with_one_device,
    with_syncs_of_all_devices,
    without_overlaps,
    with_the_bounds_of_strided_views,
    with_the_first_column_of_strided_views,
    without_what_one_stream_did,
    without_history_after_free,
    without_record_stream,
    with_record_stream_for_its_own_accesses_only,
    with_record_stream_for_later_accesses_too,
    without_what_the_freeing_thread_knows,
    without_allocation,
    with_one_reader_a_range,
]


@pytest.mark.parametrize("break_it", FAULTS)
def test_the_oracle_finds_a_broken_analyser(
    break_it: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    break_it(monkeypatch)
    for seed in range(3000):
        records = random_program(random.Random(seed))
        if not judge(records, analysed(records).races(), by_running=False).right:
            return
    pytest.fail("3000 random programs could not tell the broken analyser from a right one")
