"""Backends whose events say what is not so, and whose host waits for the wrong thing."""

from __future__ import annotations

from typing import Any

from accel_streams._backend import Device
from accel_streams.conformance.mutants._mutant import killed_by
from accel_streams.conformance.mutants._wrapped import Wrapped, unwrapped

__all__: list[str] = []


@killed_by("EVT-02", "ORD-03")
class QueryAlwaysTrue(Wrapped):
    """Every event says that it is complete."""

    def query(self, event: Any) -> bool:
        return True


@killed_by("EVT-01")
class UnrecordedIsPending(Wrapped):
    """An event that was never recorded says that it is pending."""

    def query(self, event: Any) -> bool:
        return event.stream is not None and super().query(event)


@killed_by("EVT-01")
class UnrecordedCantBeSynchronized(Wrapped):
    """Waiting on the host for an event that was never recorded waits for the current stream."""

    def synchronize(self, event: Any = None, /) -> None:
        if event is not None and event.stream is None:
            self.real_module.synchronize()
        super().synchronize(event)


@killed_by("EVT-03")
class QueryFlickers(Wrapped):
    """Every tenth answer of an event is that it is pending."""

    def query(self, event: Any) -> bool:
        event.asked = getattr(event, "asked", 0) + 1
        return bool(event.asked % 10) and super().query(event)


@killed_by("EVT-03")
class QueryIsOfTheStream(Wrapped):
    """An event is complete when its stream has nothing to do."""

    def query(self, event: Any) -> bool:
        return event.stream is None or bool(event.stream.query())


@killed_by("EVT-04", "ORD-08")
class QueryRemembersTrue(Wrapped):
    """An event that was complete once stays so when it is recorded again."""

    def query(self, event: Any) -> bool:
        event.was_complete = getattr(event, "was_complete", False) or super().query(event)
        return bool(event.was_complete)


@killed_by("EVT-05")
class SynchronizeReturnsEarly(Wrapped):
    """The host's wait for an event returns at once."""

    def synchronize(self, event: Any = None, /) -> None:
        if event is None:
            super().synchronize()


@killed_by("EVT-06")
class SynchronizeWaitsForTheStream(Wrapped):
    """The host's wait for an event waits for all that its stream has."""

    def synchronize(self, event: Any = None, /) -> None:
        super().synchronize(event)
        if event is not None and event.stream is not None:
            event.stream.synchronize()


@killed_by("EVT-07")
class ElapsedInSeconds(Wrapped):
    """Elapsed times are in seconds."""

    def elapsed_time(self, start: Any, end: Any) -> float:
        return super().elapsed_time(start, end) / 1e3


@killed_by("EVT-07")
class ElapsedInMicroseconds(Wrapped):
    """Elapsed times are in microseconds."""

    def elapsed_time(self, start: Any, end: Any) -> float:
        return super().elapsed_time(start, end) * 1e3


@killed_by("EVT-08")
class ElapsedAlwaysANumber(Wrapped):
    """Events that have no time are 0 ms apart."""

    def elapsed_time(self, start: Any, end: Any) -> float:
        try:
            return super().elapsed_time(start, end)
        except (RuntimeError, ValueError):
            return 0.0


@killed_by("EVT-09")
class ElapsedOnOneStreamOnly(Wrapped):
    """Every stream has a clock of its own."""

    def elapsed_time(self, start: Any, end: Any) -> float:
        found = super().elapsed_time(start, end)
        return found if self.stream_id(start.stream) == self.stream_id(end.stream) else -found


@killed_by("EVT-10")
class QuerySwitchesTheDevice(Wrapped):
    """Asking an event makes its device the current one."""

    def query(self, event: Any) -> bool:
        if event.stream is not None:
            self.real_module.set_device(event.stream.device_index)
        return super().query(event)


@killed_by("SYN-01")
class StreamSyncIsDeviceSync(Wrapped):
    """``stream.synchronize()`` waits for the whole device."""

    def synchronize_stream(self, stream: Any) -> None:
        self.real_module.synchronize(unwrapped(stream).device_index)


@killed_by("SYN-02")
class StreamQueryAlwaysTrue(Wrapped):
    """Every stream says that its work is done."""

    def query_stream(self, stream: Any) -> bool:
        return True


@killed_by("SYN-02")
class StreamQueryIsOfTheDevice(Wrapped):
    """A stream's work is done when that of all streams is."""

    def query_stream(self, stream: Any) -> bool:
        known = self.__dict__.setdefault("known", {})
        known[self.stream_id(stream)] = unwrapped(stream)
        return all(bool(each.query()) for each in known.values())


@killed_by("SYN-03")
class DeviceSyncIsStreamSync(Wrapped):
    """``synchronize()`` waits for the current stream only."""

    def synchronize(self, event: Any = None, /) -> None:
        if event is None:
            self.real.current_stream().synchronize()
        else:
            super().synchronize(event)

    def synchronize_device(self, device: Device = None) -> None:
        self.real.current_stream(device).synchronize()


@killed_by("SYN-04")
class DeviceSyncWaitsForAll(Wrapped):
    """``synchronize(i)`` waits for every device."""

    def synchronize_device(self, device: Device = None) -> None:
        for index in range(self.real_module.device_count()):
            self.real_module.synchronize(index)


@killed_by("SYN-04")
class DeviceSyncSwitchesTheDevice(Wrapped):
    """``synchronize(i)`` makes i the current device."""

    def synchronize_device(self, device: Device = None) -> None:
        super().synchronize_device(device)
        if isinstance(device, int):
            self.real_module.set_device(device)
