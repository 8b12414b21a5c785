"""``accel-streams explore --systematic``, and how a schedule is replayed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from accel_streams.cli import _runs
from accel_streams.cli._common import EXIT_FAILED, write_json

if TYPE_CHECKING:
    from accel_streams.explore import Exploration, Run, Runner, Script, Variant

__all__ = ["replay_line", "search_systematically"]


def replay_line(runner: Runner, run: Run) -> str:
    """Return the command that runs the script by itself under the schedule of `run`."""
    variables = {**runner.environment, **dict(run.variant.environment)}
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    alone = runner.ranks == 1
    words = ["python"] if alone else ["deepspeed", "--num_gpus", str(runner.ranks)]
    script = run.script
    as_module = ["-m" if alone else "--module"]
    if runner.backend == "cpu_fake":
        # A script may use the device without having asked for it, since in a run it is there.
        words += [*as_module, "accel_streams.explore"]
        as_module = ["-m"]
    if script.module:
        words += as_module
    words += [script.target, *script.arguments, *run.variant.arguments]
    return " ".join([*assignments, run.schedule.replay, shlex.join(words)])


def search_systematically(
    runner: Runner,
    script: Script,
    variant: Variant,
    max_schedules: int,
    max_deviations: int | None,
    json_file: Path | None,
) -> None:
    """Search, print what was found, and exit with status 1 where schedules end differently."""
    from accel_streams import explore as exploring

    status = Console(stderr=True)
    with _runs.ending_cleanly(), runner, status.status("running in order") as shown:
        found = exploring.search_script(
            runner,
            script,
            variant,
            max_schedules=max_schedules,
            max_deviations=max_deviations,
            finished=lambda count: shown.update(f"{count} schedules"),
        )
    if json_file is not None:
        write_json(json_file, _document(found, runner.backend))
    console = _runs.output_console()
    console.print(found.told(), soft_wrap=True, markup=False)
    failing = found.failing
    if failing is not None:
        others = len(found.outcomes) - 2
        if others > 0:
            shown_now = f"{others} more {'outcome' if others == 1 else 'outcomes'}"
            console.print(f"and {shown_now}; --json FILE lists all of them", markup=False)
        run = exploring.Run(script, variant, exploring.Schedule(failing.schedule))
        console.print(f"replay it with {replay_line(runner, run)}", soft_wrap=True, markup=False)
    if json_file is not None:
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    if not found.agrees:
        raise typer.Exit(EXIT_FAILED)


def _document(found: Exploration, backend: str) -> dict[str, object]:
    from accel_streams.explore import version_of

    return {
        "schema": 1,
        "deepspeed": version_of("deepspeed"),
        "torch": version_of("torch"),
        "backend": backend,
        "ranks": 1,
        "complete": found.complete,
        "reason": found.reason,
        "schedules": found.schedules,
        "operations": found.operations,
        "outcomes": [
            {
                "text": outcome.text,
                "schedule": outcome.schedule,
                "classes": outcome.classes,
                "delays": list(outcome.explained),
            }
            for outcome in found.outcomes
        ],
    }
