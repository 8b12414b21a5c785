"""Backends that mistake one stream for another, or lose the current one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from accel_streams._backend import Device
from accel_streams.conformance.mutants._mutant import killed_by
from accel_streams.conformance.mutants._wrapped import Wrapped, WrappedStream, unwrapped

__all__: list[str] = []


@killed_by("IDN-01")
class HashOfTheObject(Wrapped):
    """Two objects for one stream are equal and have two hashes."""

    def hashed(self, stream: Any) -> int:
        return id(stream)


@killed_by("IDN-01")
class EqualityOfTheObject(Wrapped):
    """Two objects for one stream are unequal."""

    def equal(self, stream: Any, other: object) -> bool:
        return stream is other


@killed_by("IDN-01")
class EqualByNumber(Wrapped):
    """A stream equals its number, and the streams of other devices that have the same one."""

    def equal(self, stream: Any, other: object) -> bool:
        return bool(stream.stream_id == getattr(other, "stream_id", other))

    def hashed(self, stream: Any) -> int:
        return hash(stream.stream_id)


class _OrderedStream(WrappedStream):
    def __lt__(self, other: Any) -> bool:
        return bool(self.stream_id < other.stream_id)


@killed_by("IDN-01")
class StreamsAreOrdered(Wrapped):
    """A stream is less than another one."""

    stream_class = _OrderedStream


@killed_by("IDN-02", "IDN-05")
class ContextDoesNothing(Wrapped):
    """Entering a stream leaves the current one."""

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()


@killed_by("IDN-02")
class ContextInNameOnly(Wrapped):
    """Entering a stream changes what is told of the current one, not where work goes."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.told: list[Any] = []

    def current_stream(self, device: Device = None, /) -> Any:
        return self.wrap(self.told[-1]) if self.told else super().current_stream(device)

    @contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        self.told.append(unwrapped(stream))
        try:
            yield
        finally:
            self.told.pop()


@killed_by("IDN-03")
class DefaultIsCurrent(Wrapped):
    """The default stream is whichever is current."""

    def default_stream(self, device: Device = None, /) -> Any:
        return self.current_stream(device)


@killed_by("IDN-04")
class NewIsDefault(Wrapped):
    """Every new stream is the default stream."""

    def new_stream(self, device: Device = None, /, *, priority: int = 0) -> Any:
        return self.default_stream(device)


@killed_by("IDN-04")
class OneDefaultForAllDevices(Wrapped):
    """The default stream of each device is that of the first."""

    def default_stream(self, device: Device = None, /) -> Any:
        return super().default_stream(0)


@killed_by("IDN-09", "ORD-02")
class NewIsTheSame(Wrapped):
    """Every new stream of a device is the same stream."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.made: dict[int, Any] = {}

    def new_stream(self, device: Device = None, /, *, priority: int = 0) -> Any:
        index = self.current_stream(device).device_index
        if index not in self.made:
            self.made[index] = self.real.new_stream(device, priority=priority)
        return self.wrap(self.made[index])


@killed_by("IDN-09")
class SmallPool(Wrapped):
    """A fifth new stream is the first one again, and nothing says so."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.made: dict[int, list[Any]] = {}

    def new_stream(self, device: Device = None, /, *, priority: int = 0) -> Any:
        pool = self.made.setdefault(self.current_stream(device).device_index, [])
        if len(pool) < 4:
            pool.append(self.real.new_stream(device, priority=priority))
        else:
            pool.append(pool.pop(0))
        return self.wrap(pool[-1])


@killed_by("IDN-05")
class ContextLostOnException(Wrapped):
    """An exception leaves the stream that was entered current."""

    @contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        device, before = self.real_module.current_device(), unwrapped(self.current_stream())
        there = self.real.current_stream(unwrapped(stream).device)
        self.real_module.set_stream(unwrapped(stream))
        yield
        for stream in (there, before):
            self.real_module.set_stream(stream)
        self.real_module.set_device(device)


@killed_by("IDN-05")
class ContextEndsOnDefault(Wrapped):
    """After a context the default stream is current, whichever was before."""

    @contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        with super().use_stream(stream):
            try:
                yield
            finally:
                self.real_module.set_stream(self.real.default_stream(unwrapped(stream).device))
        self.real_module.set_stream(self.real.default_stream(unwrapped(stream).device))


@killed_by("IDN-05")
class ContextSwallowsExceptions(Wrapped):
    """An exception ends with the context in which it is raised."""

    @contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        with super().use_stream(stream):
            try:
                yield
            except Exception:
                return


@killed_by("IDN-06")
class ContextKeepsTheDevice(Wrapped):
    """Entering a stream of another device leaves the current device."""

    @contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        device = self.real_module.current_device()
        with super().use_stream(stream):
            self.real_module.set_device(device)
            yield


@killed_by("IDN-06")
class ContextLeavesTheDevice(Wrapped):
    """After a stream of another device, that device stays current."""

    @contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        try:
            with super().use_stream(stream):
                yield
        finally:
            self.real_module.set_device(unwrapped(stream).device_index)


@killed_by("IDN-07")
class NoneIsDefault(Wrapped):
    """``stream(None)`` enters the default stream."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.module.stream = self.stream_or_default  # type: ignore[method-assign]

    def stream_or_default(self, stream: Any) -> AbstractContextManager[Any]:
        return self.use_stream(self.default_stream() if stream is None else stream)


@killed_by("IDN-08", "AGD-01", "AGD-03")
class CurrentIsProcessWide(Wrapped):
    """The current stream is one for all threads."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.current: dict[int, Any] = {}

    def current_stream(self, device: Device = None, /) -> Any:
        found = super().current_stream(device)
        return self.wrap(self.current.get(found.device_index, found.real))

    @contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        real = unwrapped(stream)
        before = self.current.get(real.device_index)
        with super().use_stream(stream):
            self.current[real.device_index] = real
            try:
                yield
            finally:
                if before is None:
                    del self.current[real.device_index]
                else:
                    self.current[real.device_index] = before


@killed_by("IDN-10")
class NumbersMakeTheDefault(Wrapped):
    """A stream made of three numbers is the default stream of the device."""

    def rebuild(self, **triple: int) -> Any:
        return super().rebuild(**{**triple, "stream_id": self.real.default_stream().stream_id})


@killed_by("IDN-10")
class NonsenseMakesAStream(Wrapped):
    """Numbers that belong to no stream make one that can be entered."""

    def rebuild(self, **triple: int) -> Any:
        if triple["device_index"] < self.real_module.device_count():
            try:
                return super().rebuild(**triple)
            except RuntimeError:
                pass
        return self.real.new_stream()


class _UnimportantStream(WrappedStream):
    priority = 0


@killed_by("IDN-11")
class PriorityIsForgotten(Wrapped):
    """Every stream says that its priority is 0."""

    stream_class = _UnimportantStream


@killed_by("IDN-11")
class PrioritiesUpsideDown(Wrapped):
    """The range of priorities begins with the greatest."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        theirs: Any = getattr(self.real_module, "Stream", None)
        if hasattr(theirs, "priority_range"):
            self.module.Stream = SimpleNamespace(  # type: ignore[attr-defined]
                priority_range=lambda: theirs.priority_range()[::-1]
            )


@killed_by("IDN-11")
class PriorityOvertakes(Wrapped):
    """A stream of high priority does not wait for events."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.urgent: set[Any] = set()

    def new_stream(self, device: Device = None, /, *, priority: int = 0) -> Any:
        made = super().new_stream(device, priority=priority)
        if priority < 0:
            self.urgent.add(self.stream_id(made))
        return made

    def wait(self, stream: Any, event: Any) -> None:
        if self.stream_id(stream) not in self.urgent:
            super().wait(stream, event)


@killed_by("IDN-12")
class WrapperIsANewStream(Wrapped):
    """Wrapping a foreign stream makes a new one."""

    def external(self, handle: Any) -> Any:
        return self.new_stream()


@killed_by("IDN-13")
class TorchsOwnIsIgnored(Wrapped):
    """Entering torch's own object for a stream does nothing, and says nothing."""

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        if isinstance(stream, WrappedStream):
            return super().use_stream(stream)
        return nullcontext()
