"""Check in a process of its own, and in another one where that hangs or dies."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from accel_streams import _errors
from accel_streams._errors import AccelStreamsError
from accel_streams.conformance._gates import Level
from accel_streams.conformance._messages import Options, Subject, Task, outcome_from_json
from accel_streams.conformance._property import properties
from accel_streams.conformance._results import Outcome, Result
from accel_streams.conformance._run import ATTEMPTS

__all__ = ["Accelerator", "Findings", "check_apart"]

# The first use of the simulated device builds it, and a vendor's may load slowly.
_START_S = 600.0
# What one property may take of the process altogether, beyond its own limit: attempts, calibration.
_BESIDES_S = 120.0
_ACCELERATOR_S = 180.0
_STDERR = 2


@dataclass(frozen=True, slots=True)
class Accelerator:
    """How a backend's accelerator class compares with DeepSpeed's abstract class.

    ``faults`` holds, a line each, the calls of DeepSpeed's that it would not take.
    """

    deepspeed: str
    cls: str
    faults: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the entry ``accelerator`` of ``accel-streams check --json``."""
        return {"deepspeed": self.deepspeed, "class": self.cls, "faults": list(self.faults)}


@dataclass(slots=True)
class Findings:
    """What was found out: outcomes and gate level by subject; the accelerator where asked for."""

    outcomes: dict[Subject, list[Outcome]] = field(default_factory=dict)
    levels: dict[Subject, Level] = field(default_factory=dict)
    accelerator: Accelerator | None = None


def check_apart(
    tasks: Sequence[Task],
    options: Options | None = None,
    *,
    accelerator: bool = False,
    finished: Callable[[Task, Outcome], None] | None = None,
    findings: Findings | None = None,
) -> Findings:
    """Check the tasks in order, in as few processes as it takes.

    A property that hangs, or takes its process with it, has failed; the rest goes on in a new
    process. With ``accelerator`` the class that DeepSpeed gets from the last task's backend is
    compared with what it expects, where DeepSpeed is installed. ``finished`` is called after each
    task; ``findings``, by default new ones, are filled as it goes.

    Raise a BackendError where a backend can't be had, AccelStreamsError where the process ends
    before it checks anything.
    """
    options = Options() if options is None else options
    findings = Findings() if findings is None else findings
    left = list(tasks)

    def done(outcome: Outcome) -> None:
        task = left.pop(0)
        findings.outcomes.setdefault(task.subject, []).append(outcome)
        if finished is not None:
            finished(task, outcome)

    while left:
        before, begun = len(left), False
        for message in _messages(left, options, accelerator):
            if "error" in message:
                raise _error(str(message["error"]), str(message["message"]))
            if "level" in message:
                name, mutant = message["subject"]
                findings.levels[Subject(name, mutant)] = Level(message["level"])
            elif "begun" in message:
                begun = True
            elif "outcome" in message:
                begun = False
                done(outcome_from_json(message["outcome"]))
            elif "accelerator" in message:
                findings.accelerator = _accelerator(message["accelerator"])
            elif not left:
                fault = f"the process that asked for it {message['ended']}"
                findings.accelerator = Accelerator(version("deepspeed"), "", (fault,))
            elif begun:
                failed = left[0].property_id
                done(Outcome(failed, _name(failed), Result.FAILED, str(message["ended"])))
            else:
                raise AccelStreamsError(
                    f"The process that checks {left[0].subject} {message['ended']} before it could "
                    "check anything. What it printed says why."
                )
        if len(left) == before:
            raise AccelStreamsError(f"The process that checks {left[0].subject} checked nothing.")
    return findings


def _messages(
    tasks: Sequence[Task], options: Options, accelerator: bool
) -> Iterator[dict[str, Any]]:
    """Yield what a new process says; last, as ``ended``, how it came to an end that is no good."""
    order = {
        **options.to_json(),
        "tasks": [[task.subject.backend, task.subject.mutant, task.property_id] for task in tasks],
        "accelerator": accelerator,
    }
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "accel_streams.conformance._child", str(writing)],
        stdin=subprocess.PIPE,
        stdout=_STDERR,  # Ours is for the result.
        pass_fds=(writing,),
        start_new_session=True,  # A Ctrl-C is for this process, which ends that one.
    )
    os.close(writing)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(order).encode())
        with open(reading, "rb", buffering=0) as pipe:
            lines = _Lines(pipe.fileno(), _START_S)
            for line in lines:
                message = json.loads(line)
                yield message
                lines.limit_s = _ACCELERATOR_S if "outcome" in message else _limit(options)
        if lines.late:
            yield {"ended": f"did not answer within {lines.limit_s:.0f} s"}
            return
        status = process.wait(timeout=_BESIDES_S)
        if status != 0:
            yield {"ended": f"ended with {_told(status)}"}
    finally:
        process.kill()
        process.wait()


class _Lines:
    """The lines that come from a pipe, each within ``limit_s`` seconds of the one before."""

    def __init__(self, descriptor: int, limit_s: float) -> None:
        self._descriptor = descriptor
        self.limit_s = limit_s
        self.late = False
        """Whether the lines ended because none came in time."""

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while True:
            ready, _, _ = select.select([self._descriptor], [], [], self.limit_s)
            self.late = not ready
            chunk = os.read(self._descriptor, 1 << 16) if ready else b""
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines


def _limit(options: Options) -> float:
    return ATTEMPTS * options.timeout_s + _BESIDES_S


def _name(property_id: str) -> str:
    return next(each.name for each in properties() if each.id == property_id)


def _told(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _error(kind: str, message: str) -> Exception:
    """Return the error that ended the process, as the class it had there."""
    if kind in _errors.__all__:
        error: Exception = getattr(_errors, kind)(message)
        return error
    return AccelStreamsError(message)


def _accelerator(entry: dict[str, Any] | None) -> Accelerator | None:
    if entry is None:
        return None
    return Accelerator(entry["deepspeed"], entry["class"], tuple(entry["faults"]))
