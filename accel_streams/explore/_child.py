"""The process that runs the script as one rank of one run and writes its result file."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import json
import os
import random
import resource
import runpy
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from accel_streams.races._files import atomic_text

from ._device import Device, device_named
from ._digest import Collector
from ._plan import Schedule, Script
from ._results import RankResult

__all__ = ["RankSpec", "die_with_parent", "execute", "main", "run_script", "seed"]


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Describe what one process does; travels to it as JSON."""

    rank: int
    ranks: int
    folder: str
    device: str
    script: Script
    schedule: Schedule
    environment: dict[str, str]
    keep_records: int
    check: bool
    compare: bool
    rendezvous_timeout_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RankSpec:
        """Read what `to_json` wrote."""
        script = Script(**document["script"])
        # JSON has no tuples, and Script is compared and hashed by value.
        script = Script(script.target, tuple(script.arguments), script.module)
        schedule = Schedule(**document["schedule"])
        return cls(**{**document, "script": script, "schedule": schedule})

    @property
    def result(self) -> Path:
        """Name the result file."""
        return result_file(Path(self.folder), self.rank)

    @property
    def trace(self) -> Path:
        """Name the file for kept trace records."""
        return Path(self.folder) / f"rank{self.rank}.trace.jsonl"

    def note_failure(self, status: int) -> None:
        """Leave when and how this rank failed: before its peers fail for want of it."""
        with atomic_text(failure_note(Path(self.folder), self.rank)) as file:
            file.write(f"{status} {time.monotonic()}")

    def log(self, name: str) -> Path:
        """Name the file that takes ``stdout`` or ``stderr``."""
        return Path(self.folder) / f"rank{self.rank}.{name}"


def result_file(folder: Path, rank: int) -> Path:
    """Name the file for what a rank of a run has to report."""
    return folder / f"rank{rank}.json"


def failure_note(folder: Path, rank: int) -> Path:
    """Name the file for a rank's exit status and when it failed, by the monotonic clock."""
    return folder / f"rank{rank}.failed"


def die_with_parent() -> None:
    """Ask the kernel, where it can, to kill this process as soon as its parent dies."""
    if not sys.platform.startswith("linux"):
        return
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def execute(spec: RankSpec, device: Device) -> int:
    """Run the script as `spec` says and write the result file; return the exit status.

    The result file exists only if the script ended with status 0 and left something to compare.
    """
    os.environ.update(spec.environment)
    os.environ.update(spec.schedule.environment)
    os.environ.update(
        RANK=str(spec.rank),
        LOCAL_RANK=str(spec.rank),
        WORLD_SIZE=str(spec.ranks),
        LOCAL_WORLD_SIZE=str(spec.ranks),
        LOCAL_SIZE=str(spec.ranks),
    )
    store = _rendezvous(spec)
    seed(spec.rank)
    collector = Collector()
    if spec.compare:
        collector.install()
    device.begin(spec.schedule, check=spec.check, keep_records=spec.keep_records)
    started, cpu_started = time.monotonic(), time.process_time()
    status = run_script(spec.script)
    if status == 0:
        report = device.finish(spec.trace)
        wall_s, cpu_s = time.monotonic() - started, time.process_time() - cpu_started
        if collector.empty and spec.compare:
            print(
                f"{spec.script} ended without a DeepSpeed engine and without an optimizer step, "
                "so there is nothing to compare between schedules",
                file=sys.stderr,
            )
            status = 1
        else:
            RankResult(
                rank=spec.rank,
                digest=collector.digest(),
                losses=collector.losses(),
                steps=collector.steps,
                skipped_steps=collector.skipped_steps,
                races=report.races,
                synchronizing_ops=report.synchronizing_ops,
                operations=report.operations,
                wall_s=wall_s,
                cpu_s=cpu_s,
                peak_rss_bytes=_peak_rss_bytes(),
                trace=str(report.trace) if report.trace else None,
                unseen=report.unseen,
            ).save(spec.result)
    del store  # kept until here: the peers may need rank 0's store as long as they run
    return status


def _rendezvous(spec: RankSpec) -> object:
    """Give torch.distributed an address to meet at; return what has to stay alive for it.

    A port that is chosen first and bound later can be taken in between. So rank 0 binds a port of
    the system's choice, tells the others through a file, and all of them, rank 0 included, are
    told that the store is already there, which is what torch's elastic launcher does.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return None
    address, note = "127.0.0.1", Path(spec.folder) / "rendezvous"
    deadline = time.monotonic() + spec.rendezvous_timeout_s
    store = None
    if spec.rank == 0:
        timeout = timedelta(seconds=spec.rendezvous_timeout_s)
        store = dist.TCPStore(  # type: ignore[attr-defined]  # not in its __all__
            address, 0, None, True, timeout, wait_for_workers=False
        )
        with atomic_text(note) as file:
            file.write(str(store.port))
    while not note.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rank 0 did not open its store within {spec.rendezvous_timeout_s:.0f} s; "
                "see its stderr for the reason"
            )
        time.sleep(0.002)
    os.environ.update(
        MASTER_ADDR=address,
        MASTER_PORT=note.read_text(),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    # Host names need not resolve on a laptop without a network; all ranks are on this machine.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform.startswith("linux") else "lo0")
    return store


def seed(rank: int) -> None:
    """Seed what a script may draw from without seeding it: runs differ in the schedule alone."""
    import torch

    random.seed(rank)
    torch.manual_seed(rank)
    try:
        import numpy as np
    except ModuleNotFoundError:
        return
    np.random.seed(rank)


def run_script(script: Script) -> int:
    """Run `script` as ``__main__``; return its exit status as the interpreter would."""
    sys.argv = [script.target, *script.arguments]
    try:
        if script.module:
            sys.path[0] = os.getcwd()
            runpy.run_module(script.target, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script.target).resolve().parent)
            runpy.run_path(script.target, run_name="__main__")
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            return exit_.code or 0
        print(exit_.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def redirect_output(spec: RankSpec) -> None:
    """Send stdout and stderr, also of C++ code, to this rank's files, and stdin from nothing."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        target = os.open(spec.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(target, descriptor)
        os.close(target)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def run_to_exit(spec: RankSpec, device: Device) -> None:
    """Execute `spec` in this process, which was made for it, and end the process."""
    status = 1
    try:
        # A run that hangs is ended by SIGABRT, so that its stderr says where it hung.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the zygote ignores it
        faulthandler.enable()
        status = execute(spec, device)
    except BaseException:
        traceback.print_exc()
    finally:
        if status:
            with contextlib.suppress(BaseException):
                spec.note_failure(status)
        # Not sys.exit: torch's threads may still run and must not meet a finalised interpreter.
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Run the spec whose JSON is the only argument, in a fresh process."""
    die_with_parent()
    spec = RankSpec.from_json(json.loads(sys.argv[1]))
    redirect_output(spec)
    device = device_named(spec.device)
    device.prepare()
    run_to_exit(spec, device)


if __name__ == "__main__":
    main()
