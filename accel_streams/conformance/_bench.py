"""What a property works with: streams, events, work that can be seen, and gates.

A property reaches the device only through its bench, so that a broken backend put in place of the
real one shows.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from accel_streams.conformance._caller import Caller
from accel_streams.conformance._gates import Gate, Gates, Level, device_module
from accel_streams.conformance._results import (
    Broken,
    Doubtful,
    Inconclusive,
    Serial,
    needs,
    premise,
    require,
)

if TYPE_CHECKING:
    import torch

    from accel_streams._backend import Backend, Event, Stream

__all__ = ["Bench", "Question"]

Question = Callable[[], bool]
"""Something to ask again until it is true."""

# How often, and how long, an event is asked that must stay pending. A simulated device does a piece
# of work at each question; on a real one, a kernel that may run has run by then.
_POLLS = 64
_SETTLE_S = 0.004
# What has nothing to wait for has this long to be done.
_PATIENCE_S = 2.0
_PAUSE_S = 0.0002
_BLOCKS_S = 0.03
_ELEMENTS = 256
# Streams come from pools: so many are asked for to get distinct ones.
_MOST_ASKED = 512


class Bench:
    """The device as one property sees it.

    Streams and events come from the backend, and are used in two ways: by the backend's methods
    (``bench.backend.record(event, stream)``), and by those that torch's classes give them
    (``stream.wait_stream(other)``). ``bench.module`` is ``torch.<device>``.

    ``gate(stream)`` holds a stream for a ``with`` block. What must not happen meanwhile is stated
    by ``stays_pending``, what must happen by ``completes`` and ``returns``; these know what a gate
    that opens by itself can prove.
    """

    def __init__(self, backend: Backend, gates: Gates) -> None:
        self.backend = backend
        self._gates = gates
        self._open: list[Gate] = []
        self._lock = threading.Lock()
        self._kept: list[object] = []

    # The device.

    @property
    def level(self) -> Level:
        """The level of the gates."""
        return self._gates.level

    @cached_property
    def module(self) -> Any:
        """``torch.<device>``, as the backend gives it."""
        return device_module(self.backend)

    @cached_property
    def device_count(self) -> int:
        """How many devices there are."""
        return int(self.module.device_count())

    def device(self, index: int = 0) -> torch.device:
        """Return the torch device with this index."""
        import torch

        return torch.device(self.backend.device_type, index)

    def on_device(self, index: int) -> AbstractContextManager[Any]:
        """Make a device current inside the ``with`` block."""
        context: AbstractContextManager[Any] = self.module.device(index)
        return context

    # Streams and events.

    def streams(self, count: int, device: int = 0) -> list[Stream]:
        """Return new streams of a device, distinct from each other and from its default stream.

        Distinct from those of earlier calls, too, as far as the device's pool reaches.
        """
        backend = self.backend
        taken = {backend.stream_id(backend.default_stream(self.device(device)))}
        found: list[Stream] = []
        for _ in range(_MOST_ASKED):
            if len(found) == count:
                break
            stream = backend.new_stream(self.device(device))
            if backend.stream_id(stream) not in taken:
                taken.add(backend.stream_id(stream))
                found.append(stream)
        require(
            len(found) == count,
            f"new_stream gave {len(found)} distinct streams in {_MOST_ASKED} calls, "
            f"expected {count} besides the default stream",
        )
        return found

    def event(self, *, timing: bool = False) -> Event:
        """Return an event that has not been recorded."""
        return self.backend.new_event(timing=timing)

    def marker(self, stream: Stream) -> Event:
        """Return a new event, recorded on ``stream``."""
        event = self.event()
        self.backend.record(event, stream)
        return event

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make ``stream`` current inside the ``with`` block."""
        return self.backend.use_stream(stream)

    # Work that can be seen.

    def cell(self, value: float = 0.0, device: int = 0) -> torch.Tensor:
        """Return a tensor of a few elements that are ``value`` already.

        Make cells before a gate is closed: memory may come only when the device is idle. A cell
        lives until the property ends, so that no other use of its memory gets in the way.
        """
        import torch

        stream = self.backend.default_stream(self.device(device))
        with self.on(stream):
            made = torch.full((_ELEMENTS,), value, device=self.device(device))
        self.backend.synchronize(self.marker(stream))
        self._kept.append(made)
        return made

    def pinned(self, value: float = 0.0, count: int = _ELEMENTS) -> torch.Tensor:
        """Return a tensor in pinned memory of the host, as long as a cell.

        Unverified where torch makes none for this device.
        """
        import torch

        reason = ""
        try:
            made = torch.full((count,), value, pin_memory=True)
            there = made.is_pinned()
        except (RuntimeError, NotImplementedError) as exc:
            there, reason = False, f": {exc}"
        needs(there, f"needs pinned host memory, which torch doesn't make here{reason}")
        return made

    def write(self, stream: Stream, cell: torch.Tensor, value: float) -> None:
        """Put work on ``stream`` that sets the cell."""
        with self.on(stream):
            cell.fill_(value)

    def copy(self, stream: Stream, source: torch.Tensor, target: torch.Tensor) -> None:
        """Put work on ``stream`` that reads one cell and sets another to what it found."""
        with self.on(stream):
            target.copy_(source)

    def read(self, stream: Stream, cell: torch.Tensor) -> float:
        """Return a cell's value, once the work put on ``stream`` before is done.

        Raise Broken when its elements differ, as after a read in the midst of a write.
        """
        with self.on(stream):
            values = set(cell.tolist())
        require(len(values) == 1, f"a cell that is written as a whole holds {sorted(values)}")
        value = float(values.pop())
        require(not math.isnan(value), "a cell that was written holds NaN")
        return value

    # Gates.

    @contextmanager
    def gate(self, stream: Stream, *, part: float = 1.0, forget: bool = False) -> Iterator[Gate]:
        """Hold ``stream`` inside the ``with`` block, or until ``release()`` of what it gives.

        Of two gates, one that is to open first gets a ``part`` of the time that a gate lasts which
        opens by itself. With ``forget`` the last reference to the stream is not kept here.
        """
        needs(self.level > Level.NONE, "needs a gate, and a stream of this device can't be held")
        for index in range(min(self.device_count, 2)):
            self._warm_up(index)
        gate = self._gates.close(stream, part)
        timed = self.level is not Level.HOLD
        opened = self.marker(stream) if timed and forget else None
        kept = None if forget else stream
        del stream
        with self._lock:
            self._open.append(gate)
        try:
            yield gate
        finally:
            gate.release()
            if timed:  # So that nobody meets a gate that was given up.
                self.backend.synchronize(self.marker(kept) if opened is None else opened)

    @contextmanager
    def gate_if_any(self, stream: Stream) -> Iterator[Gate | None]:
        """Do as ``gate`` where there are gates, else nothing: for what a gate only sharpens."""
        if self.level is Level.NONE:
            yield None
            return
        with self.gate(stream) as gate:
            yield gate

    def stays_pending(self, event: Event | Question, gate: Gate, what: str) -> None:
        """Raise Broken when ``event`` completes while ``gate`` is closed.

        ``event`` is an event or a function that tells, such as a stream's ``query``. ``what`` is
        the work before it, for the message. Inconclusive when the gate opened by itself before
        that could be seen.
        """
        asked = self._question(event)
        begun = time.perf_counter()
        polls = 0
        while polls < _POLLS or time.perf_counter() - begun < _SETTLE_S:
            done = asked()
            if not gate.closed:
                raise Inconclusive(f"the gate opened before {what} could be seen to wait")
            if done:
                raise self._early(f"{what} did not wait: it was done while the gate was closed")
            polls += 1

    def completes(
        self, event: Event | Question, gate: Gate | None, what: str, *, alone: bool = False
    ) -> None:
        """Raise Broken unless ``event`` completes, while ``gate`` (if any) is closed.

        Inconclusive where no stream of this device goes on while another is held, unless that
        (``alone``) is what is checked.
        """
        if gate is not None:
            premise(gate.closed, f"the gate opened before {what} was asked for")
        done = self._until(self._question(event), gate)
        if done and (gate is None or gate.closed):
            return
        if gate is None:
            raise Broken(f"{what} was not done within {_PATIENCE_S:.0f} s")
        if not alone:
            self._check_independence()
        raise self._late(f"{what} waited for the gate, which it must not")

    def returns(self, call: Callable[[], object] | Caller, gate: Gate | None, what: str) -> None:
        """Raise Broken unless ``call()`` returns to the host, while ``gate`` (if any) is closed.

        It is called in a thread of its own, in which the default stream and device are current,
        or is a call that ``blocks`` has begun. What it raises is raised here.
        """
        if gate is not None:
            premise(gate.closed, f"the gate opened before {what} was called")
        caller = call if isinstance(call, Caller) else Caller(call)
        back = self._until(caller.returned, gate)
        if back and (gate is None or gate.closed):
            caller.result()
            return
        self._release_all()
        if not caller.wait(_PATIENCE_S):
            raise Broken(f"{what} did not return within {_PATIENCE_S:.0f} s")
        caller.result()
        if gate is None:
            return
        self._check_independence()
        raise self._late(f"{what} blocked the host until the gate opened")

    def blocks(self, call: Callable[[], object], gate: Gate, what: str) -> Caller:
        """Raise Broken when ``call()`` returns while ``gate`` is closed; return the running call.

        It is called in a thread of its own. Hand it to ``returns`` after the gate's release.
        """
        caller = Caller(call)
        deadline = time.perf_counter() + _BLOCKS_S
        while time.perf_counter() < deadline:
            back = caller.returned()
            if not gate.closed:
                raise Inconclusive(f"the gate opened before {what} could be seen to wait")
            if back:
                caller.result()
                raise self._early(f"{what} returned while the gate was closed, expected it to wait")
            time.sleep(_PAUSE_S)
        return caller

    def delay(self, stream: Stream, milliseconds: float) -> None:
        """Put work on ``stream`` that lasts at least that long by the device's clock."""
        there = self._gates.delay(stream, milliseconds / 1e3)
        needs(there, "needs work of a known duration, which this device has not")

    # For the runner.

    def release_all(self) -> None:
        """Open every gate; from any thread."""
        self._release_all()

    def close(self) -> None:
        """Open every gate, wait for the device, and let go of the cells."""
        self._release_all()
        for index in range(min(self.device_count, 2)):
            with self.on_device(index):
                self.backend.synchronize()
        self._kept.clear()

    def _early(self, message: str) -> Broken:
        # Matrix products can be faster than they were measured to be, by far more than a clock can.
        return Doubtful(message) if self.level is Level.LOAD else Broken(message)

    def _late(self, message: str) -> Broken:
        return Broken(message) if self.level is Level.HOLD else Doubtful(message)

    def _release_all(self) -> None:
        with self._lock:
            gates, self._open = self._open, []
        for gate in gates:
            gate.release()

    def _question(self, event: Event | Question) -> Question:
        return event if callable(event) else lambda: self.backend.query(event)

    def _until(self, done: Callable[[], bool], gate: Gate | None) -> bool:
        """Ask until ``done()``, for as long as that can tell something."""
        begun = time.perf_counter()
        while True:
            if done():
                return True
            timed = gate is not None and self.level is not Level.HOLD
            if timed and gate is not None and not gate.closed:
                return False
            if not timed and time.perf_counter() - begun > _PATIENCE_S:
                return False
            time.sleep(_PAUSE_S)

    def _warm_up(self, index: int) -> None:
        """Use each kind of work once: loading a kernel may wait for the whole device."""
        warm: set[int] = self._gates.warm
        if index in warm:
            return
        warm.add(index)
        stream, other = self.streams(2, index)
        source, target = self.cell(1.0, index), self.cell(0.0, index)
        self.write(stream, source, 2.0)
        event = self.marker(stream)
        self.backend.wait(other, event)
        self.copy(other, source, target)
        self.read(other, target)
        self.backend.query(event)

    def _check_independence(self) -> None:
        """Raise Serial when not even streams that have nothing to do with each other overlap."""
        if self._gates.independent:
            return
        self._release_all()
        held, free = self.streams(2)
        cell = self.cell()
        with self.gate(held) as gate:
            self.write(free, cell, 1.0)
            event = self.marker(free)
            done = self._until(lambda: self.backend.query(event), gate)
            self._gates.independent = done and gate.closed
        if not self._gates.independent:
            raise Serial("this device does not run two streams side by side (ORD-02)")
