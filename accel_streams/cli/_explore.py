"""``accel-streams explore``: the user's own script under many schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from accel_streams.cli import _runs
from accel_streams.cli._common import EXIT_FAILED, JsonFile, command_app, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from accel_streams.explore import VariantSummary

__all__ = ["app"]

_RACES_TOLD = 5

app = command_app()


# Options end at the script's name, so that the script keeps its own even without a "--".
@app.command("explore", context_settings={"allow_interspersed_args": False})
def explore(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT",
            help="A training script and its arguments, or -m and a module.",
            show_default=False,
        ),
    ],
    schedules: Annotated[
        int, typer.Option(min=1, help="How many schedules; the first one is in-order.")
    ] = 16,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks, as processes on this machine.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first seeded schedule.")] = 0,
    variants: Annotated[
        str, typer.Option(help="Comma list of accel_streams and deepspeed (as it ships).")
    ] = "accel_streams",
    json_file: JsonFile = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which one run counts as hung.")
    ] = 600.0,
    jobs: Annotated[
        int, typer.Option(min=0, help="Runs at the same time; 0 means CPU cores / ranks.")
    ] = 0,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="A new interpreter for each run, not a fork: slow, isolated."),
    ] = False,
    logs: Annotated[
        Optional[Path],  # noqa: UP045  (older releases of typer know no "| None")
        typer.Option(metavar="DIR", help="Keep the output of every rank in DIR."),
    ] = None,
    device: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run a training script on the simulated device under many schedules, and compare.

    The script needs no change: it finds the device through DeepSpeed's get_accelerator(), or asks
    torch for device "fake". All runs must end with the same bytes in all parameters and in the
    optimizer state, and without a race between streams. Exit status: 0 if so, 1 if not or if the
    script fails, 2 for wrong usage.

    \b
    Example:
      accel-streams explore --schedules 32 --ranks 2 -- train.py --epochs 1
    """  # noqa: D301  (click wants the backspace itself)
    from accel_streams import explore as exploring

    script = _runs.parsed("SCRIPT", lambda: exploring.Script.parse(command))
    if not script.module and not Path(script.target).is_file():
        raise typer.BadParameter(f"there is no file {script.target}", param_hint="SCRIPT")
    chosen = _runs.parsed("--variants", lambda: exploring.variants_named(_runs.words(variants)))
    if logs is not None and any(_runs.made_folder(logs, "--logs").iterdir()):
        raise typer.BadParameter(f"{logs} is not empty; name a new folder", param_hint="--logs")
    planned = exploring.plan_schedules(schedules, seed)
    with (
        _runs.ending_cleanly(),
        exploring.Runner(
            ranks=ranks,
            device=device or exploring.FAKE_DEVICE,
            timeout_s=timeout,
            jobs=jobs,
            fresh=fresh,
            logs=logs,
        ) as runner,
        _runs.progress(len(chosen) * len(planned)) as finished,
    ):
        summaries = exploring.compare(runner, script, chosen, planned, finished=finished)
    if json_file is not None:
        write_json(
            json_file, exploring.document(summaries, backend=runner.backend, ranks=runner.ranks)
        )
    if runner.fresh_reason:
        typer.echo(f"note: each run had a new interpreter, because {runner.fresh_reason}", err=True)
    console = _runs.output_console()
    console.print(_runs.run_table(summaries))
    for summary in summaries:
        _tell(console, summary)
    if json_file is not None:
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    if not all(summary.clean for summary in summaries):
        raise typer.Exit(EXIT_FAILED)


def _tell(console: Console, summary: VariantSummary) -> None:
    runs = summary.runs
    races = summary.races
    lines = [
        f"{summary.name}: {summary.agreeing} of {len(runs)} schedules end with the parameters of "
        f"the in-order run; {len(races)} different races"
    ]
    for race in races[:_RACES_TOLD]:
        lines.append(f"  {_runs.told_race(race)} (in {len(race['schedules'])} of {len(runs)} runs)")
    if len(races) > _RACES_TOLD:
        lines.append(f"  and {len(races) - _RACES_TOLD} more; --json FILE lists all of them")
    different = [run.run for run in runs if not summary.agrees(run)]
    if different:
        variables = [f"{name}={value}" for name, value in different[0].variant.environment]
        lines.append(
            f"  replay the first difference with {' '.join(variables)} "
            f"{different[0].schedule.replay}"
        )
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
