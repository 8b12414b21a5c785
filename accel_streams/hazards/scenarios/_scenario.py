"""What a hazard's scenario is: a program, its settings, and the report that shows the hazard."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from accel_streams.explore import Script

__all__ = ["PACKAGE", "Expected", "Scenario", "script_of"]

PACKAGE = "accel_streams.hazards.scenarios"


@dataclass(frozen=True, slots=True)
class Expected:
    """Tell whether a race report, as JSON, shows the hazard. All parts that are given must match.

    ``buffer`` is searched, as a regular expression, in the buffer's name; ``first`` and ``second``
    in ``file.py:function operation`` of the two operations.
    """

    kinds: frozenset[str]
    buffer: str = ""
    first: str = ""
    second: str = ""

    def __call__(self, race: Mapping[str, Any]) -> bool:
        return (
            race["kind"] in self.kinds
            and re.search(self.buffer, race["buffer"]) is not None
            and re.search(self.first, _place(race["first"])) is not None
            and re.search(self.second, _place(race["second"])) is not None
        )


def _place(operation: Mapping[str, Any]) -> str:
    file = os.path.basename(operation["file"] or "")
    return f"{file}:{operation['function'] or ''} {operation['operation']}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program that shows one hazard.

    ``stages``: the ZeRO stages that have it, none where it isn't ZeRO's. ``ranks``: how many the
    program runs on. ``needs``: whether it takes gradient hooks on several streams. ``program``: the
    module in this package whose ``run(case)`` it is. ``digest``: whether some schedule trains
    something else. ``since`` and ``until``: the releases of DeepSpeed in which the hazard can be,
    as far as is known; None is an open end.
    """

    id: str
    title: str
    stages: tuple[int, ...]
    ranks: int
    needs: Literal["multi", "single"]
    program: str
    case: Mapping[str, object]
    expects: tuple[Expected, ...]
    digest: bool = True
    since: str | None = None
    until: str | None = None
    schedules: tuple[str, ...] = field(default=("in-order", "fifo", "lifo", "lazy", "mru"))
    """Enough to show the difference, if there is one; in-order comes first."""

    def present(self, races: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether any of the race reports shows the hazard."""
        return any(expected(race) for race in races for expected in self.expects)


def script_of(scenario: Scenario, **changes: object) -> Script:
    """Return what ``accel_streams.explore`` runs, with ``changes`` to the scenario's case."""
    from accel_streams.explore import Script

    return Script(PACKAGE, (scenario.id, json.dumps(changes)), module=True)
