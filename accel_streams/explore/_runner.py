"""The parent's side: start the zygotes, hand out runs, watch them, clean up."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from ._child import RankSpec, failure_note, result_file
from ._device import device_named
from ._failures import ExploreError, RunFailedError, StartError, hung_stack, last_lines, told_status
from ._plan import Run
from ._results import RankResult, RunResult

__all__ = ["FAKE_DEVICE", "Runner"]

FAKE_DEVICE = f"{__package__}._device:FakeDevice"

# How long a rank that was asked to dump its stacks, or whose peer failed, gets to do so.
_GRACE_S = 3.0

# How long the other ranks get to end as well when one has failed, so that the first is blamed.
_BLAME_S = 1.0
# A process that is killed closes its connections, so that its peers fail, before its parent hears
# of its end; and those say when they failed, which it can't.
_UNHEARD_S = 0.5


@dataclass(slots=True)
class _Running:
    """A run under way: which ranks have not ended, and when it is too late."""

    index: int
    run: Run
    folder: Path
    deadline: float
    alive: set[int]
    processes: dict[int, int] = field(default_factory=dict)
    # By rank: the exit status, and when it was heard of.
    ended: dict[int, tuple[int, float]] = field(default_factory=dict)

    def note(self, rank: int, event: dict[str, Any]) -> None:
        """Take in what a zygote has told of a rank."""
        if event["event"] == "started":
            self.processes[rank] = event["process"]
        elif event["event"] == "exited":
            self.alive.discard(rank)
            self.ended[rank] = event["status"], event["time"]

    def failure(self, rank: int) -> tuple[float, int] | None:
        """Return when a rank failed, by the machine's monotonic clock, and its exit status.

        None if it has not.
        """
        with contextlib.suppress(FileNotFoundError):
            status, time_s = failure_note(self.folder, rank).read_text().split()
            return float(time_s), int(status)
        if rank not in self.ended or result_file(self.folder, rank).exists():
            return None
        ended, heard_s = self.ended[rank]
        return heard_s - _UNHEARD_S, ended


class Runner:
    """Run a script many times, on `ranks` processes each; use as a context manager.

    `timeout_s` bounds one run, `start_timeout_s` the start (which may compile the device's
    extension); `jobs` runs go on at the same time. With `fresh`, each run gets new interpreters
    instead of forks. `logs` keeps the output of every rank in a folder, else it is removed.
    Nothing outlives the context: not the processes, not their children, not a temporary file.
    After a RunFailedError, which ends all runs under way, it can be used again.
    """

    def __init__(
        self,
        *,
        ranks: int,
        device: str = FAKE_DEVICE,
        timeout_s: float = 600.0,
        start_timeout_s: float = 900.0,
        jobs: int | None = None,
        fresh: bool = False,
        logs: Path | None = None,
    ) -> None:
        if ranks < 1:
            raise ValueError(f"at least one rank is needed, got {ranks}")
        self.ranks = ranks
        self.fresh_reason = ""
        self._device = device
        chosen = device_named(device)
        self.backend, self.environment = chosen.name, dict(chosen.environment)
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._jobs = jobs or max(1, _cpus() // ranks)
        self._fresh = fresh
        self._logs = logs
        self._folder = Path()
        self._zygotes: list[subprocess.Popen[bytes]] = []
        self._events: list[int] = []
        self._buffers: list[bytes] = []
        self._inbox: deque[tuple[int, dict[str, Any]]] = deque()
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _Running] = {}
        self._count = 0

    def __enter__(self) -> Runner:
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
            if any(self._logs.iterdir()):
                raise StartError(f"the folder for logs, {self._logs}, is not empty; name a new one")
            self._folder = self._logs.resolve()
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="accel-streams-"))
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Starting and ending

    def _start(self) -> None:
        environment = {
            # More threads would break forking, and 2 ranks on 2 cores have no use for them.
            "OMP_NUM_THREADS": "1",
            # Sets of strings iterate in the same order in every process and run.
            "PYTHONHASHSEED": "0",
            **os.environ,
            **self.environment,
            "PYTHONUNBUFFERED": "1",
        }
        for rank in range(self.ranks):
            read, write = os.pipe()
            self._events.append(read)
            self._buffers.append(b"")
            os.set_blocking(read, False)
            self._selector.register(read, selectors.EVENT_READ, rank)
            command = [sys.executable, "-m", f"{__package__}._zygote"]
            command += ["--device", self._device, "--events", str(write)]
            command += ["--log", str(self._log(rank))]
            command += ["--fresh"] * self._fresh
            try:
                self._zygotes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        env=environment,
                        pass_fds=[write],
                        # Ctrl-C reaches only the parent, which then ends the others.
                        start_new_session=True,
                    )
                )
            finally:
                os.close(write)
        # Rank 0 builds what has to be built; the others wait and then only load it.
        self._send(0, {"command": "prepare"})
        deadline = time.monotonic() + self._start_timeout_s
        waiting = set(range(self.ranks))
        while waiting:
            for rank, event in self._receive(deadline):
                if event["event"] == "prepared" and rank == 0:
                    for other in range(1, self.ranks):
                        self._send(other, {"command": "prepare"})
                elif event["event"] == "ready":
                    waiting.discard(rank)
                    if not event["fork"] and not self._fresh:
                        self.fresh_reason = event["reason"]
                elif event["event"] == "failed":
                    raise StartError(event["message"])
            if waiting and time.monotonic() > deadline:
                ranks = ", ".join(map(str, sorted(waiting)))
                raise StartError(
                    f"the processes of rank {ranks} were not ready after "
                    f"{self._start_timeout_s:.0f} s, which importing torch and DeepSpeed and "
                    "building the simulated device should never take; is the machine very busy?"
                )

    def _log(self, rank: int) -> Path:
        return self._folder / f"start.rank{rank}.log"

    def close(self) -> None:
        """End every process that this runner started, and remove its temporary files."""
        for zygote in self._zygotes:
            with contextlib.suppress(OSError):
                if zygote.stdin is not None:
                    zygote.stdin.close()  # asks it to kill its children and end
        deadline = time.monotonic() + _GRACE_S
        for zygote in self._zygotes:
            try:
                zygote.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _kill_group(zygote.pid)
                zygote.wait()
        for running in self._running.values():
            # The zygotes have done this, unless they were killed themselves.
            for rank in running.alive & running.processes.keys():
                _kill_group(running.processes[rank])
        self._running.clear()
        self._zygotes.clear()
        self._selector.close()
        for descriptor in self._events:
            os.close(descriptor)
        self._events.clear()
        if self._logs is None and self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    # Running

    def run(self, run: Run, finished: Callable[[RunResult], None] = lambda _: None) -> RunResult:
        """Run one; raise RunFailedError if any rank crashes, hangs or leaves no result."""
        (result,) = self.run_all([run], finished)
        return result

    def run_all(
        self, runs: Iterable[Run], finished: Callable[[RunResult], None] = lambda _: None
    ) -> list[RunResult]:
        """Run all, several at a time; return the results in the given order.

        `finished` is called after each run, in the order in which they end.
        """
        results: dict[int, RunResult] = {}
        order: list[int] = []
        pending = iter(runs)
        try:
            while True:
                for run in islice(pending, self._jobs - len(self._running)):
                    order.append(self._launch(run))
                if not self._running:
                    return [results[index] for index in order]
                for result_of, result in self._await_results():
                    results[result_of] = result
                    finished(result)
        except RunFailedError:
            for running in self._running.values():
                self._end(running, signal.SIGKILL)
            self._running.clear()
            raise

    def _await_results(self) -> Iterator[tuple[int, RunResult]]:
        """Wait for something to happen; yield the index and the result of each run that ended."""
        first = min(self._running.values(), key=lambda running: running.deadline)
        if time.monotonic() > first.deadline:
            self._fail_hung(first)
        for rank, event in self._receive(first.deadline):
            running = self._running.get(event["run"])
            if running is None:  # the last words of a run that was ended
                continue
            running.note(rank, event)
            if event["event"] == "exited":
                if event["status"] != 0:
                    self._fail_crashed(running)
                if not running.alive:
                    del self._running[running.index]
                    yield running.index, self._collect(running)

    def _launch(self, run: Run) -> int:
        index, self._count = self._count, self._count + 1
        schedule = str(run.schedule).replace(":", "-")[:60]  # a list of delays may be long
        folder = self._folder / f"{index:04d}-{run.variant.name}-{schedule}"
        folder.mkdir()
        script = run.script
        arguments = (*script.arguments, *run.variant.arguments)
        for rank in range(self.ranks):
            spec = RankSpec(
                rank=rank,
                ranks=self.ranks,
                folder=str(folder),
                device=self._device,
                script=type(script)(script.target, arguments, script.module),
                schedule=run.schedule,
                environment=dict((*run.variant.environment, *run.environment)),
                keep_records=run.keep_records,
                check=run.check,
                compare=run.compare,
                rendezvous_timeout_s=self._timeout_s,
            )
            self._send(rank, {"command": "start", "run": index, "spec": spec.to_json()})
        deadline = time.monotonic() + self._timeout_s
        self._running[index] = _Running(index, run, folder, deadline, set(range(self.ranks)))
        return index

    def _collect(self, running: _Running) -> RunResult:
        ranks = []
        for rank in range(self.ranks):
            path = result_file(running.folder, rank)
            if not path.exists():
                raise self._failure(running, rank, _told_end(rank, 0))
            ranks.append(RankResult.load(path))
        return RunResult(running.run, tuple(ranks))

    # Failing

    def _fail_crashed(self, running: _Running) -> None:
        """Blame the rank that failed first: the others fail because they have lost a peer."""
        deadline = time.monotonic() + _BLAME_S
        while running.alive and time.monotonic() < deadline:
            self._note_events(deadline)
        failures = {rank: running.failure(rank) for rank in range(self.ranks)}
        (_, status), rank = min((told, rank) for rank, told in failures.items() if told)
        self._end(running, signal.SIGKILL)
        raise self._failure(running, rank, _told_end(rank, status))

    def _fail_hung(self, running: _Running) -> None:
        hung = sorted(running.alive)
        # SIGABRT makes faulthandler write the Python stacks of all threads before the end.
        self._end(running, signal.SIGABRT)
        ranks = " and ".join(f"rank {rank}" for rank in hung)
        stacks = "\n".join(
            f"  rank {rank}:\n{hung_stack(running.folder / f'rank{rank}.stderr')}" for rank in hung
        )
        raise self._failure(
            running,
            hung[0],
            f"{ranks} did not end within {self._timeout_s:g} s",
            "Below is where the script was, innermost frame first; if it was only slow, give it "
            "more time with --timeout.",
            stacks,
        )

    def _end(self, running: _Running, number: int) -> None:
        """Send a signal to all ranks of a run, then SIGKILL, and wait until they are gone."""
        for attempt in (number, signal.SIGKILL):
            for rank in running.alive:
                self._send(rank, {"command": "kill", "run": running.index, "signal": int(attempt)})
            deadline = time.monotonic() + _GRACE_S
            while running.alive and time.monotonic() < deadline:
                self._note_events(deadline)

    def _note_events(self, deadline: float) -> None:
        """Take in what comes next: of any run, as all of them are over."""
        for rank, event in self._receive(deadline):
            running = self._running.get(event["run"])
            if running is not None:
                running.note(rank, event)

    def _failure(
        self, running: _Running, rank: int, what: str, hint: str = "", stderr: str | None = None
    ) -> RunFailedError:
        where = (
            f"All output is in {running.folder}."
            if self._logs is not None
            else "Keep all output with --logs DIR."
        )
        if stderr is None:
            stderr = last_lines(running.folder / f"rank{rank}.stderr")
        run, schedule = running.run, running.run.schedule
        told = f"{run.script}, variant {run.variant.name}, {schedule.replay}"
        return RunFailedError(told, rank, what, stderr, f"{hint} {where}".strip())

    # Talking to the zygotes

    def _send(self, rank: int, command: dict[str, Any]) -> None:
        stdin = self._zygotes[rank].stdin
        assert stdin is not None
        try:
            stdin.write((json.dumps(command) + "\n").encode())
            stdin.flush()
        except BrokenPipeError:
            raise self._zygote_gone(rank) from None

    def _receive(self, deadline: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield what has arrived, after waiting for something until `deadline` at most.

        What the caller leaves unread, because it raised, is there for the next call.
        """
        timeout = 0.0 if self._inbox else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(timeout):
            rank = key.data
            chunk = os.read(key.fd, 65536)
            if not chunk:
                raise self._zygote_gone(rank)
            *lines, self._buffers[rank] = (self._buffers[rank] + chunk).split(b"\n")
            self._inbox += [(rank, json.loads(line)) for line in lines]
        while self._inbox:
            yield self._inbox.popleft()

    def _zygote_gone(self, rank: int) -> ExploreError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._zygotes[rank].wait(_GRACE_S)
        status = self._zygotes[rank].returncode
        told = "closed its pipe" if status is None else told_status(status)
        stderr = last_lines(self._log(rank))
        return StartError(
            f"the process that starts the runs of rank {rank} {told}; it needs torch and "
            "DeepSpeed to be importable and must not be ended from outside."
            + (f" The last lines of its output:\n{stderr}" if stderr else "")
        )


def _told_end(rank: int, status: int) -> str:
    before = "" if status else " before the script had ended"
    return f"rank {rank} {told_status(status)}{before}"


def _cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS does not
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _kill_group(process: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
