"""The devices of ``accel-streams races``: watched once, as they are, for races alone."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_streams import _settings

from ._device import DeviceReport, FakeDevice, synchronize_all
from ._plan import Schedule

if TYPE_CHECKING:
    from accel_streams.races._source import TraceSource

__all__ = ["RealDevice", "WatchedFakeDevice"]


class _Watched:
    """A device whose work is watched for races while the script runs."""

    def __init__(self) -> None:
        self._watch: Any = None
        self._keep = 0

    def _device_type(self) -> str:
        raise NotImplementedError

    def _source(self) -> TraceSource:
        from accel_streams.races._source import choose_source

        return choose_source(self._device_type())

    def begin(self, schedule: Schedule, *, check: bool, keep_records: int) -> None:
        """Start to watch if asked to; called in the process that runs the script."""
        from accel_streams.races._watch import Watch

        if not check and not keep_records:
            return
        self._keep = keep_records
        self._watch = Watch(self._source(), keep_records=keep_records)
        self._watch.start()
        # Called too when the script fails, and then the only chance to tell what was seen.
        atexit.register(self._tell_unfinished)

    def finish(self, trace: Path) -> DeviceReport:
        """Wait for all queued work and report."""
        from accel_streams.races import TraceHeader, save_trace

        synchronize_all(self._device_type())
        if self._watch is None:
            return DeviceReport()
        watch, self._watch = self._watch, None
        watch.stop()
        races = [race.to_json() for race in watch.races]
        saved = None
        if watch.records:
            names = watch.source.stream_names()
            info: dict[str, Any] = {"rank": int(os.environ.get("RANK", "0"))}
            if len(watch.records) >= self._keep:
                info["cut"] = len(watch.records)
            save_trace(trace, watch.records, TraceHeader(watch.source.device_type, names, info))
            saved = trace
        return DeviceReport(watch.operations, {}, races, saved, watch.unseen)

    def _tell_unfinished(self) -> None:
        if self._watch is None:
            return
        watch, self._watch = self._watch, None
        watch.stop()
        races = watch.races
        told = f"{len(races):,} race{'' if len(races) == 1 else 's'}" if races else "no race"
        print(
            f"Before the script ended early, {told} had been seen in {watch.operations:,} "
            "operations.",
            file=sys.stderr,
        )
        for race in races[:3]:
            print(f"  {race}", file=sys.stderr)


class WatchedFakeDevice(_Watched):
    """The simulated device."""

    name = FakeDevice.name
    environment = FakeDevice.environment
    preload = FakeDevice.preload

    def prepare(self) -> None:
        """Build or load the extension and register the device."""
        from accel_streams import fake

        fake.enable()

    def _device_type(self) -> str:
        return "fake"

    def _source(self) -> TraceSource:
        from accel_streams.races._source import FakeSource

        return FakeSource(full=bool(self._keep))

    def begin(self, schedule: Schedule, *, check: bool, keep_records: int) -> None:
        """Set the schedule and start to watch."""
        from accel_streams import fake

        fake.set_schedule(schedule.name, schedule.seed)
        super().begin(schedule, check=check, keep_records=keep_records)


class RealDevice(_Watched):
    """The device of the backend that ``DS_ACCELERATOR`` names."""

    # A process that has used a device can't be forked, so nothing is imported ahead.
    preload: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        request = _settings.ds_accelerator()
        if request is None or not request.ours or request.backend is None:
            raise ValueError("DS_ACCELERATOR has to be accel_streams:<backend>")
        self.name = request.backend
        self.environment: Mapping[str, str] = {"DS_ACCELERATOR": request.value}

    def _device_type(self) -> str:
        from accel_streams import _registry

        return _registry.load(self.name).device_type

    def prepare(self) -> None:
        """Do nothing: each run has an interpreter of its own."""

    def begin(self, schedule: Schedule, *, check: bool, keep_records: int) -> None:
        """Load the device and start to watch; it has no schedules."""
        from accel_streams import _registry

        _registry.choose(self.name)
        super().begin(schedule, check=check, keep_records=keep_records)
