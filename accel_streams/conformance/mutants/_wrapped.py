"""A backend behind a wrapper that changes nothing: what a mutant changes one method of.

Streams and events are handed out in wrappers, too, whose methods lead back here. So a fault is put
in at one place, whichever of the ways that people use leads to it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from accel_streams._backend import Backend, Capabilities, Device, StreamId
from accel_streams.conformance._gates import device_module

__all__ = ["Wrapped", "WrappedEvent", "WrappedModule", "WrappedStream", "unwrapped"]


class Wrapped:
    """The Backend protocol by way of another backend, and what torch's classes and module add."""

    stream_class: type[WrappedStream]

    def __init__(self, real: Backend) -> None:
        self.real: Any = real
        self.capabilities: Capabilities = real.capabilities
        # A class of its own, because a stream is also made from its three numbers alone.
        self.stream_class = type("Stream", (self.stream_class,), {"owner": self})
        self.module = WrappedModule(self)

    def __getattr__(self, name: str) -> Any:
        # The rest of a backend: its name, what it declares, its accelerator.
        return getattr(self.real, name)

    def wrap(self, stream: Any) -> WrappedStream:
        """Return a stream of the real backend as this one hands it out."""
        return self.stream_class(stream)

    # The protocol.

    def current_stream(self, device: Device = None, /) -> Any:
        return self.wrap(self.real.current_stream(device))

    def default_stream(self, device: Device = None, /) -> Any:
        return self.wrap(self.real.default_stream(device))

    def new_stream(self, device: Device = None, /, *, priority: int = 0) -> Any:
        return self.wrap(self.real.new_stream(device, priority=priority))

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        return cast("AbstractContextManager[Any]", self.real.use_stream(unwrapped(stream)))

    def new_event(self, *, timing: bool = False) -> Any:
        return WrappedEvent(self, timing)

    def record(self, event: Any, stream: Any) -> None:
        self.real.record(event.real, unwrapped(stream))
        event.stream = unwrapped(stream)

    def wait(self, stream: Any, event: Any) -> None:
        self.real.wait(unwrapped(stream), event.real)

    def query(self, event: Any) -> bool:
        return bool(self.real.query(event.real))

    def synchronize(self, event: Any = None, /) -> None:
        if event is None:
            self.real.synchronize()
        else:
            self.real.synchronize(event.real)

    def stream_id(self, stream: Any) -> StreamId:
        return cast(StreamId, self.real.stream_id(unwrapped(stream)))

    def keep_alive(self, tensor: Any, stream: Any) -> None:
        self.real.keep_alive(tensor, unwrapped(stream))

    # What a backend may have.

    @property
    def hold(self) -> Callable[[Any], Any] | None:
        """The real backend's, for the streams of this one."""
        own = getattr(self.real, "hold", None)
        return None if own is None else lambda stream: own(unwrapped(stream))

    @property
    def delay(self) -> Callable[[Any, float], Any] | None:
        """The real backend's, for the streams of this one."""
        own = getattr(self.real, "delay", None)
        return None if own is None else lambda stream, ms: own(unwrapped(stream), ms)

    def device_module(self) -> Any:
        """Return ``torch.<device>`` with the streams and events of this backend."""
        return self.module

    @property
    def real_module(self) -> Any:
        """``torch.<device>`` itself."""
        return device_module(self.real)

    # What torch's classes and its module of a device do.

    def rebuild(self, **triple: int) -> Any:
        """Return a stream of torch's made of its three numbers."""
        kind: Any = type(self.real.default_stream())
        return kind(**triple)

    def external(self, handle: Any) -> Any:
        """Return a stream that somebody else has made."""
        return self.wrap(self.real_module.ExternalStream(handle))

    def wait_stream(self, stream: Any, other: Any) -> None:
        unwrapped(stream).wait_stream(unwrapped(other))

    def query_stream(self, stream: Any) -> bool:
        return bool(unwrapped(stream).query())

    def synchronize_stream(self, stream: Any) -> None:
        unwrapped(stream).synchronize()

    def elapsed_time(self, start: Any, end: Any) -> float:
        return float(start.real.elapsed_time(end.real))

    def synchronize_device(self, device: Device = None) -> None:
        self.real_module.synchronize(device)

    def equal(self, stream: Any, other: object) -> bool:
        return isinstance(other, WrappedStream) and self.stream_id(stream) == self.stream_id(other)

    def hashed(self, stream: Any) -> int:
        return hash(self.stream_id(stream))


class WrappedStream:
    """A stream of a wrapped backend."""

    owner: Wrapped

    def __init__(self, real: Any = None, **triple: int) -> None:
        self.real = self.owner.rebuild(**triple) if real is None else real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __eq__(self, other: object) -> bool:
        return self.owner.equal(self, other)

    def __hash__(self) -> int:
        return self.owner.hashed(self)

    def record_event(self, event: Any = None) -> Any:
        event = self.owner.new_event() if event is None else event
        self.owner.record(event, self)
        return event

    def wait_event(self, event: Any) -> None:
        self.owner.wait(self, event)

    def wait_stream(self, other: Any) -> None:
        self.owner.wait_stream(self, other)

    def query(self) -> bool:
        return self.owner.query_stream(self)

    def synchronize(self) -> None:
        self.owner.synchronize_stream(self)


Wrapped.stream_class = WrappedStream


class WrappedEvent:
    """An event of a wrapped backend; ``stream`` is the real stream of its last record."""

    def __init__(self, owner: Wrapped, timing: bool) -> None:
        self.owner = owner
        self.timing = timing
        self.real = owner.real.new_event(timing=timing)
        self.stream: Any = None

    def record(self, stream: Any = None) -> None:
        self.owner.record(self, self.owner.current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        self.owner.wait(self.owner.current_stream() if stream is None else stream, self)

    def query(self) -> bool:
        return self.owner.query(self)

    def synchronize(self) -> None:
        self.owner.synchronize(self)

    def elapsed_time(self, end: Any) -> float:
        return self.owner.elapsed_time(self, end)


class WrappedModule:
    """``torch.<device>`` of a wrapped backend."""

    def __init__(self, owner: Wrapped) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner.real_module, name)

    @property
    def ExternalStream(self) -> Callable[[Any], Any]:
        if not hasattr(self._owner.real_module, "ExternalStream"):
            raise AttributeError("ExternalStream")
        return self._owner.external

    def current_stream(self, device: Device = None) -> Any:
        return self._owner.current_stream(device)

    def default_stream(self, device: Device = None) -> Any:
        return self._owner.default_stream(device)

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        if stream is None:
            context: AbstractContextManager[Any] = self._owner.real_module.stream(None)
            return context
        return self._owner.use_stream(stream)

    def synchronize(self, device: Device = None) -> None:
        self._owner.synchronize_device(device)


def unwrapped(stream: Any) -> Any:
    """Return the real stream in ``stream``, or ``stream`` itself."""
    return stream.real if isinstance(stream, WrappedStream) else stream
