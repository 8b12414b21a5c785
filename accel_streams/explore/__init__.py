"""Run a training script on a device under many schedules and compare what it trained."""

from __future__ import annotations

from ._failures import ExploreError, NotDeterministicError, RunFailedError, StartError
from ._plan import (
    IN_ORDER,
    VARIANTS,
    Run,
    Schedule,
    Script,
    Variant,
    parse_schedules,
    plan_schedules,
    variants_named,
)
from ._results import RankResult, RunResult, VariantSummary, write_atomically, write_json
from ._runner import FAKE_DEVICE, Runner

__all__ = [
    "FAKE_DEVICE",
    "IN_ORDER",
    "VARIANTS",
    "ExploreError",
    "NotDeterministicError",
    "RankResult",
    "Run",
    "RunFailedError",
    "RunResult",
    "Runner",
    "Schedule",
    "Script",
    "StartError",
    "Variant",
    "VariantSummary",
    "parse_schedules",
    "plan_schedules",
    "variants_named",
    "write_atomically",
    "write_json",
]
