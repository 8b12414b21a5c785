"""The known ordering hazards of DeepSpeed, as programs that show them, and what they have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accel_streams.hazards._document import document
from accel_streams.hazards._results import (
    STATES,
    Finding,
    ReleaseResults,
    State,
    load_results,
    results_for,
)
from accel_streams.hazards.scenarios import HAZARDS, Expected, Scenario, script_of

if TYPE_CHECKING:
    from accel_streams.hazards._measure import measure, measure_scenario

__all__ = [
    "HAZARDS",
    "STATES",
    "Expected",
    "Finding",
    "ReleaseResults",
    "Scenario",
    "State",
    "document",
    "load_results",
    "measure",
    "measure_scenario",
    "results_for",
    "script_of",
]


def __getattr__(name: str) -> Any:
    # What runs programs is not needed to read what they have shown.
    if name in ("measure", "measure_scenario"):
        from accel_streams.hazards import _measure

        return getattr(_measure, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
