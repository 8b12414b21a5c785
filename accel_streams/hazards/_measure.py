"""Run each hazard's program with the installed DeepSpeed, as it ships and with this package."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Sequence

from accel_streams._version import __version__
from accel_streams.explore import (
    VARIANTS,
    Run,
    RunFailedError,
    Runner,
    RunResult,
    Schedule,
    Variant,
    told_race,
    version_of,
)
from accel_streams.hazards._results import Finding, ReleaseResults, State
from accel_streams.hazards.scenarios import HAZARDS, Scenario, script_of

__all__ = ["measure", "measure_scenario"]

_NOT_RUNNABLE = re.compile(r"^\s*\w*Error: not runnable: (.*)", re.MULTILINE)
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt)\b")
_LINES_OF_REASON = 3
_REPORTS_KEPT = 3

Progress = Callable[[str], None]


def measure(
    *,
    hazards: Iterable[str] | None = None,
    schedules: Sequence[str] | None = None,
    commit: str = "",
    timeout_s: float = 300,
    progress: Progress = lambda _: None,
) -> ReleaseResults:
    """Run the programs of ``hazards``, all of them if None, in both variants.

    ``schedules``, in-order first; None: those of each scenario, which is more thorough. ``commit``
    names the state of this package in the results.
    """
    chosen = [HAZARDS[hazard] for hazard in (HAZARDS if hazards is None else hazards)]
    found: dict[str, dict[str, Finding]] = {}
    for ranks in sorted({scenario.ranks for scenario in chosen}):
        with Runner(ranks=ranks, timeout_s=timeout_s, jobs=1) as runner:
            for scenario in chosen:
                if scenario.ranks != ranks:
                    continue
                for variant in VARIANTS:
                    finding = measure_scenario(runner, scenario, variant, schedules)
                    found.setdefault(scenario.id, {})[variant.name] = finding
                    progress(f"{scenario.id} {variant.name}: {finding.state} {finding.reason}")
    return ReleaseResults(
        deepspeed=version_of("deepspeed") or "not installed",
        torch=version_of("torch") or "not installed",
        python=platform.python_version(),
        accel_streams=__version__,
        commit=commit,
        hazards={hazard: found[hazard] for hazard in HAZARDS if hazard in found},
    )


def measure_scenario(
    runner: Runner,
    scenario: Scenario,
    variant: Variant,
    schedules: Sequence[str] | None = None,
) -> Finding:
    """Run one program under its schedules; the race reports are those of the in-order run."""
    results: list[RunResult] = []
    try:
        for name in schedules or scenario.schedules:
            run = Run(script_of(scenario), variant, Schedule.parse(name))
            results.append(runner.run(run))
    except RunFailedError as exc:
        return Finding("can't run", reason=_reason(exc))
    return judge(scenario, results)


def judge(scenario: Scenario, results: Sequence[RunResult]) -> Finding:
    """Say what the runs, the in-order one first, have shown of the hazard."""
    races = results[0].races
    own = [race for race in races if scenario.present([race])]
    agree = len({result.digest for result in results}) == 1
    state: State = "not seen"
    if own:
        state = "present"
    elif races:
        state = "other"
    elif not agree:
        state = "differs"
    return Finding(
        state,
        schedules=tuple(str(result.run.schedule) for result in results),
        agree=agree,
        skipped_steps=max(result.skipped_steps for result in results),
        reports=tuple(told_race(race) for race in own[:_REPORTS_KEPT]),
        others=len(races) - len(own),
    )


def _reason(error: RunFailedError) -> str:
    told = _NOT_RUNNABLE.search(error.stderr)
    if told is not None:
        return told[1].strip()
    lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
    # The exception's own line, and what it goes on with.
    starts = [index for index, line in enumerate(lines) if _EXCEPTION.match(line)]
    if starts:
        return " ".join(lines[starts[-1] :][:_LINES_OF_REASON])
    return lines[-1] if lines else str(error).splitlines()[0]
