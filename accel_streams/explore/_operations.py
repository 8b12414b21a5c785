"""What a program gave a device to do, and which orders of it can make a difference.

The operations of one run are nodes. What has to come first whatever the schedule is one edge
(stream order, events, the host's waits). Two operations on one piece of memory of which one writes
it *conflict*; where no path orders them, either may come first. Runs that order all conflicting
pairs alike end alike, so a *class* of runs is the set of pairs that it has inverted, the one that
was submitted later first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from accel_streams.explore._delays import Delay

__all__ = ["Access", "Conflict", "Graph", "Operation", "accesses_conflict", "always", "overlap"]

WRITE = 2

Access = tuple[Hashable, int, int, int]
"""Memory, first byte, byte after the last, mode: 1 reads, 2 writes, 3 both."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that runs, in the order of submission.

    `follows` are the indices of operations that end before it begins under every schedule; paths
    need not be written out.
    """

    name: str
    stream: Hashable
    accesses: tuple[Access, ...] = ()
    follows: tuple[int, ...] = ()
    what: str = ""


Conflict = Callable[[Operation, Operation], bool]
"""Tells whether the order of two operations can matter."""


def overlap(a: Access, b: Access) -> bool:
    """Tell whether two accesses share bytes that one of them writes."""
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and bool((a[3] | b[3]) & WRITE)


def accesses_conflict(first: Operation, second: Operation) -> bool:
    """Tell whether both use some bytes that one of them writes."""
    return any(overlap(a, b) for a in first.accesses for b in second.accesses)


def always(first: Operation, second: Operation) -> bool:
    """Tell that any two operations conflict, so that every order is a class of its own."""
    return True


class Graph:
    """The operations of a run, with the conflicting pairs that nothing orders.

    Sets of operations or of pairs are integers, bit i for the one with index i.
    """

    def __init__(
        self, operations: Sequence[Operation], conflict: Conflict = accesses_conflict
    ) -> None:
        self.operations = tuple(operations)
        self._before: list[int] = []
        for operation in self.operations:
            before = 0
            for index in operation.follows:
                before |= self._before[index] | 1 << index
            self._before.append(before)
        self.pairs = tuple(
            (early, late)
            for late, second in enumerate(self.operations)
            for early, first in enumerate(self.operations[:late])
            if not self._before[late] >> early & 1 and conflict(first, second)
        )

    def inverted_in(self, order: Sequence[int]) -> int:
        """Return the class of a run: the pairs whose later operation ran first."""
        place = {index: position for position, index in enumerate(order)}
        return sum(
            1 << number
            for number, (early, late) in enumerate(self.pairs)
            if place[late] < place[early]
        )

    def follows_itself(self, order: Sequence[int]) -> bool:
        """Tell whether `order` keeps every order that does not depend on the schedule."""
        done = 0
        for index in order:
            if self._before[index] & ~done:
                return False
            done |= 1 << index
        return len(order) == len(self.operations) and done == (1 << len(order)) - 1

    def _closed(self, inverted: int) -> tuple[list[list[int]], list[int]]:
        """Return, of each operation in a class, what directly and what ever comes before it."""
        direct = [list(operation.follows) for operation in self.operations]
        for number, (early, late) in enumerate(self.pairs):
            if inverted >> number & 1:
                direct[early].append(late)
            else:
                direct[late].append(early)
        before = [-1] * len(direct)
        stack = list(range(len(direct) - 1, -1, -1))
        while stack:
            index = stack[-1]
            if before[index] >= 0:
                stack.pop()
                continue
            missing = [other for other in direct[index] if before[other] < 0]
            if missing:
                stack.extend(missing)
                continue
            reached = 0
            for other in direct[index]:
                reached |= before[other] | 1 << other
            before[index] = reached
            stack.pop()
        return direct, before

    def neighbours(self, inverted: int) -> Iterator[int]:
        """Give the classes that invert one pair more, where nothing in between orders the pair."""
        direct, before = self._closed(inverted)
        for number, (early, late) in enumerate(self.pairs):
            if not inverted >> number & 1 and _adjacent(early, late, direct, before):
                yield inverted | 1 << number

    def delays(self, inverted: int) -> tuple[Delay, ...]:
        """Return what has to be delayed so that a run is of this class."""
        direct, before = self._closed(inverted)
        found = []
        for number, (early, late) in enumerate(self.pairs):
            first, second = (late, early) if inverted >> number & 1 else (early, late)
            if _adjacent(first, second, direct, before):
                found.append(Delay(self.operations[second].name, self.operations[first].name))
        return tuple(found)


def _adjacent(first: int, second: int, direct: list[list[int]], before: list[int]) -> bool:
    """Tell whether no path but the edge itself leads from `first` to `second`."""
    return not any(other != first and before[other] >> first & 1 for other in direct[second])
