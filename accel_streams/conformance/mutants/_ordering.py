"""Backends that put things in the wrong order, or in none."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from accel_streams.conformance.mutants._mutant import killed_by
from accel_streams.conformance.mutants._wrapped import Wrapped, WrappedStream, unwrapped

__all__: list[str] = []

# Longer than any property may take.
_FOR_EVER_S = 30.0


class _Deferring(Wrapped):
    """Issues what a stream should wait for only when it gets something to do."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.deferred: dict[Any, list[Callable[[], None]]] = {}

    def defer(self, stream: Any, wait: Callable[[], None]) -> None:
        self.deferred.setdefault(self.stream_id(stream), []).append(wait)

    def issue(self, stream: Any) -> None:
        for wait in self.deferred.pop(self.stream_id(stream), []):
            wait()

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        self.issue(stream)
        return super().use_stream(stream)

    def record(self, event: Any, stream: Any) -> None:
        self.issue(stream)
        super().record(event, stream)


@killed_by("ORD-03", "ORD-05", "ORD-06", "ORD-08", "ORD-13", "MEM-05", "AGD-04")
class WaitDoesNothing(Wrapped):
    """A stream's wait is forgotten."""

    def wait(self, stream: Any, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any, other: Any) -> None:
        pass


@killed_by("ORD-04")
class WaitIsForTheTail(Wrapped):
    """A wait for an event is one for all that its stream has got since, too."""

    def wait(self, stream: Any, event: Any) -> None:
        if event.stream is not None:
            unwrapped(stream).wait_stream(event.stream)


@killed_by("ORD-09")
class WaitBindsLate(_Deferring):
    """A wait means the record that its event has when the stream goes on."""

    def wait(self, stream: Any, event: Any) -> None:
        self.defer(stream, lambda: self.real.wait(unwrapped(stream), event.real))


@killed_by("ORD-13")
class WaitStreamBindsLate(_Deferring):
    """``wait_stream`` waits for what the other stream has when this one goes on."""

    def wait_stream(self, stream: Any, other: Any) -> None:
        self.defer(stream, lambda: unwrapped(stream).wait_stream(unwrapped(other)))


@killed_by("ORD-17")
class WaitEndsWithItsEvent(_Deferring):
    """A wait is lost with the last reference to its event."""

    def wait(self, stream: Any, event: Any) -> None:
        known = weakref.ref(event)

        def wait() -> None:
            alive = known()
            if alive is not None:
                self.real.wait(unwrapped(stream), alive.real)

        self.defer(stream, wait)


@killed_by("ORD-06")
class OnlyTheNewestWaitCounts(_Deferring):
    """A second wait takes the place of the first."""

    def wait(self, stream: Any, event: Any) -> None:
        self.deferred.pop(self.stream_id(stream), None)
        self.defer(stream, lambda: self.real.wait(unwrapped(stream), event.real))


@killed_by("ORD-07")
class OneWaitUsesUpTheEvent(Wrapped):
    """Only the first stream that waits for a record waits."""

    def record(self, event: Any, stream: Any) -> None:
        super().record(event, stream)
        event.used = False

    def wait(self, stream: Any, event: Any) -> None:
        if not getattr(event, "used", True):
            event.used = True
            super().wait(stream, event)


@killed_by("ORD-05")
class RecordSkipsWaits(Wrapped):
    """A record after nothing but a wait stands for nothing."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.waiting: set[Any] = set()

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        self.waiting.discard(self.stream_id(stream))
        return super().use_stream(stream)

    def wait(self, stream: Any, event: Any) -> None:
        self.waiting.add(self.stream_id(stream))
        super().wait(stream, event)

    def record(self, event: Any, stream: Any) -> None:
        if self.stream_id(stream) not in self.waiting:
            super().record(event, stream)


@killed_by("ORD-08", "ORD-10", "EVT-04")
class SecondRecordIgnored(Wrapped):
    """An event keeps its first record."""

    def record(self, event: Any, stream: Any) -> None:
        if event.stream is None:
            super().record(event, stream)


@killed_by("ORD-10")
class SecondRecordAdds(Wrapped):
    """An event stands for all records it has ever had."""

    def record(self, event: Any, stream: Any) -> None:
        if event.stream is not None and event.stream.device_index == stream.device_index:
            unwrapped(stream).wait_stream(event.stream)
        super().record(event, stream)


@killed_by("ORD-14")
class WaitBlocksTheHost(Wrapped):
    """The host waits in place of the stream."""

    def wait(self, stream: Any, event: Any) -> None:
        self.real.synchronize(event.real)


@killed_by("ORD-14")
class RecordBlocksTheHost(Wrapped):
    """The host waits for what it records."""

    def record(self, event: Any, stream: Any) -> None:
        super().record(event, stream)
        self.real.synchronize(event.real)


@killed_by("ORD-15")
class NoWaitAcrossDevices(Wrapped):
    """A wait for an event of another device is forgotten."""

    def wait(self, stream: Any, event: Any) -> None:
        if event.stream is None or event.stream.device_index == stream.device_index:
            super().wait(stream, event)


@killed_by("ORD-16")
class EventMovesToAnotherDevice(Wrapped):
    """Recording an event on another device makes it one of that device."""

    def record(self, event: Any, stream: Any) -> None:
        if event.stream is not None and event.stream.device_index != stream.device_index:
            event.real = self.real.new_event(timing=event.timing)
        super().record(event, stream)


class _CountedStream(WrappedStream):
    alive: ClassVar[Counter[Any]] = Counter()

    def __init__(self, real: Any = None, **triple: int) -> None:
        super().__init__(real, **triple)
        self.alive[self.owner.stream_id(self)] += 1

    def __del__(self) -> None:
        key = self.owner.stream_id(self)
        self.alive[key] -= 1
        if not self.alive[key]:
            self.real.synchronize()


@killed_by("ORD-18")
class DroppingAStreamBlocks(Wrapped):
    """Dropping the last reference to a stream waits for its work."""

    stream_class = _CountedStream


@killed_by("ORD-02")
class StreamsAreSerial(Wrapped):
    """Each stream waits for the one that was used before it."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.last: Any = None

    @property
    def hold(self) -> Any:
        """The real backend's, whose gate the next stream waits for as for other work."""
        own = super().hold
        if own is None:
            return None

        def held(stream: Any) -> Any:
            self.follow(stream)
            return own(stream)

        return held

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        self.follow(stream)
        return super().use_stream(stream)

    def follow(self, stream: Any) -> None:
        real = unwrapped(stream)
        last, self.last = self.last, real
        if last is not None and self.stream_id(last) != self.stream_id(real):
            real.wait_stream(last)


@killed_by("ORD-01")
class StreamIsTwo(Wrapped):
    """Every second use of a stream goes to a hidden one beside it."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.hidden: dict[Any, Any] = {}
        self.uses: Counter[Any] = Counter()

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        key = self.stream_id(stream)
        self.uses[key] += 1
        if self.uses[key] % 2:
            return super().use_stream(stream)
        if key not in self.hidden:
            self.hidden[key] = self.real.new_stream(stream.device)
        return super().use_stream(self.hidden[key])


@killed_by("ORD-11")
class UnrecordedCantBeWaitedFor(Wrapped):
    """Waiting for an event that was never recorded raises."""

    def wait(self, stream: Any, event: Any) -> None:
        if event.stream is None:
            raise RuntimeError("the event was not recorded")
        super().wait(stream, event)


@killed_by("ORD-12")
class WaitingForOneselfHangs(Wrapped):
    """A stream's wait for itself never returns."""

    def wait(self, stream: Any, event: Any) -> None:
        if event.stream is not None and self.stream_id(event.stream) == self.stream_id(stream):
            threading.Event().wait(_FOR_EVER_S)
        super().wait(stream, event)
