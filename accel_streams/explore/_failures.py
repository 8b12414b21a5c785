"""The errors of running a script, and how they are told."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from accel_streams._errors import AccelStreamsError

__all__ = [
    "ExploreError",
    "NotDeterministicError",
    "RunFailedError",
    "StartError",
    "hung_stack",
    "last_lines",
    "told_status",
]

_LINES_TOLD = 12


class ExploreError(AccelStreamsError):
    """Base of the errors of exploring a script."""


class StartError(ExploreError):
    """A process that should run the script could not be started or prepared."""


class NotDeterministicError(ExploreError):
    """The script differs between two runs under one schedule, so nothing can be concluded."""


class RunFailedError(ExploreError):
    """One rank of a run crashed, hung or left no result; the other ranks were ended.

    `run` says which run, `rank` which rank (None when all hung), `stderr` holds its last lines.
    """

    def __init__(self, run: str, rank: int | None, what: str, stderr: str, hint: str) -> None:
        self.run = run
        self.rank = rank
        self.stderr = stderr
        told = f"The last lines of its stderr:\n{stderr}" if stderr else "Its stderr is empty."
        super().__init__(f"{what} ({run}). {hint} {told}")


def last_lines(path: Path, count: int = _LINES_TOLD) -> str:
    """Return the last lines of a log, indented; nothing if there is no such log."""
    try:
        with path.open(errors="replace") as file:
            lines = deque((line.rstrip() for line in file if line.strip()), maxlen=count)
    except FileNotFoundError:
        return ""
    return _indented(lines)


def hung_stack(path: Path) -> str:
    """Return where a rank that got SIGABRT was: the script's frames, innermost first.

    faulthandler writes every thread, and below the script's frames those of the code that runs it;
    the frames that matter are those of the thread with runpy in it, down to runpy. Without such a
    thread this is the end of the log.
    """
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    _, _, dump = text.rpartition("Fatal Python error: Aborted")
    for thread in dump.split("\n\n"):
        frames = [line for line in thread.splitlines() if line.startswith("  File ")]
        inner = list(takewhile(lambda frame: "<frozen runpy>" not in frame, frames))
        if 0 < len(inner) < len(frames):
            inner = [frame for frame in inner if "<frozen importlib" not in frame]
            return _indented(inner[:_LINES_TOLD])
    return last_lines(path)


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line.rstrip()[:300]}" for line in lines)


def told_status(status: int) -> str:
    """Say how a process ended, from its exit code as subprocess gives it."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"
