"""EVT: what an event says, and what the host gets by waiting for it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from accel_streams.conformance._property import checks
from accel_streams.conformance._results import needs, require

if TYPE_CHECKING:
    from accel_streams._backend import Event, Stream
    from accel_streams.conformance._bench import Bench

_ASKED = 100
# Times of one run add up as well as a clock can tell: the larger of these, in milliseconds.
_TOLERANCE, _TOLERANCE_MS = 0.05, 0.1
_REFUSALS = (RuntimeError, ValueError)


@checks("EVT-01", "query_unrecorded")
def query_unrecorded(bench: Bench) -> None:
    """An event that was never recorded is complete, and waiting for it returns at once."""
    (a,) = bench.streams(1)
    with bench.gate_if_any(a) as gate, bench.on(a):
        for timing in (False, True):
            event = bench.event(timing=timing)
            for asked in (lambda e=event: bench.backend.query(e), event.query):
                require(asked() is True, "query() of an event that was never recorded is not True")
            for waited in (lambda e=event: bench.backend.synchronize(e), event.synchronize):
                what = "synchronize() of an event that was never recorded"
                bench.returns(waited, gate, what)


@checks("EVT-02", "query_pending", gate=True)
def query_pending(bench: Bench) -> None:
    """``query()`` is False while work before the record is pending, and True once it is done."""
    for timing in (False, True):
        (a,) = bench.streams(1)
        cell = bench.cell()
        event = bench.event(timing=timing)
        with bench.gate(a) as gate:
            bench.write(a, cell, 1.0)
            bench.backend.record(event, a)
            bench.stays_pending(event, gate, "an event behind the gate")
            bench.stays_pending(event.query, gate, "an event behind the gate, by its own query()")
            gate.release()
            bench.completes(event, None, "an event whose gate has opened")
            require(event.query() is True, "query() of a complete event is not True")


@checks("EVT-03", "query_monotonic")
def query_monotonic(bench: Bench) -> None:
    """Once ``query()`` is True it stays so, whatever the stream does, until the next record."""
    a, b = bench.streams(2)
    cell = bench.cell()
    bench.write(a, cell, 1.0)
    event = bench.marker(a)
    bench.completes(event, None, "an event on a free stream")
    with bench.gate_if_any(a):
        bench.write(a, cell, 2.0)
        later = bench.marker(a)
        bench.backend.wait(b, event)
        bench.backend.wait(a, event)
        for _ in range(_ASKED):
            require(bench.backend.query(event), "query() was True and became False")
    bench.completes(later, None, "later work of the stream")
    require(bench.backend.query(event), "query() was True and became False")


@checks("EVT-04", "query_reset", gate=True)
def query_reset(bench: Bench) -> None:
    """After a new record behind pending work ``query()`` is False again."""
    (a,) = bench.streams(1)
    cell = bench.cell()
    event = bench.marker(a)
    bench.completes(event, None, "an event on a free stream")
    for number in (1.0, 2.0):
        with bench.gate(a) as gate:
            bench.write(a, cell, number)
            bench.backend.record(event, a)
            bench.stays_pending(event, gate, "an event that was recorded again")
            gate.release()
            bench.completes(event, None, "an event that was recorded again")


@checks("EVT-05", "sync_effects", gate=True)
def sync_effects(bench: Bench) -> None:
    """After the host has waited for an event, it is complete, and what came before can be read."""
    (a,) = bench.streams(1)
    for number in (1.0, 2.0):
        cell, host = bench.cell(), bench.pinned()
        event = bench.event()
        with bench.gate(a) as gate:
            bench.write(a, cell, number)
            with bench.on(a):
                host.copy_(cell, non_blocking=True)
            bench.backend.record(event, a)
            wait = event.synchronize if number == 1.0 else _waiting(bench, event)
            call = bench.blocks(wait, gate, "the host's wait for an event")
            gate.release()
            bench.returns(call, None, "the host's wait for an event")
            require(bench.backend.query(event), "the host has waited for an event that is pending")
            found = sorted(set(host.tolist()))
            require(found == [number], f"the host read {found} after its wait, expected {number}")


@checks("EVT-06", "sync_prefix", gate=True)
def sync_prefix(bench: Bench) -> None:
    """The host's wait for an event does not wait for what came after the record."""
    (a,) = bench.streams(1)
    cell = bench.cell()
    bench.write(a, cell, 1.0)
    event = bench.marker(a)
    with bench.gate(a) as gate:
        bench.write(a, cell, 2.0)
        what = "the host's wait for an event before the gate"
        bench.returns(_waiting(bench, event), gate, what)
        bench.returns(event.synchronize, gate, what)


@checks("EVT-07", "elapsed")
def elapsed(bench: Bench) -> None:
    """``elapsed_time`` is in milliseconds, adds up, and is no less than what the work takes."""
    (a,) = bench.streams(1)
    first, second, third = (bench.event(timing=True) for _ in range(3))
    delays = (20.0, 40.0)
    bench.delay(a, 1.0)  # What the first use of it costs is not measured.
    bench.backend.synchronize(bench.marker(a))
    bench.backend.record(first, a)
    bench.delay(a, delays[0])
    bench.backend.record(second, a)
    bench.delay(a, delays[1])
    bench.backend.record(third, a)
    bench.backend.synchronize(third)
    parts = first.elapsed_time(second), second.elapsed_time(third)
    whole = first.elapsed_time(third)
    for found, least in zip((*parts, whole), (*delays, sum(delays)), strict=True):
        _require_time(found)
        # What is longer by far is in other units.
        around = least <= found <= 50 * least
        require(around, f"elapsed_time is {found:.4g}, expected milliseconds, {least:g} or more")
    _require_sum(parts, whole)


@checks("EVT-08", "elapsed_errors")
def elapsed_errors(bench: Bench) -> None:
    """``elapsed_time`` of events that have no time raises RuntimeError or ValueError."""
    (a,) = bench.streams(1)
    timed = _recorded(bench, a, timing=True)
    untimed = _recorded(bench, a, timing=False)
    other = _recorded(bench, a, timing=False)
    cases = [
        ("two events without timing", untimed, other),
        ("an event with timing and one without", timed, untimed),
        ("an event without timing and one with it", untimed, timed),
        ("an event that was never recorded", timed, bench.event(timing=True)),
        ("events that were never recorded", bench.event(timing=True), bench.event(timing=True)),
    ]
    for what, start, end in cases:
        _require_refused(start, end, what)
    if bench.device_count > 1:
        elsewhere = _recorded(bench, bench.streams(1, 1)[0], timing=True)
        _require_refused(timed, elsewhere, "events of two devices")
        _require_refused(elsewhere, timed, "events of two devices")
    needs(bench.level > 0, "all but pending events were refused, and no stream can be held")
    with bench.gate(a) as gate:
        pending = bench.event(timing=True)
        bench.backend.record(pending, a)
        bench.stays_pending(pending, gate, "an event behind the gate")
        _require_refused(timed, pending, "an event that is not complete")
    needs(bench.device_count > 1, "all but events of two devices were refused, and there is one")


@checks("EVT-09", "elapsed_cross_stream")
def elapsed_cross_stream(bench: Bench) -> None:
    """Times between events on two streams of one device are times of one clock."""
    a, b = bench.streams(2)
    cell = bench.cell()
    events = [bench.event(timing=True) for _ in range(4)]
    bench.backend.record(events[0], a)
    bench.write(a, cell, 1.0)
    bench.backend.record(events[1], a)
    bench.backend.wait(b, events[1])
    bench.write(b, cell, 2.0)
    bench.backend.record(events[2], b)
    bench.backend.wait(a, events[2])
    bench.write(a, cell, 3.0)
    bench.backend.record(events[3], a)
    bench.backend.synchronize(events[3])
    parts = [start.elapsed_time(end) for start, end in pairwise(events)]
    whole = events[0].elapsed_time(events[3])
    for found in (*parts, whole):
        _require_time(found)
    _require_sum(parts, whole)


@checks("EVT-10", "no_context", devices=2)
def no_context(bench: Bench) -> None:
    """Asking an event of another device neither switches the current device nor starts one."""
    (b,) = bench.streams(1, 1)
    with bench.on_device(1):
        events = [_recorded(bench, b, timing=True) for _ in range(2)]
    with bench.on_device(0):
        started = _started(bench)
        unrecorded = bench.event(timing=True)
        for event in (*events, unrecorded):
            bench.backend.query(event)
            event.query()
        for start, end in ((events[0], events[1]), (events[0], unrecorded)):
            try:
                start.elapsed_time(end)
            except _REFUSALS:
                require(end is unrecorded, "elapsed_time of two complete events raised")
        current = bench.module.current_device()
        require(current == 0, f"asking an event of device 1 made device {current} current, not 0")
        require(_started(bench) == started, "asking an event started another device")


def _waiting(bench: Bench, event: Event) -> Any:
    return lambda: bench.backend.synchronize(event)


def _recorded(bench: Bench, stream: Stream, *, timing: bool) -> Event:
    """Return a complete event."""
    event = bench.event(timing=timing)
    bench.backend.record(event, stream)
    bench.backend.synchronize(event)
    return event


def _require_time(found: float) -> None:
    plausible = isinstance(found, (int, float)) and math.isfinite(found) and found >= 0
    require(plausible, f"elapsed_time of events in order is {found!r}, expected 0 ms or more")


def _require_sum(parts: Any, whole: float) -> None:
    total = sum(parts)
    near = abs(total - whole) <= _TOLERANCE * whole + _TOLERANCE_MS
    require(near, f"elapsed times of {total:.4f} ms in parts are {whole:.4f} ms as a whole")


def _require_refused(start: Event, end: Event, what: str) -> None:
    try:
        found = start.elapsed_time(end)
    except _REFUSALS:
        return
    require(False, f"elapsed_time of {what} returned {found!r}, expected RuntimeError")


def _started(bench: Bench) -> list[int]:
    """Return the devices that have been initialised, as far as torch can tell."""
    import torch

    told = getattr(torch._C, f"_{bench.backend.device_type}_hasPrimaryContext", None)
    if told is None:
        return []
    return [index for index in range(bench.device_count) if told(index)]
