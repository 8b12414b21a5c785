"""``accel-streams races``: one run of a script, or a saved trace, looked through for races."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from accel_streams.cli import _runs
from accel_streams.cli._common import EXIT_FAILED, EXIT_USAGE, SCHEMA, JsonFile, command_app
from accel_streams.cli._common import write_json as write_json_file

if TYPE_CHECKING:
    from accel_streams.explore import RunResult
    from accel_streams.races import Trace

__all__ = ["app"]

_FAKE = "cpu_fake"
_WATCHED_FAKE_DEVICE = "accel_streams.explore._watched:WatchedFakeDevice"
# Enough for some steps of a small model. What a picture shows is the surroundings of one race.
_KEPT_RECORDS = 200_000

app = command_app()

# Older releases of typer know no "| None".
_File = Optional[Path]  # noqa: UP045


@app.command("races", context_settings={"allow_interspersed_args": False})
def races(
    command: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[SCRIPT]",
            help="A script and its arguments, or -m and a module.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks, as processes on this machine.")] = 2,
    backend: Annotated[
        str, typer.Option(help="Where the script runs: cpu_fake is the simulated device.")
    ] = _FAKE,
    trace: Annotated[
        _File, typer.Option(metavar="FILE", help="Analyse a saved trace in place of a script.")
    ] = None,
    json_file: JsonFile = None,
    perfetto: Annotated[
        _File, typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev.")
    ] = None,
    picture: Annotated[
        _File, typer.Option(metavar="FILE", help="Draw the first race as a PNG; needs matplotlib.")
    ] = None,
    save: Annotated[
        _File, typer.Option(metavar="FILE", help="Keep the trace of the rank that shows most.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which the run counts as hung.")
    ] = 600.0,
    logs: Annotated[
        _File, typer.Option(metavar="DIR", help="Keep the output of every rank in DIR.")
    ] = None,
    device: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run a script once and report every race between streams, each with the wait that is missing.

    The analysis works on what the script asks for, not on what happens to run first: one run in
    which nothing breaks is enough. How ZeRO's buffers are ordered is up to ACCEL_STREAMS_ZERO, as
    in any run. Exit status: 0 no race, 1 races or the script fails, 2 wrong usage or nothing done
    on the device.

    \b
    Example:
      accel-streams races --ranks 2 -- train.py --epochs 1
    """  # noqa: D301  (click wants the backspace itself)
    for path, option in ((perfetto, "--perfetto"), (picture, "--picture"), (save, "--save")):
        _check_file(path, option)
    if picture is not None:
        _check_matplotlib()
    if (trace is None) == (not command):
        raise typer.BadParameter(
            "name either a script or a saved trace (--trace FILE)", param_hint="SCRIPT"
        )
    saved: Trace | None
    if trace is not None:
        document, heading, saved = _analyse(trace, backend)
    else:
        assert command is not None
        document, heading, saved = _watch(
            command, backend, ranks, timeout, logs, device, keep=bool(perfetto or picture or save)
        )
    if json_file is not None:
        write_json_file(json_file, document)
    _tell(heading, document)
    for path, write in ((perfetto, _write_perfetto), (picture, _write_picture), (save, _save)):
        if path is not None:
            typer.echo(write(path, saved))
    if not document["operations"]:
        typer.echo(
            "accel-streams: error: no operation on the device was seen, so nothing was checked. "
            "Does the script use the device, and in the process that was started?",
            err=True,
        )
        raise typer.Exit(EXIT_USAGE)
    if document["races"]:
        raise typer.Exit(EXIT_FAILED)


def _watch(
    command: Sequence[str],
    backend: str,
    ranks: int,
    timeout: float,
    logs: Path | None,
    device: str,
    *,
    keep: bool,
) -> tuple[dict[str, Any], str, Trace | None]:
    from accel_streams import _registry, _settings
    from accel_streams import explore as exploring

    script = _runs.script_of(command)
    _runs.check_logs(logs)
    name = _registry.normalise(backend)
    simulated = name == _FAKE
    zero = _settings.zero_mode()
    schedule = exploring.IN_ORDER
    if simulated:
        schedule = exploring.Schedule(
            _settings.schedule() or exploring.IN_ORDER.name, _settings.seed()
        )
    else:
        _registry.choose(name)  # An error here, and not in every rank.
    # This command reports; the processes need not, too.
    os.environ.pop("ACCEL_STREAMS_RACES", None)
    os.environ["DS_ACCELERATOR"] = f"accel_streams:{name}"
    kind = _WATCHED_FAKE_DEVICE if simulated else exploring.REAL_DEVICE
    with (
        _runs.ending_cleanly(),
        exploring.Runner(
            ranks=ranks,
            device=device or kind,
            timeout_s=timeout,
            fresh=not simulated,
            logs=logs,
        ) as runner,
        _runs.progress(1) as finished,
    ):
        run = exploring.Run(
            script,
            exploring.Variant(f"ACCEL_STREAMS_ZERO={zero}"),
            schedule,
            keep_records=_KEPT_RECORDS if keep else 0,
            compare=False,
        )
        result = runner.run(run, finished)
        saved = _most_telling(result) if keep else None
    for rank in result.ranks:
        if not rank.operations and any(other.operations for other in result.ranks):
            typer.echo(
                f"warning: rank {rank.rank} did nothing on the device, so nothing of it was "
                "checked",
                err=True,
            )
    document = {
        "schema": SCHEMA,
        "operations": sum(rank.operations for rank in result.ranks),
        "unseen": list(dict.fromkeys(each for rank in result.ranks for each in rank.unseen)),
        "races": _with_causes(result.races),
    }
    plural = "" if ranks == 1 else "s"
    heading = f"{script} on {name}, {ranks} rank{plural}, ACCEL_STREAMS_ZERO={zero}"
    return document, heading, saved


def _with_causes(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number the causes anew: each rank has numbered its own."""
    numbers: dict[tuple[int, int], int] = {}
    return [
        {**race, "cause": numbers.setdefault((race["ranks"][0], race["cause"]), len(numbers))}
        for race in found
    ]


def _most_telling(result: RunResult) -> Trace | None:
    """Load the trace of the first rank with a race, else of rank 0."""
    from accel_streams.races import load_trace

    rank = next((rank for rank in result.ranks if rank.races), result.ranks[0])
    return None if rank.trace is None else load_trace(rank.trace)


def _analyse(path: Path, backend: str) -> tuple[dict[str, Any], str, Trace]:
    from accel_streams import _registry
    from accel_streams.races import Analyser, load_trace, to_json

    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}", param_hint="--trace")
    name = _registry.normalise(backend)
    wanted = None if name == _FAKE else _registry.load(name).device_type
    trace = load_trace(path, device_type=wanted)
    analyser = Analyser(trace.header.device_type)
    analyser.feed(trace.records)
    unseen = ["what came before the trace began and after it ended"]
    if "cut" in trace.header.info:
        unseen = [f"what came after the first {trace.header.info['cut']:,} records of the run"]
    found = analyser.races(trace.header.stream_names)
    heading = f"{path}, of the device {trace.header.device_type!r}"
    unseen = [*analyser.unseen, *unseen]
    return to_json(found, operations=analyser.operations, unseen=unseen), heading, trace


def _tell(heading: str, document: dict[str, Any]) -> None:
    from accel_streams.races import render_text
    from accel_streams.races._revive import race_of
    from accel_streams.races._watch import told_unseen

    found = []
    for each in document["races"]:
        race = race_of(each)
        ranks = each.get("ranks", ())
        if len(ranks) > 0 and heading.find(" 1 rank,") < 0:
            seen = f"seen on rank {' and '.join(map(str, ranks))}"
            race = replace(race, note=f"{race.note}; {seen}" if race.note else seen)
        found.append(race)
    typer.echo(f"{heading}\n")
    if document["operations"]:
        typer.echo(render_text(found, operations=document["operations"]))
    for line in told_unseen(document["unseen"]):
        typer.echo(line)


def _write_perfetto(path: Path, trace: Trace | None) -> str:
    from accel_streams.races import write_perfetto

    if trace is None:
        return f"{path} was not written: there is no trace"
    write_perfetto(path, trace.records, _races_of(trace), trace.header.stream_names)
    return f"wrote {path}"


def _write_picture(path: Path, trace: Trace | None) -> str:
    from accel_streams.races import draw_timeline

    found = [] if trace is None else _races_of(trace)
    if trace is None or not found:
        return f"{path} was not written: there is no race to draw"
    draw_timeline(path, trace.records, found, trace.header.stream_names)
    return f"wrote {path}"


def _save(path: Path, trace: Trace | None) -> str:
    from accel_streams.races import save_trace

    if trace is None:
        return f"{path} was not written: there is no trace"
    save_trace(path, trace.records, trace.header)
    return f"wrote {path}"


def _races_of(trace: Trace) -> list[Any]:
    from accel_streams.races import Analyser

    analyser = Analyser(trace.header.device_type)
    analyser.feed(trace.records)
    return analyser.races(trace.header.stream_names)


def _check_file(path: Path | None, option: str) -> None:
    """Refuse a file that can't be written before the work begins, not after it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"{path} can't be written", param_hint=option)


def _check_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise typer.BadParameter(
            "drawing needs matplotlib, which is not installed: pip install matplotlib",
            param_hint="--picture",
        )
