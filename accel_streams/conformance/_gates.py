"""Work that holds a stream open: without it, a missing wait looks like a good one.

Four levels. L3: the backend can hold a stream until the host releases it. L2: the device module has
``_sleep``, a kernel that lasts as long as asked. L1: large matrix products. L0: nothing. L2 and L1
open by themselves after a time that is measured beforehand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from accel_streams._backend import Backend, Stream

__all__ = ["Gate", "Gates", "Level", "device_module"]


class Level(IntEnum):
    """How well a stream of the device can be held."""

    NONE = 0
    LOAD = 1
    DELAY = 2
    HOLD = 3

    def __str__(self) -> str:
        return f"L{self.value}"

    @property
    def meaning(self) -> str:
        """The level in words."""
        return _MEANINGS[self]


_MEANINGS = {
    Level.NONE: "a stream can't be held",
    Level.LOAD: "a stream is held by matrix products for a measured time",
    Level.DELAY: "a stream is held by _sleep for a measured time",
    Level.HOLD: "a stream is held until the host releases it",
}

# A delay is trusted for this part of what it was measured to last: clocks speed up.
_TRUSTED = 0.6
# Work is measured by so much of it that what the start of it costs is no matter.
_MEASURED_S = 0.03
_MOST_UNITS = 1 << 40
# A product takes long beside its submission, so that the gate is there when the host goes on.
_PRODUCT_S = 0.001
_SIZES = (256, 512, 1024, 2048, 4096, 8192)


class Gate(Protocol):
    """A place in a stream that later work of that stream can't pass while it is closed."""

    @property
    def closed(self) -> bool:
        """Whether it is certain that the gate holds its stream at this moment.

        Known to the host without asking the device, whose answers are what is being tested.
        """

    def release(self) -> None:
        """Open the gate, or (L1, L2) give up on it: it opens by itself. May be called again."""


class _Held:
    """L3: the backend's own."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def release(self) -> None:
        self._closed = False
        self._handle.release()


class _Timed:
    """L1 and L2: closed for at least a known time from its submission on."""

    def __init__(self, until: float) -> None:
        self._until = until

    @property
    def closed(self) -> bool:
        return time.perf_counter() < self._until

    def release(self) -> None:
        self._until = 0.0


class Gates:
    """Makes gates of the best level that a backend has.

    ``at_most`` asks for a lower level than that, to see what a poorer device would be told.
    """

    def __init__(self, backend: Backend, *, at_most: Level = Level.HOLD) -> None:
        self._backend = backend
        self._units_a_second = 0.0
        self._matrices: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._size = 0
        self._timed_gates: Gates | None = None
        self.warm: set[int] = set()
        """The devices on which each kind of work has been used once."""
        self.independent = False
        """Whether two streams were seen to run side by side."""
        self.level = self._choose(at_most)
        self.duration_s = 0.15
        """How long a gate of L1 or L2 stays closed, in seconds."""

    def close(self, stream: Stream, part: float = 1.0) -> Gate:
        """Hold ``stream`` from here on, and return the gate that does it.

        A gate that opens by itself lasts a ``part`` of ``duration_s``.
        """
        if self.level is Level.HOLD:
            hold: Any = getattr(self._backend, "hold")  # noqa: B009  (optional in the protocol)
            return _Held(hold(stream))
        if self.level is Level.NONE:
            raise RuntimeError("a stream of this device can't be held")
        begun = time.perf_counter()  # The work can't begin before it is submitted.
        self._submit(stream, self._units(self.duration_s * part))
        return _Timed(begun + self.duration_s * part)

    def delay(self, stream: Stream, seconds: float) -> bool:
        """Put work on ``stream`` that lasts at least ``seconds``; return False where none can.

        By the backend's own ``delay(stream, milliseconds)`` where it has one: on a device with a
        clock of its own, only the backend knows what takes how long by that clock.
        """
        own: Any = getattr(self._backend, "delay", None)
        if own is not None:
            own(stream, seconds * 1e3)
            return True
        if self.level is Level.HOLD:
            if self._timed_gates is None:
                self._timed_gates = Gates(self._backend, at_most=Level.DELAY)
            return self._timed_gates.delay(stream, seconds)
        if self.level is Level.NONE:
            return False
        self._submit(stream, self._units(seconds))
        return True

    def _units(self, seconds: float) -> int:
        return math.ceil(seconds / _TRUSTED * self._units_a_second)

    def _choose(self, at_most: Level) -> Level:
        if at_most >= Level.HOLD and callable(getattr(self._backend, "hold", None)):
            return Level.HOLD
        for level, submit in ((Level.DELAY, self._sleep), (Level.LOAD, self._multiply)):
            if at_most >= level:
                self._submit = submit
                self._units_a_second = self._calibrated(submit)
                if self._units_a_second:
                    return level
        return Level.NONE

    def _calibrated(self, submit: Callable[[Stream, int], None]) -> float:
        """Return how many units of work fill a second by the host's clock; 0 if none does.

        Rather too many: a gate that lasts longer than it promises does no harm.
        """
        stream = self._backend.new_stream()
        try:
            self._timed(submit, stream, 1)
            units = 1
            while units <= _MOST_UNITS:
                took = self._timed(submit, stream, units)
                if took >= _MEASURED_S:
                    twice = self._timed(submit, stream, 2 * units)
                    if twice > 1.5 * took:  # Else most of it was the start.
                        return max(units / (twice - took), 2 * units / twice)
                units *= 2 if took >= _MEASURED_S / 8 else 4
        except Exception:  # Whatever a vendor's module raises for what it doesn't have.
            return 0.0
        return 0.0

    def _timed(self, submit: Callable[[Stream, int], None], stream: Stream, units: int) -> float:
        """Return how many seconds so much work takes, at best."""
        found = []
        for _ in range(3):
            begun = time.perf_counter()
            submit(stream, units)
            self._backend.synchronize()
            found.append(time.perf_counter() - begun)
        return min(found)

    def _sleep(self, stream: Stream, cycles: int) -> None:
        sleep = device_module(self._backend)._sleep
        with self._backend.use_stream(stream):
            sleep(cycles)

    def _multiply(self, stream: Stream, times: int) -> None:
        import torch

        index = self._backend.stream_id(stream).device_index
        if index not in self._matrices:
            self._matrices[index] = self._sized(torch.device(self._backend.device_type, index))
        factor, product = self._matrices[index]
        with self._backend.use_stream(stream):
            for _ in range(times):
                torch.mm(factor, factor, out=product)

    def _sized(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a matrix that takes a while to multiply, and one for the product."""
        import torch

        if self._size == 0:
            for self._size in _SIZES:
                factor = torch.full((self._size, self._size), 1 / self._size, device=device)
                product = torch.mm(factor, factor)
                self._backend.synchronize()
                begun = time.perf_counter()
                torch.mm(factor, factor, out=product)
                self._backend.synchronize()
                if time.perf_counter() - begun >= _PRODUCT_S:
                    break
        factor = torch.full((self._size, self._size), 1 / self._size, device=device)
        product = torch.empty_like(factor)
        self._backend.synchronize()
        return factor, product


def device_module(backend: Backend) -> Any:
    """Return ``torch.<device_type>``, by the backend's own ``device_module()`` where it has one."""
    own = getattr(backend, "device_module", None)
    if own is not None:
        return own()
    import torch

    return getattr(torch, backend.device_type)
