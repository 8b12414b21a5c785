"""Run a program on a device under many schedules, or all, and compare how it ends."""

from __future__ import annotations

from pathlib import Path

from ._compare import compare, document, version_of
from ._failures import ExploreError, NotDeterministicError, RunFailedError, StartError
from ._plan import (
    BLOCKING,
    IN_ORDER,
    VARIANTS,
    Run,
    Schedule,
    Script,
    Variant,
    free_runs,
    parse_schedules,
    plan_schedules,
    variants_named,
)
from ._results import RankResult, RunResult, VariantSummary, told_race
from ._runner import FAKE_DEVICE, Runner
from ._search import Exploration, Outcome
from ._shorten import search_script, shorten
from ._systematic import explore_all, replay

DEMO_SCRIPT = str(Path(__file__).with_name("demo_train.py"))
"""The training script of ``accel-streams demo``."""

REAL_DEVICE = f"{__name__}._watched:RealDevice"
"""The device of the backend that ``DS_ACCELERATOR`` names, for a `Runner`."""

__all__ = [
    "BLOCKING",
    "DEMO_SCRIPT",
    "FAKE_DEVICE",
    "IN_ORDER",
    "REAL_DEVICE",
    "VARIANTS",
    "Exploration",
    "ExploreError",
    "NotDeterministicError",
    "Outcome",
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
    "compare",
    "document",
    "explore_all",
    "free_runs",
    "parse_schedules",
    "plan_schedules",
    "replay",
    "search_script",
    "shorten",
    "told_race",
    "variants_named",
    "version_of",
]
