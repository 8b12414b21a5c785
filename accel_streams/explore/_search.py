"""Search every order of a small program that can make a difference.

Runs of one class end alike (see `_operations`), so one run of each class is enough. The search
begins with the in-order run and inverts one pair of conflicting operations after another, fewest
inversions first. Every class is reached: bubble sort turns the in-order run into any other one by
exchanging neighbours that the other one has in the other order, and an exchange of two neighbours
that do not conflict stays in the class. Pairs are inverted in any order that keeps the class
possible, so this also holds for a program whose later operations depend on what it has read: what
it submits until then stays the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from accel_streams.explore._delays import Delay, delays_of, schedule_name
from accel_streams.explore._failures import ExploreError
from accel_streams.explore._operations import Conflict, Graph, Operation, accesses_conflict
from accel_streams.explore._shrink import shortest

__all__ = ["Execution", "Executor", "Exploration", "Outcome", "search"]


@dataclass(frozen=True, slots=True)
class Execution:
    """One run: what was submitted, the order in which it ran (indices), and how it ended.

    `outcome` is equal for two runs that ended alike, `text` shows it. `polled` tells that the host
    looked how far the device had come and went on.
    """

    operations: tuple[Operation, ...]
    order: tuple[int, ...]
    outcome: str
    text: str = ""
    polled: bool = False


class Executor(Protocol):
    """Runs one program, anew each time."""

    def run(self, delays: Sequence[Delay]) -> Execution:
        """Run the program in-order but for `delays`; the same delays give the same run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a program ends.

    `schedule` is the name of a schedule that ends so, with as few delays as were found; `explained`
    says what they are. `classes` counts the explored classes of schedules that end so.
    """

    outcome: str
    text: str
    schedule: str
    classes: int
    explained: tuple[str, ...] = ()

    @property
    def delays(self) -> tuple[Delay, ...]:
        """Return what the schedule delays."""
        return delays_of(self.schedule)


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search found.

    `outcomes` begins with the in-order one. `complete` tells that no other schedule ends otherwise;
    if not, `reason` says what was left out. `schedules` counts the classes that were run, and
    `operations` the operations of the largest run.
    """

    outcomes: tuple[Outcome, ...]
    schedules: int
    operations: int
    complete: bool
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Tell whether all explored schedules end alike."""
        return len(self.outcomes) == 1

    @property
    def failing(self) -> Outcome | None:
        """Return how a schedule with the fewest delays ends otherwise; None if none does."""
        others = self.outcomes[1:]
        return min(others, key=lambda outcome: len(outcome.delays)) if others else None

    def told(self) -> str:
        """Say in a line or two what was explored and what was found."""
        runs = _count(self.schedules, "schedule")
        if self.complete:
            scope = f"all orders of {_count(self.operations, 'operation')} ({runs} run)"
        else:
            scope = f"{runs}, which are not all: {self.reason}"
        if self.failing is None:
            return f"no difference in {scope}"
        first = self.failing
        return "\n".join(
            [
                f"{len(self.outcomes)} different outcomes in {scope}",
                f"in-order: {self.outcomes[0].text}",
                f"{first.schedule}: {first.text}",
                *(f"  {delay}" for delay in first.explained),
            ]
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True, slots=True)
class _Node:
    graph: Graph
    inverted: int


class _Search:
    def __init__(self, executor: Executor, conflict: Conflict) -> None:
        self.executor = executor
        self.conflict = conflict
        self.graphs: dict[tuple[Operation, ...], Graph] = {}
        self.seen: set[tuple[int, int]] = set()
        self.found: dict[str, Outcome] = {}
        self.schedules = 0
        self.operations = 0
        self.polled = False

    def run(self, delays: Sequence[Delay], expected: _Node | None = None) -> _Node | None:
        """Run once; return the class it was of, None if that one is known."""
        execution = self.executor.run(delays)
        self.schedules += 1
        self.operations = max(self.operations, len(execution.operations))
        self.polled |= execution.polled
        graph = self.graphs.get(execution.operations)
        if graph is None:
            graph = Graph(execution.operations, self.conflict)
            self.graphs[graph.operations] = graph
        node = _Node(graph, graph.inverted_in(execution.order))
        if not graph.follows_itself(execution.order):
            raise ExploreError(
                "internal error: a run did not keep the order of its own streams and events"
            )
        if expected is not None and graph is expected.graph and node != expected:
            raise ExploreError(
                f"the device did not run {schedule_name(delays)} as asked. Something makes the "
                "host wait that the trace does not show, such as a collective on tensors of the "
                "CPU: a program with it can't be searched systematically."
            )
        known = self.found.get(execution.outcome)
        if known is None:
            name = schedule_name(delays)
            self.found[execution.outcome] = Outcome(execution.outcome, execution.text, name, 1)
        else:
            self.found[execution.outcome] = replace(known, classes=known.classes + 1)
        return node if node == expected or self.is_new(node) else None

    def is_new(self, node: _Node) -> bool:
        """Tell whether a class has not been met before, and remember it."""
        key = (id(node.graph), node.inverted)  # graphs are kept, so that ids are not used again
        if key in self.seen:
            return False
        self.seen.add(key)
        return True


def search(
    executor: Executor,
    *,
    max_schedules: int,
    max_deviations: int | None = None,
    conflict: Conflict = accesses_conflict,
    shrink: bool = True,
    finished: Callable[[int], None] = lambda _: None,
) -> Exploration:
    """Run every class of schedules, up to the bounds, and gather how they end.

    `max_deviations` bounds how many conflicting pairs run in the other order than they were
    submitted. `finished` is called after each run with their number.
    """
    if max_schedules < 1:
        raise ValueError(f"at least one schedule is needed, got {max_schedules}")
    if max_deviations is not None and max_deviations < 0:
        raise ValueError(f"the number of deviations can't be negative, got {max_deviations}")
    state = _Search(executor, conflict)
    first = state.run(())
    assert first is not None
    todo = deque([first])
    left = beyond = 0
    while todo:
        node = todo.popleft()
        for inverted in node.graph.neighbours(node.inverted):
            following = _Node(node.graph, inverted)
            if not state.is_new(following):
                continue
            if max_deviations is not None and inverted.bit_count() > max_deviations:
                beyond += 1
            elif state.schedules >= max_schedules:
                left += 1
            else:
                reached = state.run(node.graph.delays(inverted), following)
                finished(state.schedules)
                if reached is not None:
                    todo.append(reached)
        if left:
            break
    reasons = []
    if left:
        reasons.append(
            f"the search stopped at max_schedules={max_schedules} with at least {left} more to run"
        )
    if beyond:
        reasons.append(
            f"schedules with more than max_deviations={max_deviations} conflicting pairs in the "
            "other order than submitted were left out"
        )
    if state.polled:
        reasons.append(
            "the program or the allocator looks how far the device has come (query, or memory "
            "given back after record_stream), and answers other than those seen are possible"
        )
    outcomes = list(state.found.values())
    if shrink:
        outcomes[1:] = [_shrunk(executor, outcome, outcomes[0]) for outcome in outcomes[1:]]
    return Exploration(
        tuple(outcomes), state.schedules, state.operations, not reasons, "; ".join(reasons)
    )


def _shrunk(executor: Executor, outcome: Outcome, in_order: Outcome) -> Outcome:
    """Give a schedule that ends in the same way with fewer delays."""

    def ends_so(delays: Sequence[Delay]) -> bool:
        return executor.run(delays).outcome == outcome.outcome

    delays = shortest(outcome.delays, ends_so)
    what = {operation.name: operation.what for operation in executor.run(delays).operations}
    explained = tuple(
        f"{what.get(late, '?')} ({late}) runs after {what.get(early, '?')} ({early})"
        for late, early in delays
    )
    return replace(outcome, schedule=schedule_name(delays), explained=explained)
