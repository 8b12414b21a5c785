"""What ``demo`` and ``explore`` share: reading options, progress, the table, ending cleanly."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from accel_streams.explore import RunResult, Script, VariantSummary

__all__ = [
    "check_logs",
    "counting_bar",
    "ending_cleanly",
    "made_folder",
    "output_console",
    "parsed",
    "progress",
    "run_table",
    "script_of",
    "words",
]

_T = TypeVar("_T")
_PIPE_WIDTH = 120


def output_console() -> Console:
    """Return the console for results: as wide as the terminal, or a fixed width in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def words(text: str) -> list[str]:
    """Split a comma list given as one option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parsed(option: str, parse: Callable[[], _T]) -> _T:
    """Return what `parse` returns; turn its ValueError into a usage error about `option`."""
    try:
        return parse()
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint=option) from exc


def made_folder(path: Path, option: str) -> Path:
    """Make the folder, or refuse one that can't be made or written before the work begins."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise typer.BadParameter(
            f"the folder {path} can't be made: {exc.strerror}", param_hint=option
        ) from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"{path} can't be written: no permission", param_hint=option)
    return path


def script_of(command: Sequence[str]) -> Script:
    """Return the script that a command line names; refuse one that isn't there."""
    from accel_streams.explore import Script

    script = parsed("SCRIPT", lambda: Script.parse(command))
    if not script.module and not Path(script.target).is_file():
        raise typer.BadParameter(f"there is no file {script.target}", param_hint="SCRIPT")
    return script


def check_logs(folder: Path | None) -> None:
    """Refuse a folder for logs that holds something; make one that isn't there."""
    if folder is not None and any(made_folder(folder, "--logs").iterdir()):
        raise typer.BadParameter(f"{folder} is not empty; name a new folder", param_hint="--logs")


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that it ends the runs and tidies up as Ctrl-C does."""

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def counting_bar(*more: ProgressColumn) -> Progress:
    """Return a bar that says how many are done, and has `more` columns; nothing in a pipe."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *more,
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


@contextmanager
def progress(total: int) -> Iterator[Callable[[RunResult], None]]:
    """Yield a function to call after each run; a bar on a terminal, silence in a pipe."""
    with counting_bar(TimeElapsedColumn()) as bar:
        task = bar.add_task("runs", total=total)

        def finished(result: RunResult) -> None:
            done = bar.tasks[0].completed + 1
            # In-order runs may be repeated at the end, which nobody can know before.
            bar.update(task, description=str(result.run), completed=done, total=max(total, done))

        yield finished


def run_table(summaries: Sequence[VariantSummary]) -> Table:
    """Return one row a run: what it ended with, and whether that is what the first ended with."""
    plain = not sys.stdout.isatty()
    table = Table(box=box.ASCII2 if plain else box.SIMPLE_HEAD)
    for name in ("variant", "schedule"):
        table.add_column(name, no_wrap=True)
    table.add_column("parameters", no_wrap=True)
    table.add_column(f"as {summaries[0].reference.run.schedule}")
    for name in ("last loss", "skipped", "races", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        for run in summary.runs:
            agrees = summary.agrees(run)
            races = len(run.races)
            table.add_row(
                summary.name,
                str(run.run.schedule),
                run.digest[:12],
                Text("equal" if agrees else "DIFFERENT", "" if agrees else "bold red"),
                f"{run.losses[-1]:.6f}" if run.losses else "-",
                str(run.skipped_steps),
                Text(str(races) if run.run.check else "-", "bold red" if races else ""),
                f"{run.wall_s:.1f}",
            )
        table.add_section()
    return table
