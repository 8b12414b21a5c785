"""The CPU as a device to explore on: what the process machinery is tested with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from accel_streams.explore._device import DeviceReport
from accel_streams.explore._plan import Schedule

RACE = {
    "kind": "read-after-write",
    "buffer": "a bucket",
    "first": {"operation": "copy_", "file": "train.py", "line": 3, "function": "hook"},
    "second": {"operation": "fccl:all_reduce", "file": "zero.py", "line": 9, "function": "flush"},
    "missing_edge": "stream `reduction` must wait for `side`",
    "count": 2,
}


class PlainDevice:
    """Has one schedule and finds no races; where it needs torch it is what the script has."""

    name = "cpu"
    environment: Mapping[str, str] = {"DS_ACCELERATOR": "cpu"}
    preload: tuple[str, ...] = ("torch", "torch.distributed", "torch._dynamo", "wrapt")

    def prepare(self) -> None:
        pass

    def begin(self, schedule: Schedule, *, check: bool, keep_records: int) -> None:
        pass

    def finish(self, trace: Path) -> DeviceReport:
        return DeviceReport()


class RacyDevice(PlainDevice):
    """Reports a race under every schedule but in-order."""

    def begin(self, schedule: Schedule, *, check: bool, keep_records: int) -> None:
        self._racy = check and schedule.name != "in-order"

    def finish(self, trace: Path) -> DeviceReport:
        return DeviceReport(
            operations=7, synchronizing_ops={"item": 1}, races=[RACE] if self._racy else []
        )


class BrokenDevice(PlainDevice):
    """Can't be prepared."""

    preload = ()

    def prepare(self) -> None:
        from accel_streams._errors import BuildError

        raise BuildError("no C++ compiler was found; install g++")


class ThreadedDevice(PlainDevice):
    """Starts a thread in the process that should fork."""

    def prepare(self) -> None:
        import threading

        threading.Thread(target=threading.Event().wait, daemon=True).start()


class BusyDevice(PlainDevice):
    """Says on stderr that it builds something, on one rank at a time."""

    preload = ()

    def prepare(self) -> None:
        os.write(2, b"building the device\n")
