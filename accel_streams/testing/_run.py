"""Run a program under every schedule of the model device."""

from __future__ import annotations

from accel_streams.explore._operations import accesses_conflict, always
from accel_streams.explore._search import Exploration, search
from accel_streams.testing._model import ModelProgram
from accel_streams.testing._program import Program

__all__ = ["explore_model"]


def explore_model(
    program: Program,
    *,
    max_schedules: int = 1000,
    max_deviations: int | None = None,
    reduction: bool = True,
) -> Exploration:
    """Run the program on the model device in every order that can make a difference.

    The arguments and the result are those of `accel_streams.explore.explore_all`. It needs neither
    torch nor a compiler, and is some ten times faster than the simulated device.
    """
    return search(
        ModelProgram(program),
        max_schedules=max_schedules,
        max_deviations=max_deviations,
        conflict=accesses_conflict if reduction else always,
    )
