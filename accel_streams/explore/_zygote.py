"""One long-lived process per rank that starts the processes that run the script.

Importing torch and DeepSpeed takes seconds, forking a process that has done so a few
milliseconds. The zygote imports, prepares the device, and from then on only forks, watches and
kills. Forking is safe because nothing here starts a thread; that is checked, and where it does
not hold (or is not wanted) every run gets a fresh interpreter instead.

Commands come as JSON lines on stdin, events leave as JSON lines on the descriptor given by
``--events``. The end of stdin means that the parent is done, or dead.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from ._child import RankSpec, die_with_parent, redirect_output, run_to_exit
from ._device import Device, device_named

__all__ = ["main"]


class _Zygote:
    def __init__(self, device: Device, events: int, *, fork: bool) -> None:
        self._device = device
        self._events = events
        self._fork = fork
        self._children: dict[int, int] = {}  # run -> process, which leads its own process group
        self._buffer = b""
        self._wakeup, self._wakeup_write = os.pipe()
        for descriptor in (self._wakeup, self._wakeup_write):
            os.set_blocking(descriptor, False)

    def emit(self, event: str, **fields: Any) -> None:
        """Send one event to the parent."""
        with contextlib.suppress(BrokenPipeError):  # it is gone; the end of stdin will follow
            os.write(self._events, (json.dumps({"event": event, **fields}) + "\n").encode())

    def prepare(self, log: Path) -> None:
        """Wait for permission, prepare the device and import what the scripts will need."""
        if self._fork and "torch" in self._device.preload:
            importlib.import_module("torch")  # while rank 0 builds, if it has to
        self._await_permission()
        # Until here stderr is the parent's, so that a build of the device shows its progress.
        self._device.prepare()
        self.emit("prepared")
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for descriptor in (1, 2):
            os.dup2(target, descriptor)
        os.close(target)
        reason = "asked for"
        if self._fork:
            for name in self._device.preload:
                try:
                    importlib.import_module(name)
                except ModuleNotFoundError as exc:
                    if exc.name is None or exc.name.split(".")[0] != name.split(".")[0]:
                        raise
            reason = _why_not_fork()
            self._fork = not reason
            # What is there now stays: a collection in a run has no need to look at it, which for
            # torch and DeepSpeed takes a sixth of a second, and nothing of it to write to.
            gc.collect()
            gc.freeze()
        self.emit("ready", fork=self._fork, reason=reason)

    def _await_permission(self) -> None:
        while b"\n" not in self._buffer:
            chunk = os.read(0, 65536)
            if not chunk:
                raise SystemExit(0)
            self._buffer += chunk
        _, _, self._buffer = self._buffer.partition(b"\n")

    def serve(self) -> None:
        """Follow commands until stdin ends; leave no process behind."""
        # Without a handler written in Python there is no byte on the wake-up descriptor.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(0, selectors.EVENT_READ)
        selector.register(self._wakeup, selectors.EVENT_READ)
        try:
            while True:
                # Reap before waiting, too: a child may have ended before the handler was there.
                self._reap()
                while b"\n" in self._buffer:
                    line, _, self._buffer = self._buffer.partition(b"\n")
                    self._obey(json.loads(line))
                for key, _ in selector.select():
                    if key.fd == self._wakeup:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wakeup, 4096)
                        continue
                    chunk = os.read(0, 65536)
                    if not chunk:
                        return
                    self._buffer += chunk
        finally:
            selector.close()
            for process in self._children.values():
                _kill_group(process, signal.SIGKILL)

    def _obey(self, command: dict[str, Any]) -> None:
        run = int(command["run"])
        if command["command"] == "start":
            spec = RankSpec.from_json(command["spec"])
            self._children[run] = self._start_forked(spec) if self._fork else _start_fresh(spec)
            self.emit("started", run=run, process=self._children[run])
        elif run in self._children:  # else it ended while the command was under way
            _kill_group(self._children[run], int(command["signal"]))

    def _start_forked(self, spec: RankSpec) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if not process:
            self._become_child(spec)
        # Both sides do this, as either may come first.
        with contextlib.suppress(OSError):
            os.setpgid(process, process)
        return process

    def _become_child(self, spec: RankSpec) -> NoReturn:
        try:
            os.setpgid(0, 0)
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._events, self._wakeup, self._wakeup_write):
                os.close(descriptor)
            redirect_output(spec)
            run_to_exit(spec, self._device)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        for run, process in list(self._children.items()):
            reaped, status = os.waitpid(process, os.WNOHANG)
            if reaped:
                # Workers that the script left behind are in its group.
                _kill_group(process, signal.SIGKILL)
                del self._children[run]
                self.emit(
                    "exited",
                    run=run,
                    status=os.waitstatus_to_exitcode(status),
                    time=time.monotonic(),
                )


def _start_fresh(spec: RankSpec) -> int:
    command = [sys.executable, "-m", f"{__package__}._child", json.dumps(spec.to_json())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    # It is reaped by process id, like a forked one; Popen must not do it first.
    process.returncode = 0
    return process.pid


def _kill_group(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, number)


def _why_not_fork() -> str:
    """Say why this process must not fork, or return an empty string."""
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
    if sys.platform == "darwin":
        return "the system's own libraries do not survive a fork on macOS"
    if threads > 1:
        return f"importing torch and DeepSpeed left {threads} threads running"
    return ""


def main() -> None:
    """Run as ``python -m accel_streams.explore._zygote``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    # The parent gets the signal from the terminal and ends this process in an orderly way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    zygote = _Zygote(device_named(options.device), options.events, fork=not options.fresh)
    try:
        zygote.prepare(options.log)
    except Exception as exc:
        from accel_streams._errors import AccelStreamsError

        # Our own errors are written to be read; of any other the traceback is needed.
        ours = isinstance(exc, AccelStreamsError)
        zygote.emit("failed", message=str(exc) if ours else f"{type(exc).__name__}: {exc}")
        if not ours:
            raise
        raise SystemExit(1) from None
    zygote.serve()
    # Finalising an interpreter with torch in it takes a second, and nothing here needs it.
    os._exit(0)


if __name__ == "__main__":
    main()
