"""Search a Python function's schedules, and replay one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from accel_streams.explore._delays import delays_of
from accel_streams.explore._operations import accesses_conflict, always
from accel_streams.explore._program import FakeDeviceProgram
from accel_streams.explore._search import Exploration, search

__all__ = ["explore_all", "replay"]

_T = TypeVar("_T")


def explore_all(
    program: Callable[[], object],
    *,
    max_schedules: int = 1000,
    max_deviations: int | None = None,
    reduction: bool = True,
) -> Exploration:
    """Run `program` on the simulated device in every order that can make a difference.

    The function is called anew for each schedule and has to do the same each time, in one thread,
    on new tensors of ``device="fake"``. What it returns is compared bit by bit: tensors, numbers,
    strings, or lists and dictionaries of them. An exception that it raises is an outcome as well.

    Args:
        program: A function without arguments that queues at most some tens of operations.
        max_schedules: Stop after so many schedules.
        max_deviations: Leave out schedules in which more conflicting pairs of operations than this
            run in the other order than they were submitted.
        reduction: Without it every order is run, also those that can't differ.

    Raises:
        ExploreError: The program can't be searched: it submits too much, holds a stream, or makes
            the host wait in a way that the trace does not show.

    """
    return search(
        FakeDeviceProgram(program),
        max_schedules=max_schedules,
        max_deviations=max_deviations,
        conflict=accesses_conflict if reduction else always,
    )


def replay(program: Callable[[], _T], schedule: str) -> _T:
    """Run `program` once under a schedule that `explore_all` has named; return what it returns.

    The name is ``in-order`` or ``delay:A-B,...``. All that it has queued has run on return.
    """
    return FakeDeviceProgram(program).replay(delays_of(schedule))
