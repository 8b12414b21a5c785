"""The devices a script can be explored on: what the processes that run it need from each."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ._notes import ScriptNotes
from ._plan import Schedule

__all__ = ["Device", "DeviceReport", "FakeDevice", "device_named", "synchronize_all"]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Hold what the device knows about the run that just ended."""

    operations: int = 0
    synchronizing_ops: dict[str, int] = field(default_factory=dict)
    races: list[dict[str, Any]] = field(default_factory=list)
    trace: Path | None = None
    unseen: list[str] = field(default_factory=list)


class Device(Protocol):
    """Prepare a device, and watch it during one run. Constructing one imports nothing heavy."""

    name: str
    environment: Mapping[str, str]
    """Variables for the processes, set before torch is imported."""
    preload: tuple[str, ...]
    """Modules that scripts will import, to be imported once; those not installed are left out."""

    def prepare(self) -> None:
        """Do what is done once a process, before forks; must start no thread."""

    def begin(self, schedule: Schedule, *, check: bool, keep_records: int) -> None:
        """Set the schedule and start to watch; called in the process that runs the script."""

    def finish(self, trace: Path) -> DeviceReport:
        """Wait for all queued work and report; save kept records, if any, as `trace`."""


def synchronize_all(device_type: str) -> None:
    """Let the host wait for every device of a type."""
    import torch

    module: Any = getattr(torch, device_type)
    for index in range(module.device_count()):
        module.synchronize(index)


class FakeDevice:
    """The simulated device, watched by the happens-before analysis."""

    name = "cpu_fake"
    device_type = "fake"
    environment: Mapping[str, str] = {"DS_ACCELERATOR": "accel_streams:cpu_fake"}
    # Some are imported late by others: the first step of any optimizer imports torch._dynamo, and
    # deepspeed.initialize the module that compiles Muon.
    preload = (
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "wrapt",
        "deepspeed",
        "deepspeed.runtime.zero.stage_1_and_2",
        "deepspeed.runtime.zero.muon.muon_optimizer",
    )

    def __init__(self) -> None:
        self._analyser: Any = None
        self._kept: list[tuple[Any, ...]] = []
        self._keep = 0
        self._notes: ScriptNotes | None = None

    def prepare(self) -> None:
        """Build or load the extension and register the device."""
        from accel_streams import fake

        fake.enable()

    def begin(self, schedule: Schedule, *, check: bool, keep_records: int) -> None:
        """Set the schedule and start the trace; its records go to the analysis as they come."""
        from accel_streams import fake

        fake.set_schedule(schedule.name, schedule.seed)
        fake.reset_counters()
        self._keep = keep_records
        if check:
            from accel_streams.races import Analyser

            self._analyser = Analyser(device_type=self.device_type)
        self._notes = ScriptNotes.wanted()
        if check or keep_records or self._notes is not None:
            fake.start_trace(brief=not keep_records and self._notes is None, sink=self._receive)
        if self._notes is not None:
            self._notes.begin()

    def _receive(self, records: list[tuple[Any, ...]]) -> None:
        if self._analyser is not None:
            self._analyser.feed(records)
        if self._notes is not None:
            self._notes.receive(records)
        room = self._keep - len(self._kept)
        if room > 0:
            self._kept.extend(records[:room])

    def finish(self, trace: Path) -> DeviceReport:
        """Wait for all queued work, end the trace and analyse what it held."""
        from accel_streams import fake

        operations = int(fake.operations())
        synchronizing_ops = dict(fake.synchronizing_ops())
        synchronize_all(self.device_type)
        races: list[dict[str, Any]] = []
        names = fake.stream_names()
        if self._analyser is not None or self._keep or self._notes is not None:
            self._receive(fake.stop_trace())
        if self._analyser is not None:
            races = [race.to_json() for race in self._analyser.races(names)]
        if self._notes is not None:
            self._notes.finish(races)
        saved = None
        if self._kept:
            from accel_streams.races import TraceHeader, save_trace

            save_trace(trace, self._kept, TraceHeader(self.device_type, names))
            saved = trace
        return DeviceReport(operations, synchronizing_ops, races, saved)


def device_named(path: str) -> Device:
    """Construct the device class at ``module:attribute``."""
    module, _, attribute = path.partition(":")
    device: Device = getattr(importlib.import_module(module), attribute)()
    return device
