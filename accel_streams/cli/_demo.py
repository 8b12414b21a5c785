"""``accel-streams demo``: DeepSpeed wrong as it ships, right with this package."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from accel_streams.cli import _runs
from accel_streams.cli._common import EXIT_FAILED, JsonFile, command_app, write_json

__all__ = ["app"]

app = command_app()


@app.command("demo")
def demo(
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the files go.", file_okay=False)
    ] = Path("accel-streams-demo"),
    json_file: JsonFile = None,
    schedules: Annotated[
        str, typer.Option(help="Comma list; seeded ones as name:seed. In-order always runs.")
    ] = "in-order,fifo,lifo,mru,lazy,priority:0",
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 20,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks, as processes on this machine.")] = 2,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the GPT.")] = 8,
    variants: Annotated[
        str, typer.Option(help="Comma list of deepspeed (as it ships) and accel_streams.")
    ] = "deepspeed,accel_streams",
    backend: Annotated[str, typer.Option(help="The device: cpu_fake.")] = "cpu_fake",
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which one run counts as hung.")
    ] = 300.0,
    device: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Show that DeepSpeed's ZeRO-2 trains wrong parameters, and that this package mends it.

    Trains a small GPT on the Python standard library's sources, the step running under one stream
    of the user's, as DeepSpeed ships and with accel_streams, each under several schedules of the
    simulated device. Prints a table, what went wrong and which wait is missing; writes a picture of
    the streams and a trace for https://ui.perfetto.dev. Exit status: 0 if DeepSpeed is shown wrong
    and accel_streams right, 1 if not, 2 for wrong usage.

    \b
    Example:
      accel-streams demo --output demo --schedules fifo,lifo,priority:3
    """  # noqa: D301  (click wants the backspace itself)
    if backend.replace("-", "_") != "cpu_fake":
        raise typer.BadParameter(
            f"{backend!r} is not supported yet: the demo chooses the order in which the device "
            "runs its work, which only the simulated device, cpu_fake, allows",
            param_hint="--backend",
        )
    from accel_streams import explore as exploring
    from accel_streams.cli._demo_files import KEPT_RECORDS_PER_LAYER, write_trace_files
    from accel_streams.cli._demo_verdict import Figures, judge

    planned = _runs.parsed("--schedules", lambda: exploring.parse_schedules(_runs.words(schedules)))
    chosen = _runs.parsed("--variants", lambda: exploring.variants_named(_runs.words(variants)))
    missing = [name for name in ("torch", "deepspeed", "matplotlib") if find_spec(name) is None]
    if missing:
        raise exploring.StartError(
            f"the demo needs {' and '.join(missing)}, not installed in this environment; "
            'install everything it needs with: python -m pip install "accel-streams[demo]"'
        )
    keep = {"deepspeed": KEPT_RECORDS_PER_LAYER * max(8, layers)}
    arguments = ("--steps", str(steps), "--layers", str(layers))
    script = exploring.Script(exploring.DEMO_SCRIPT, arguments)
    ours = next((variant for variant in chosen if variant.name == "accel_streams"), None)
    _runs.made_folder(output, "--output")
    started = time.monotonic()
    files: list[Path] = []
    with (
        _runs.ending_cleanly(),
        exploring.Runner(
            ranks=ranks, device=device or exploring.FAKE_DEVICE, timeout_s=timeout
        ) as runner,
        _runs.progress(len(chosen) * len(planned) + (ours is not None)) as finished,
    ):
        ready = time.monotonic()
        runs: list[exploring.RunResult] = []

        def done(result: exploring.RunResult) -> None:
            runs.append(result)
            finished(result)

        alone = None
        if ours is not None:
            single = exploring.Script(exploring.DEMO_SCRIPT, (*arguments, "--single-stream"))
            alone = runner.run(exploring.Run(single, ours, exploring.IN_ORDER), done)
        summaries = exploring.compare(
            runner, script, chosen, planned, keep_records=keep, finished=done
        )
        for summary in summaries:
            if summary.name == "deepspeed":
                files += write_trace_files(output, summary)
    figures = Figures.of(runs, wall_s=time.monotonic() - started, start_s=ready - started)
    verdict = judge(summaries, alone)
    document = exploring.document(
        summaries,
        backend=runner.backend,
        ranks=ranks,
        single_stream=None if alone is None else alone.to_json(),
        holds=verdict.holds,
        figures=figures.to_json(),
    )
    for path in (output / "demo.json", json_file):
        if path is not None:
            write_json(path, document)
            files.append(path)
    console = _runs.output_console()
    console.print(_runs.run_table(summaries))
    for line in (*verdict.sentences, *(f"wrote {path}" for path in files), str(figures)):
        console.print(line, soft_wrap=True, markup=False)
    if not verdict.holds:
        raise typer.Exit(EXIT_FAILED)
