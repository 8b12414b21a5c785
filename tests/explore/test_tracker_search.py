"""The ProducerTracker under every schedule of small programs, not under a sample of them.

In the model of tests/core/stream_model.py accesses take time: each begins and ends, so that two can
overlap. A program whose conflicting accesses are all ordered has one class of schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_streams import ProducerTracker, StreamId
from accel_streams._tracker import Edge, EventPool
from accel_streams.explore._delays import Delay
from accel_streams.explore._operations import Access, Operation
from accel_streams.explore._search import Execution, Exploration, search
from stream_model import ModelBackend, ModelEvent, ModelStream, Step, run, submit

Make = Callable[[ModelBackend, EventPool], ProducerTracker]


@dataclass
class LoggingBackend(ModelBackend):
    """Remembers in which order everything was submitted; leaves out the wait of one number."""

    log: list[tuple[StreamId, str, Any]] = field(default_factory=list)
    leave_out: int = -1

    def wait(self, stream: ModelStream, event: ModelEvent) -> None:
        if len(self.waits) == self.leave_out:
            self.waits.append((self.stream_id(stream), event.version))
        else:
            super().wait(stream, event)

    def submit(self, stream: ModelStream, kind: str, what: object = None) -> None:
        super().submit(stream, kind, what)
        self.log.append((self.stream_id(stream), kind, what))


class Tracked:
    """A program with its trackers, as something to search."""

    def __init__(self, program: Sequence[Step], make: Make, leave_out: int = -1) -> None:
        self.backend = LoggingBackend(leave_out=leave_out)
        submit(self.backend, program, make)
        operations: list[Operation] = []
        last: dict[StreamId, int] = {}
        recorded: dict[int, int] = {}
        self.streams: list[StreamId] = []
        for number, (stream, kind, what) in enumerate(self.backend.log, 1):
            accesses: tuple[Access, ...] = ()
            if kind == "access":
                lo, hi = (0, 1 << 30) if what.part is None else (what.part, what.part + 1)
                accesses = ((what.block, lo, hi, 1 if what.kind == "read" else 2),)
            for name in (str(number), f"{number}e")[: 2 if kind == "access" else 1]:
                follows = [last[stream]] if stream in last else []
                if kind == "wait":
                    follows.append(recorded[what])
                last[stream] = len(operations)
                self.streams.append(stream)
                operations.append(Operation(name, stream, accesses, tuple(follows), kind))
            if kind == "record":
                recorded[what] = last[stream]
        self.operations = tuple(operations)

    def run(self, delays: Sequence[Delay]) -> Execution:
        done: set[str] = set()
        ran: set[int] = set()
        order: list[int] = []
        while len(order) < len(self.operations):
            ready = [
                index
                for index, operation in enumerate(self.operations)
                if index not in ran and ran.issuperset(operation.follows)
            ]
            chosen = min(
                ready,
                key=lambda index: (
                    any(
                        delay.late == self.operations[index].name and delay.early not in done
                        for delay in delays
                    ),
                    index,
                ),
            )
            order.append(chosen)
            ran.add(chosen)
            done.add(self.operations[chosen].name)
        streams = iter(self.streams[index] for index in order)
        violation = run(self.backend.queues, lambda ready: next(streams))
        return Execution(self.operations, tuple(order), "wrong" if violation else "right")


def explore(program: Sequence[Step], make: Make, leave_out: int = -1) -> Exploration:
    return search(Tracked(program, make, leave_out), max_schedules=400, shrink=False)


def right(backend: ModelBackend, pool: EventPool) -> ProducerTracker:
    return ProducerTracker(backend, pool=pool)


def ends(found: Exploration) -> set[str]:
    return {outcome.outcome for outcome in found.outcomes}


TWO_FILLS = [
    Step("allocate", 0),
    *(Step("write", 1), Step("write", 2), Step("read", 3)),
    *(Step("write", 2), Step("write", 1), Step("read", 3)),
]
TWO_READERS = [
    Step("allocate", 0),
    *(Step("write", 1), Step("read", 2), Step("read", 3)),
    *(Step("write", 1), Step("write", 2), Step("read", 3)),
]
READ_FIRST = [Step("allocate", 0), Step("read", 1), Step("write", 2), Step("read", 3)]
AGAIN = [*TWO_FILLS, Step("allocate", 3), Step("write", 0), Step("read", 1)]
PROGRAMS = {
    "two fills": TWO_FILLS,
    "two readers": TWO_READERS,
    "read before it is written": READ_FIRST,
    "allocated again": AGAIN,
}

steps = st.builds(
    Step,
    action=st.sampled_from(["write", "write", "read", "flush", "refrain", "unrelated", "allocate"]),
    stream=st.integers(0, 3),
    buffer=st.sampled_from([0, 0, 1]),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_schedule_of_a_tracked_program_is_right(name: str) -> None:
    found = explore(PROGRAMS[name], right)
    # Nothing that conflicts is left to the schedule.
    assert (found.complete, found.schedules, ends(found)) == (True, 1, {"right"})


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=1, max_size=12))
def test_every_schedule_of_any_tracked_program_is_right(program: list[Step]) -> None:
    found = explore([Step("allocate", 0), *program], right)
    assert found.complete
    assert ends(found) == {"right"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_single_wait_is_needed(name: str) -> None:
    """Without any one of the waits that the tracker issues, some schedule is wrong."""
    program = PROGRAMS[name]
    waits = len(Tracked(program, right).backend.waits)
    assert waits > 2
    for number in range(waits):
        assert "wrong" in ends(explore(program, right, leave_out=number)), f"wait {number}"


@pytest.mark.parametrize("edge", get_args(Edge))
def test_each_kind_of_edge_is_needed(edge: Edge) -> None:
    def without(backend: ModelBackend, pool: EventPool) -> ProducerTracker:
        return ProducerTracker(backend, pool=pool, skip_edges=frozenset({edge}))

    assert any("wrong" in ends(explore(program, without)) for program in PROGRAMS.values())
