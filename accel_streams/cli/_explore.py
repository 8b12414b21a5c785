"""``accel-streams explore``: the user's own script under many schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from accel_streams.cli import _runs
from accel_streams.cli._common import EXIT_FAILED, JsonFile, command_app, write_json
from accel_streams.cli._systematic import replay_line, search_systematically

if TYPE_CHECKING:
    from rich.console import Console

    from accel_streams.explore import Runner, RunResult, VariantSummary

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
    ranks: Annotated[
        Optional[int],  # noqa: UP045  (older releases of typer know no "| None")
        typer.Option(
            min=1,
            help="Ranks, as processes on this machine. Default: 2, or 1 with --systematic.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first seeded schedule.")] = 0,
    variants: Annotated[
        str, typer.Option(help="Comma list of accel_streams and deepspeed (as it ships).")
    ] = "accel_streams",
    only: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="In-order and this one, such as random:7 or delay:5-9; may be repeated.",
            show_default=False,
        ),
    ] = None,
    shorten: Annotated[
        int,
        typer.Option(
            min=0, help="Runs to spend on making a schedule that differs shorter; 0 for none."
        ),
    ] = 20,
    systematic: Annotated[
        bool,
        typer.Option(
            "--systematic",
            help="All orders that can make a difference, for small scripts on one rank.",
        ),
    ] = False,
    max_schedules: Annotated[
        int, typer.Option(min=1, help="Stop a systematic search after so many.")
    ] = 1000,
    max_deviations: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=0,
            help="Leave out schedules with more conflicting pairs in the other order than "
            "submitted, in a systematic search.",
            show_default=False,
        ),
    ] = None,
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

    With --systematic the script runs in every order that can make a difference. Compared are then
    also what it prints, and whether it fails.

    \b
    Example:
      accel-streams explore --schedules 32 --ranks 2 -- train.py --epochs 1
    """  # noqa: D301  (click wants the backspace itself)
    from accel_streams import explore as exploring

    script = _runs.script_of(command)
    chosen = _runs.parsed("--variants", lambda: exploring.variants_named(_runs.words(variants)))
    _runs.check_logs(logs)
    planned = (
        _runs.parsed("--schedule", lambda: exploring.parse_schedules(only))
        if only
        else exploring.plan_schedules(schedules, seed)
    )
    runner = exploring.Runner(
        ranks=ranks or (1 if systematic else 2),
        device=device or exploring.FAKE_DEVICE,
        timeout_s=timeout,
        jobs=jobs,
        fresh=fresh,
        logs=logs,
    )
    if systematic:
        if len(chosen) != 1 or runner.ranks != 1:
            raise typer.BadParameter(
                "a systematic search is for one variant on one rank", param_hint="--systematic"
            )
        search_systematically(runner, script, chosen[0], max_schedules, max_deviations, json_file)
        return
    with (
        _runs.ending_cleanly(),
        runner,
        _runs.progress(len(chosen) * len(planned)) as finished,
    ):
        summaries = exploring.compare(runner, script, chosen, planned, finished=finished)
        shortest = {
            summary.name: exploring.shorten(runner, summary, budget=shorten, finished=finished)
            for summary in (summaries if runner.backend == "cpu_fake" else ())
        }
    if json_file is not None:
        write_json(
            json_file, exploring.document(summaries, backend=runner.backend, ranks=runner.ranks)
        )
    if runner.fresh_reason:
        typer.echo(f"note: each run had a new interpreter, because {runner.fresh_reason}", err=True)
    console = _runs.output_console()
    console.print(_runs.run_table(summaries))
    for summary in summaries:
        _tell(console, summary, runner, shortest.get(summary.name))
    if json_file is not None:
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    if not all(summary.clean for summary in summaries):
        raise typer.Exit(EXIT_FAILED)


def _tell(
    console: Console, summary: VariantSummary, runner: Runner, shortest: RunResult | None
) -> None:
    from accel_streams.explore import told_race

    runs = summary.runs
    races = summary.races
    lines = [
        f"{summary.name}: {summary.agreeing} of {len(runs)} schedules end with the parameters of "
        f"the in-order run; {len(races)} different races"
    ]
    for race in races[:_RACES_TOLD]:
        lines.append(f"  {told_race(race)} (in {len(race['schedules'])} of {len(runs)} runs)")
    if len(races) > _RACES_TOLD:
        lines.append(f"  and {len(races) - _RACES_TOLD} more; --json FILE lists all of them")
    different = [run.run for run in runs if not summary.agrees(run)]
    if different:
        run = different[0] if shortest is None else shortest.run
        if shortest is not None:
            count = run.schedule.name.count(",") + 1
            lines.append(
                f"  the shortest schedule found that differs has "
                f"{'1 delay' if count == 1 else f'{count} delays'}: {run.schedule}"
            )
        lines.append(f"  replay it with {replay_line(runner, run)}")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
