"""The ProducerTracker orders every conflicting access, with no more events than that takes.

Proved in a model (stream_model.py): for random programs under random and adversarial schedules no
read overlaps a write and each read sees what sequential execution would have put there. Each kind
of wait is shown to be needed: without it the same search finds a failure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from accel_streams import ProducerTracker, StreamId
from accel_streams._tracker import Edge, EventPool
from stream_model import (
    ModelBackend,
    ModelStream,
    Schedule,
    Step,
    first_violation,
    run,
    submit,
)

STREAMS = 4

steps = st.builds(
    Step,
    action=st.sampled_from(
        ["write", "write", "write", "read", "read", "flush", "refrain", "unrelated", "allocate"]
    ),
    stream=st.integers(0, STREAMS - 1),
    buffer=st.sampled_from([0, 0, 0, 1]),
)
# Long ones: what matters are chains of four or five steps on one buffer.
programs = st.lists(steps, min_size=10, max_size=30)


def by_priority(order: Sequence[int]) -> Schedule:
    """Run the first stream in ``order`` that can run: what hits hardest, one stream far behind."""
    return lambda ready: min(ready, key=lambda stream_id: order.index(stream_id[2]))


def by_choices(choices: Sequence[int]) -> Schedule:
    """Follow a list of choices, and the first stream after its end."""
    pending = iter(choices)
    return lambda ready: ready[next(pending, 0) % len(ready)]


schedules = st.one_of(
    st.permutations(range(STREAMS)).map(by_priority),
    st.lists(st.integers(0, STREAMS - 1), max_size=60).map(by_choices),
)
# The schedule as data, since one that follows a list can be used only once.
runs = st.tuples(programs, st.permutations(range(STREAMS)))


def tracker(backend: ModelBackend, pool: EventPool) -> ProducerTracker:
    return ProducerTracker(backend, pool=pool)


def without(edge: Edge) -> Callable[[ModelBackend, EventPool], ProducerTracker]:
    return lambda backend, pool: ProducerTracker(backend, pool=pool, skip_edges=frozenset({edge}))


class NeverAdmitsAnew(ProducerTracker):
    """A broken tracker: a stream that has waited once is let in for ever."""

    def _begin_fill(self) -> None:
        admitted = set(self._admitted)
        super()._begin_fill()
        self._admitted = admitted


class ForgetsTheProducers(ProducerTracker):
    """A broken tracker: as soon as one reader has waited, the producers are forgotten."""

    def after_read(self, stream: ModelStream, stream_id: StreamId | None = None) -> None:
        super().after_read(stream, stream_id)
        self._forget(self._producers)


class ForgetsOnRefraining(ProducerTracker):
    """A broken tracker: who reads after an announced write that never came waits for nobody."""

    def before_read(self, stream: ModelStream, stream_id: StreamId | None = None) -> None:
        if self._producers or self._allocation:
            super().before_read(stream, stream_id)


class IgnoresTheFlush(ProducerTracker):
    """A broken tracker: a write after a read inside its call still counts to the fill before."""

    def after_write(self, stream: ModelStream, stream_id: StreamId | None = None) -> None:
        readers, self._readers = self._readers, {}
        super().after_write(stream, stream_id)
        self._readers = readers


class RecordsBeforeTheWrite(ProducerTracker):
    """A broken tracker: the producer's event stands for what came before its write."""

    def before_write(self, stream: ModelStream, stream_id: StreamId | None = None) -> None:
        super().before_write(stream, stream_id)
        super().after_write(stream, stream_id)

    def after_write(self, stream: ModelStream, stream_id: StreamId | None = None) -> None:
        pass


def fails(make: Callable[[ModelBackend, EventPool], ProducerTracker]) -> bool:
    """Search for a program and a schedule in which the tracker made by ``make`` is wrong."""

    def wrong(case: tuple[list[Step], list[int]]) -> bool:
        program, order = case
        return first_violation(program, by_priority(order), make) is not None

    try:
        # Any failure will do, so none is made smaller.
        find(runs, wrong, settings=settings(max_examples=800, phases=[Phase.generate]))
    except NoSuchExample:
        return False
    return True


@settings(max_examples=400)
@given(programs, schedules)
def test_no_access_overlaps_a_conflicting_one(program: list[Step], schedule: Schedule) -> None:
    assert first_violation(program, schedule, tracker) is None


def test_the_search_that_finds_failures_finds_none_in_the_tracker() -> None:
    assert not fails(tracker)


@pytest.mark.parametrize("edge", get_args(Edge))
def test_without_one_kind_of_wait_the_search_finds_a_failure(edge: Edge) -> None:
    assert fails(without(edge))


@pytest.mark.parametrize(
    "broken",
    [
        NeverAdmitsAnew,
        ForgetsTheProducers,
        ForgetsOnRefraining,
        IgnoresTheFlush,
        RecordsBeforeTheWrite,
    ],
)
def test_the_search_finds_the_fault_of_a_broken_tracker(broken: type[ProducerTracker]) -> None:
    assert fails(lambda backend, pool: broken(backend, pool=pool))


def test_every_order_of_a_small_program() -> None:
    """All interleavings, not a sample, of two fills by two producers with a reader of its own."""
    program = [
        Step("allocate", 0),
        *(Step("write", 0), Step("write", 1), Step("read", 2)),
        *(Step("write", 1), Step("write", 0), Step("read", 2)),
    ]
    backend = ModelBackend()
    submit(backend, program, tracker)
    tried = 0
    pending: list[list[int]] = [[]]
    while pending:
        prefix = pending.pop()
        taken: list[int] = []

        def follow(
            ready: Sequence[StreamId], prefix: list[int] = prefix, taken: list[int] = taken
        ) -> StreamId:
            position = len(taken)
            choice = prefix[position] if position < len(prefix) else 0
            if position >= len(prefix):
                pending.extend([*taken, other] for other in range(1, len(ready)))
            taken.append(choice)
            return ready[choice]

        assert run(backend.queues, follow) is None
        tried += 1
    assert tried > 100


class TestCost:
    @given(
        st.lists(st.sampled_from(["allocate", "write", "flush", "refrain", "read"]), max_size=30)
    )
    def test_one_stream_costs_nothing(self, actions: list[str]) -> None:
        backend = ModelBackend()
        program = [Step(action, 3) for action in ["allocate", *actions]]  # type: ignore[arg-type]
        submit(backend, program, tracker)
        assert (backend.events, backend.records, backend.waits) == (0, 0, [])

    @pytest.mark.parametrize("producers", [1, 2, 3])
    def test_a_fill_costs_one_wait_for_each_edge(self, producers: int) -> None:
        """In the steady state, and however many writes each producer makes."""
        reader, writes = 9, 4
        fill = [Step("write", s) for _ in range(writes) for s in range(producers)]
        fill.append(Step("read", reader))

        def cost(fills: int) -> tuple[int, int, int]:
            backend = ModelBackend()
            submit(backend, [Step("allocate", 0), *fill * fills], tracker)
            return backend.events, backend.records, len(backend.waits)

        events, records, waits = cost(10)
        more_events, more_records, more_waits = cost(11)
        assert more_events == events <= producers + 3
        # After each write one event, and one after the read.
        assert more_records - records == producers * writes + 1
        # Each producer waits for the release once, and the reader for each producer.
        assert more_waits - waits == 2 * producers

    def test_new_memory_waits_for_its_allocation_alone(self) -> None:
        backend = ModelBackend()
        fill = [Step("write", 0), Step("read", 1), Step("read", 2)]
        submit(backend, [Step("allocate", 0), *fill, *fill, Step("allocate", 3)], tracker)
        for last in ("write", "read"):
            again = ModelBackend()
            program = [Step("allocate", 0), *fill, *fill, Step("allocate", 3), Step(last, 4)]
            submit(again, program, tracker)
            assert len(again.waits) == len(backend.waits) + 1

    def test_producers_do_not_wait_for_each_other(self) -> None:
        backend = ModelBackend()
        buffer = ProducerTracker(backend)
        for number in (0, 1, 2, 1, 0):
            buffer.before_write(backend.stream(number))
            buffer.after_write(backend.stream(number))
        assert backend.waits == []

    def test_nobody_waits_for_later_unrelated_work(self) -> None:
        """The event stands directly after the access, not where its stream is by now."""
        backend = ModelBackend()
        producer, reader = 0, 1
        program = [Step("allocate", producer)]
        for _ in range(3):
            program += [
                Step("write", producer),
                Step("unrelated", producer),
                Step("read", reader),
                Step("unrelated", reader),
            ]
        submit(backend, program, tracker)
        for waiting, version in backend.waits[1:]:  # The first comes before the tracker knew.
            (queue,) = (
                queue for other, queue in backend.queues.items() if ("record", version) in queue
            )
            assert queue[queue.index(("record", version)) - 1][0] == "access"
            assert backend.queues[waiting] is not queue


class TestStreams:
    def test_equal_numbers_on_two_devices_are_two_streams(self) -> None:
        """All default streams have the same number; and an event stays on its device."""
        backend = ModelBackend()
        pool = EventPool(backend)
        for _ in range(3):
            buffer = ProducerTracker(backend, pool=pool)
            for here, there in itertools.pairwise([0, 1, 0, 1]):
                buffer.before_write(backend.stream(0, device=here))
                buffer.after_write(backend.stream(0, device=here))
                buffer.before_read(backend.stream(0, device=there))
                buffer.after_read(backend.stream(0, device=there))
            buffer.allocated(backend.stream(0))
        assert backend.waits

    def test_users_are_those_of_the_current_memory(self) -> None:
        backend = ModelBackend()
        buffer = ProducerTracker(backend)
        buffer.allocated(backend.stream(7))
        assert buffer.users() == ()
        for number in (2, 1, 2):
            buffer.before_write(backend.stream(number))
            buffer.after_write(backend.stream(number))
        buffer.before_read(backend.stream(5))
        buffer.after_read(backend.stream(5))
        buffer.before_write(backend.stream(1))
        buffer.after_write(backend.stream(1))
        assert [stream.number for stream in buffer.users()] == [2, 1, 5]
        buffer.allocated(backend.stream(7))
        assert buffer.users() == ()

    def test_a_read_between_before_and_after_write_begins_a_new_fill(self) -> None:
        """DeepSpeed flushes a full bucket inside the call that then writes into it."""
        backend = ModelBackend()
        buffer = ProducerTracker(backend)
        writer, other = backend.stream(0), backend.stream(1)
        buffer.before_write(other)
        buffer.after_write(other)
        buffer.before_write(writer)
        buffer.before_read(writer)
        buffer.after_read(writer)
        buffer.after_write(writer)
        assert len(backend.waits) == 1  # The flush, for the other producer.
        buffer.before_write(other)
        assert backend.waits[-1][0] == backend.stream_id(other)
        assert len(backend.waits) == 2  # The other producer, for the flush.
