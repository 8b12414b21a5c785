"""``accel-streams demo``: DeepSpeed wrong as it ships, right with this package."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Optional

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
        Optional[str],  # noqa: UP045
        typer.Option(
            help="On the simulated device: a comma list, seeded ones as name:seed. In-order always "
            "runs. By default in-order,fifo,lifo,mru,lazy,priority:0.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 20,
    ranks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=1,
            help="Ranks, as processes on this machine: by default 2, or 1 where there is one GPU.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the GPT.")] = 8,
    variants: Annotated[
        str, typer.Option(help="Comma list of deepspeed (as it ships) and accel_streams.")
    ] = "deepspeed,accel_streams",
    backend: Annotated[
        str, typer.Option(help="The device: cpu_fake, the simulated one, or cuda.")
    ] = "cpu_fake",
    tries: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--runs",
            min=1,
            help="On cuda: how many runs of each variant besides the one in which the host waits "
            "for each kernel, by default 3.",
            show_default=False,
        ),
    ] = None,
    delay: Annotated[
        float,
        typer.Option(
            min=0,
            help="On cuda: hold the reductions up by so many milliseconds at each gradient, to "
            "show the worst case.",
        ),
    ] = 0.0,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which one run counts as hung.")
    ] = 300.0,
    device: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Show that DeepSpeed's ZeRO-2 trains wrong parameters, and that this package mends it.

    Trains a small GPT on the Python standard library's sources, the step running under one stream
    of the user's, as DeepSpeed ships and with accel_streams: each under several schedules of the
    simulated device; on GPUs several times, with no delay unless asked for, and once with the host
    waiting for each kernel, which is the truth. Prints a table, what went wrong and which wait is
    missing; writes a picture of the streams and a trace for https://ui.perfetto.dev. Exit status: 0
    if DeepSpeed is shown wrong and accel_streams right, 1 if not, 2 for wrong usage.

    \b
    Example:
      accel-streams demo --output demo --schedules fifo,lifo,priority:3
      accel-streams demo --backend cuda --runs 5
    """  # noqa: D301  (click wants the backspace itself)
    name = backend.replace("-", "_")
    if name not in ("cpu_fake", "cuda"):
        raise typer.BadParameter(
            f"{backend!r} is not supported: the demo needs a device whose schedule can be chosen, "
            "cpu_fake, or on which kernels can be made to block, cuda. For any other one there is: "
            f"accel-streams races --backend {backend} SCRIPT",
            param_hint="--backend",
        )
    from accel_streams import explore as exploring
    from accel_streams.cli import _demo_setting
    from accel_streams.cli._demo_files import KEPT_RECORDS_PER_LAYER, write_trace_files
    from accel_streams.cli._demo_verdict import Figures, judge

    chosen = _runs.parsed("--variants", lambda: exploring.variants_named(_runs.words(variants)))
    _demo_setting.require_modules(("torch", "deepspeed", "matplotlib"))
    if name == "cuda":
        setting = _demo_setting.on_cuda(schedules, ranks, tries, delay)
    else:
        setting = _demo_setting.on_the_simulated_device(schedules, ranks, tries, delay, device)
    if setting.fresh:
        os.environ["DS_ACCELERATOR"] = f"accel_streams:{setting.backend}"
    keep = {"deepspeed": KEPT_RECORDS_PER_LAYER * max(8, layers)}
    arguments = ("--steps", str(steps), "--layers", str(layers), *setting.arguments)
    script = exploring.Script(exploring.DEMO_SCRIPT, arguments)
    ours = next((variant for variant in chosen if variant.name == "accel_streams"), None)
    _runs.made_folder(output, "--output")
    started = time.monotonic()
    files: list[Path] = []
    with (
        _runs.ending_cleanly(),
        exploring.Runner(
            ranks=setting.ranks,
            device=setting.device,
            timeout_s=timeout,
            jobs=setting.jobs,
            fresh=setting.fresh,
        ) as runner,
        _runs.progress(len(chosen) * len(setting.schedules) + (ours is not None)) as finished,
    ):
        ready = time.monotonic()
        runs: list[exploring.RunResult] = []

        def done(result: exploring.RunResult) -> None:
            runs.append(result)
            finished(result)

        alone = None
        if ours is not None:
            single = exploring.Script(exploring.DEMO_SCRIPT, (*arguments, "--single-stream"))
            alone = runner.run(exploring.Run(single, ours, setting.schedules[0]), done)
        summaries = exploring.compare(
            runner, script, chosen, setting.schedules, keep_records=keep, finished=done
        )
        for summary in summaries:
            if summary.name == "deepspeed":
                files += write_trace_files(output, summary)
    figures = Figures.of(runs, wall_s=time.monotonic() - started, start_s=ready - started)
    verdict = judge(summaries, alone)
    document = exploring.document(
        summaries,
        backend=runner.backend,
        ranks=setting.ranks,
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
