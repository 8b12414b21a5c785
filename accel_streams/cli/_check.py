"""``accel-streams check``: whether a backend's streams and events do what ZeRO relies on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from accel_streams import _registry
from accel_streams.cli import _runs
from accel_streams.cli._common import EXIT_FAILED, JsonFile, command_app, write_json

if TYPE_CHECKING:
    from accel_streams.conformance._matrix import Matrix
    from accel_streams.conformance._messages import Options, Task
    from accel_streams.conformance._report import Report

__all__ = ["app"]

app = command_app()

# Many of them hang.
_MUTANTS_TIMEOUT_S = 3.0
_LEVELS = ("L0", "L1", "L2", "L3")


def _check_file(path: Path | None) -> Path | None:
    """Refuse a file that can't be written before the work begins, not after it."""
    if path is None:
        return None
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"{path} can't be written")
    return path


@app.command("check")
def check(
    backend: Annotated[
        str,
        typer.Argument(
            metavar="BACKEND",
            help="A registered backend, or module:class of one that isn't yet.",
            show_default=False,
        ),
    ],
    only: Annotated[
        Optional[list[str]],  # noqa: UP045  (older releases of typer know no "| None")
        typer.Option(
            metavar="ID",
            help="Only this property or group: ORD-03, record_wait, EVT; may be repeated.",
            show_default=False,
        ),
    ] = None,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Break the backend on purpose, in all known ways: is it noticed?"
        ),
    ] = False,
    gate: Annotated[
        str, typer.Option(help="Hold streams by this level at most: L0, L1, L2 or L3.")
    ] = "L3",
    timeout: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            min=0.1,
            help="Seconds after which one property has failed. Default: 10, or 3 with --mutants.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonFile = None,
    markdown: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FILE",
            callback=_check_file,
            help="Also write the result as a Markdown table to FILE.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check what a backend's streams, events and memory do, property by property.

    A stream is held open while others are looked at, so that a wait that is missing shows. The
    accelerator that DeepSpeed would get is compared with the installed DeepSpeed, too. A property
    that hangs or crashes has failed, and the rest is still checked. With --mutants the backend is
    broken on purpose, one thing at a time, and the properties that have to notice are checked, or
    those of --only: what they miss here, they would miss in an honest mistake, too.

    Results: passed; failed; unverified (the device has no gate, or too few devices, to find out);
    inconclusive (a premise was not met, try again on a machine that is less busy); declared (the
    backend states the deviation). Exit status: 0 when nothing failed or was inconclusive, else 1;
    2 for wrong usage.

    \b
    Example:
      accel-streams check cpu_fake --markdown check.md
    """  # noqa: D301  (click wants the backspace itself)
    from accel_streams.conformance._gates import Level
    from accel_streams.conformance._messages import Options
    from accel_streams.conformance._property import select
    from accel_streams.conformance._run import DEFAULT_TIMEOUT_S

    if gate not in _LEVELS:
        raise typer.BadParameter(f"expected one of {', '.join(_LEVELS)}", param_hint="--gate")
    name = backend if ":" in backend else _registry.normalise(backend)
    if ":" not in name:
        _registry.find(name, _registry.registered())
    chosen = _runs.parsed("--only", lambda: select(only))
    limit = timeout or (_MUTANTS_TIMEOUT_S if mutants else DEFAULT_TIMEOUT_S)
    options = Options(timeout_s=limit, at_most=Level(_LEVELS.index(gate)))
    ids = [each.id for each in chosen]
    if mutants:
        report: Report | Matrix = _broken(name, ids if only else None, options)
    else:
        report = _real(name, ids, options)
    if json_file is not None:
        write_json(json_file, report.to_json())
    if markdown is not None:
        markdown.write_text(report.markdown(), encoding="utf-8")
    console = _runs.output_console()
    console.print(report.table(plain=not console.is_terminal))
    for line in report.lines():
        console.print(line, soft_wrap=True, markup=False)
    for path in (json_file, markdown):
        if path is not None:
            console.print(f"wrote {path}", soft_wrap=True, markup=False)
    if not report.holds:
        raise typer.Exit(EXIT_FAILED)


def _real(name: str, ids: Sequence[str], options: Options) -> Report:
    from accel_streams.conformance._apart import check_apart
    from accel_streams.conformance._messages import Subject, Task
    from accel_streams.conformance._report import Report

    subject = Subject(name)
    tasks = [Task(subject, each) for each in ids]
    with _runs.ending_cleanly(), _progress(len(tasks)) as finished:
        found = check_apart(tasks, options, accelerator=True, finished=finished)
    return Report(name, found.levels[subject], found.outcomes[subject], found.accelerator)


def _broken(name: str, ids: Sequence[str] | None, options: Options) -> Matrix:
    from accel_streams.conformance._matrix import check_mutants, tasks_of

    tasks = tasks_of(name, ids)
    with _runs.ending_cleanly(), _progress(len(tasks)) as finished:
        return check_mutants(tasks, options, finished=finished)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Task, Any], None]]:
    """Yield a function to call after each property; a bar on a terminal, silence in a pipe."""
    with _runs.counting_bar() as bar:
        task = bar.add_task("properties", total=total)

        def finished(checked: Task, _: Any) -> None:
            bar.update(task, advance=1, description=f"{checked.subject} {checked.property_id}")

        yield finished
