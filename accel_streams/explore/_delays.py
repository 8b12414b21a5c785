"""Schedules written down as what they delay: ``delay:5-9`` is in-order but with 5 after 9."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from accel_streams._settings import is_delays

__all__ = ["Delay", "delays_of", "schedule_name"]

_PREFIX = "delay:"


class Delay(NamedTuple):
    """Operation `late` runs after operation `early`, though it was submitted before it.

    Operations are called by their number among what the program submits, from 1: operators, event
    recordings and waits alike. ``7e`` is the end of collective 7, and ``7.1`` what the allocator
    itself submitted first after 7. The numbers are the same under every schedule.
    """

    late: str
    early: str


def schedule_name(delays: Iterable[Delay]) -> str:
    """Return the name of the schedule that makes these delays: what a run is replayed with."""
    text = ",".join(f"{late}-{early}" for late, early in delays)
    return _PREFIX + text if text else "in-order"


def delays_of(name: str) -> tuple[Delay, ...]:
    """Read what `schedule_name` returned; raise ValueError for anything else."""
    if name == "in-order":
        return ()
    if not is_delays(name):
        raise ValueError(
            f"{name!r} is not a list of delays; expected in-order or delay:A-B,C-D,... with "
            "operations like 12, 12.1 or 12e"
        )
    return tuple(Delay(*pair.split("-")) for pair in name.removeprefix(_PREFIX).split(","))
