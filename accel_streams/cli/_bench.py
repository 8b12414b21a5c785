"""``accel-streams bench``: training steps on real GPUs, beside what one would run otherwise."""

from __future__ import annotations

from typing import Any

import typer

from accel_streams.cli._common import EXIT_USAGE, JsonFile, command_app, table, write_json

__all__ = ["app", "report"]

app = command_app()


@app.command("bench")
def bench(
    stage: int = typer.Option(2, min=1, max=3, help="ZeRO's stage."),
    bucket: int = typer.Option(8_000_000, min=1, help="reduce_bucket_size, in elements."),
    layers: int = typer.Option(12, min=1, help="Layers of the GPT that is trained."),
    width: int = typer.Option(1024, min=16, help="Its width."),
    batch: int = typer.Option(4, min=1, help="Sequences of 256 tokens a rank and step."),
    default_stream: bool = typer.Option(
        False, "--default-stream", help="Step on the default stream, not under one of its own."
    ),
    variants: str = typer.Option(
        "stock,stock-no-overlap,sync,track",
        help="A comma list of stock, stock-no-overlap, sync, track, track-no-overlap, ddp, fsdp2.",
    ),
    pairs: int = typer.Option(5, min=2, help="Samples of each variant, taken in turn."),
    steps: int = typer.Option(30, min=1, help="Training steps of a sample."),
    ranks: int | None = typer.Option(None, min=1, help="GPUs to use; all there are by default."),
    json_file: JsonFile = None,
) -> None:
    """Measure training steps on CUDA: DeepSpeed alone and with this package, in turn.

    The variants live in the same processes and take turns; ratios are taken pair by pair, with an
    interval of 95 %. Needs a GPU.

    \b
    Example:
      accel-streams bench --stage 2 --variants stock,track --json bench.json
    """  # noqa: D301  (click wants the backspace itself)
    from accel_streams import AccelStreamsError
    from accel_streams.bench import Group, Options, Setting, run

    setting = Setting(
        stage=stage,
        bucket=bucket,
        layers=layers,
        width=width,
        batch=batch,
        user_stream=not default_stream,
    )
    try:
        options = Options(
            variants=tuple(variants.split(",")), pairs=pairs, steps=steps, ranks=ranks
        )
        document = run([Group("bench", (setting,), {})], options, report=report)
    except AccelStreamsError as exc:
        typer.echo(f"accel-streams: error: {exc}", err=True)
        raise typer.Exit(EXIT_USAGE) from exc
    if json_file is not None:
        write_json(json_file, document)


def report(runs: list[dict[str, Any]], ratios: list[Any]) -> None:
    """Print what was measured: a line a run, and a line a ratio."""
    rows = [("run", "ms a step", "peak GiB", "us a hook", "hidden", "of possible", "host waits")]
    for entry in runs:
        profile = entry.get("profile") or {}
        rows.append(
            (
                entry["name"],
                f"{entry['median_ms']:.2f}",
                _number(entry.get("peak_bytes"), 2**-30),
                _number(entry.get("host_us_a_hook")),
                _number(profile.get("hidden")),
                _number(profile.get("possible")),
                _number(sum((profile.get("waits") or {}).values())) if profile else "",
            )
        )
    typer.echo(table(rows))
    for ratio in ratios:
        typer.echo(f"{ratio.name}: {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")


def _number(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:.2f}"
