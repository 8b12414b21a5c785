"""Run a script under all schedules in all variants, and say what agrees."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from types import MappingProxyType
from typing import Any

from ._failures import NotDeterministicError
from ._plan import BLOCKING, IN_ORDER, Run, Schedule, Script, Variant
from ._results import RunResult, VariantSummary
from ._runner import Runner

__all__ = ["compare", "document", "version_of"]


def compare(
    runner: Runner,
    script: Script,
    variants: Sequence[Variant],
    schedules: Sequence[Schedule],
    *,
    keep_records: Mapping[str, int] = MappingProxyType({}),
    finished: Callable[[RunResult], None] = lambda _: None,
) -> list[VariantSummary]:
    """Run everything and return one summary a variant; `finished` is called after every run.

    `schedules` starts with the in-order one, on a real device with the blocking one. Where a
    schedule ends with another digest, that first run is repeated, because the difference means
    something only if it agrees with itself: NotDeterministicError otherwise. `keep_records` says
    for which variants the first so many trace records of every rank are kept.
    """
    if not schedules or schedules[0] not in (IN_ORDER, BLOCKING):
        raise ValueError(
            "the first schedule must be in-order, or on a real device blocking: the others are "
            "compared with it"
        )
    runs = [
        Run(
            script,
            variant,
            schedule,
            keep_records=keep_records.get(variant.name, 0) if schedule.checked else 0,
            check=schedule.checked,
        )
        for variant in variants
        for schedule in schedules
    ]
    results = iter(runner.run_all(runs, finished))
    summaries = []
    for variant in variants:
        summaries.append(VariantSummary(variant.name, [next(results) for _ in schedules]))
    doubtful = [one for one in summaries if one.agreeing < len(one.runs)]
    repeats = [replace(one.reference.run, keep_records=0) for one in doubtful]
    for summary, again in zip(doubtful, runner.run_all(repeats, finished), strict=True):
        if not summary.agrees(again):
            raise NotDeterministicError(
                f"{script} is not deterministic: two {schedules[0]} runs of variant {summary.name} "
                "ended with different parameters, so a difference between schedules would mean "
                "nothing. Seed every random number generator, and take nothing from the clock, "
                "from process ids or from the operating system's entropy."
            )
    return summaries


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution without importing it, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def document(
    summaries: Sequence[VariantSummary], *, backend: str, ranks: int, **more: Any
) -> dict[str, Any]:
    """Return the JSON document of ``demo`` and ``explore``, schema 1, with `more` fields."""
    return {
        "schema": 1,
        "deepspeed": version_of("deepspeed"),
        "torch": version_of("torch"),
        "python": platform.python_version(),
        "backend": backend,
        "ranks": ranks,
        "steps": max(run.steps for summary in summaries for run in summary.runs),
        "variants": [summary.to_json() for summary in summaries],
        **more,
    }
