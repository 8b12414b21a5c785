"""ORD: what runs before what, on one stream, and over events between streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_streams.conformance._property import checks
from accel_streams.conformance._results import require
from accel_streams.conformance._ways import ways

if TYPE_CHECKING:
    from accel_streams._backend import Stream
    from accel_streams.conformance._bench import Bench

_WAITED = "work behind a wait"


@checks("ORD-01", "fifo")
def fifo(bench: Bench) -> None:
    """The work of one stream is done in the order in which it was submitted."""
    (a,) = bench.streams(1)
    counted, seen = bench.cell(), [bench.cell() for _ in range(8)]
    with bench.gate_if_any(a) as gate:
        for number, cell in enumerate(seen):
            bench.write(a, counted, number + 1.0)
            bench.copy(a, counted, cell)
        if gate is not None:
            bench.stays_pending(bench.marker(a), gate, "later work of a held stream")
            gate.release()
        found = [bench.read(a, cell) for cell in seen]
    expected = [number + 1.0 for number in range(len(seen))]
    require(found == expected, f"a stream counted {found}, expected {expected}")


@checks("ORD-02", "independence", gate=True)
def independence(bench: Bench) -> None:
    """Work on one stream completes while another stream is held."""
    a, b = bench.streams(2)
    default = bench.backend.default_stream(bench.device())
    for held, free, what in (
        (a, b, "work on another stream"),
        (a, default, "work on the default stream"),
        (default, a, "work on a stream while the default stream is held"),
    ):
        cell = bench.cell()
        with bench.gate(held) as gate:
            bench.write(free, cell, 1.0)
            bench.completes(bench.marker(free), gate, what, alone=True)
            require(bench.read(free, cell) == 1.0, f"{what} had no effect")


@checks("ORD-03", "record_wait", gate=True)
def record_wait(bench: Bench) -> None:
    """What a stream does after waiting for an event comes after what was put before its record."""
    for how, record, wait in ways(bench):
        a, b = bench.streams(2)
        source, target = bench.cell(), bench.cell()
        with bench.gate(a) as gate:
            bench.write(a, source, 1.0)
            wait(b, record(a))
            bench.copy(b, source, target)
            bench.stays_pending(bench.marker(b), gate, f"{_WAITED} ({how})")
            gate.release()
            _require_seen(bench, b, target, 1.0, how)


@checks("ORD-04", "prefix_wait", gate=True)
def prefix_wait(bench: Bench) -> None:
    """Work put on a stream after an event's record does not delay those who wait for the event."""
    for how, record, wait in ways(bench):
        a, b = bench.streams(2)
        source, target = bench.cell(), bench.cell()
        bench.write(a, source, 1.0)
        event = record(a)
        with bench.gate(a) as gate:
            bench.write(a, source, 2.0)
            wait(b, event)
            bench.copy(b, source, target)
            bench.completes(bench.marker(b), gate, f"{_WAITED} for earlier work only ({how})")
            _require_seen(bench, b, target, 1.0, how)


@checks("ORD-05", "transitive", gate=True)
def transitive(bench: Bench) -> None:
    """Who waits for a stream that has waited for another comes after the other's work, too."""
    for between in (False, True):
        a, b, c = bench.streams(3)
        source, other, target = bench.cell(), bench.cell(), bench.cell()
        with bench.gate(a) as gate:
            bench.write(a, source, 1.0)
            bench.backend.wait(b, bench.marker(a))
            if between:
                bench.write(b, other, 1.0)
            bench.backend.wait(c, bench.marker(b))
            bench.copy(c, source, target)
            how = "over a stream with work" if between else "over a stream that only waits"
            bench.stays_pending(bench.marker(c), gate, f"{_WAITED} {how}")
            gate.release()
            _require_seen(bench, c, target, 1.0, how)


@checks("ORD-06", "fan_in", gate=True)
def fan_in(bench: Bench) -> None:
    """A stream that waits for two events starts when both are complete, in whichever order."""
    for first in (0, 1):
        producers = bench.streams(2)
        (b,) = bench.streams(1)
        sources = [bench.cell(), bench.cell()]
        targets = [bench.cell(), bench.cell()]
        parts = [1.0, 1.0]
        parts[first] = 0.3
        with (
            bench.gate(producers[0], part=parts[0]) as left,
            bench.gate(producers[1], part=parts[1]) as right,
        ):
            opened, closed = (left, right) if first == 0 else (right, left)
            events = []
            for producer, source in zip(producers, sources, strict=True):
                bench.write(producer, source, 1.0)
                events.append(bench.marker(producer))
            for event in events:
                bench.backend.wait(b, event)
            for source, target in zip(sources, targets, strict=True):
                bench.copy(b, source, target)
            joined = bench.marker(b)
            bench.stays_pending(joined, closed, f"{_WAITED} for two events")
            opened.release()
            bench.completes(events[first], closed, "a stream whose gate has opened")
            bench.stays_pending(joined, closed, f"{_WAITED} for two events, one of them complete")
            closed.release()
            for target in targets:
                _require_seen(bench, b, target, 1.0, "two waits")


@checks("ORD-07", "fan_out", gate=True)
def fan_out(bench: Bench) -> None:
    """Any number of streams may wait for one event, and it is still good afterwards."""
    a, *others = bench.streams(5)
    late = others.pop()
    source, targets = bench.cell(), [bench.cell() for _ in range(4)]
    with bench.gate(a) as gate:
        bench.write(a, source, 1.0)
        event = bench.marker(a)
        for stream, target in zip(others, targets[1:], strict=True):
            bench.backend.wait(stream, event)
            bench.copy(stream, source, target)
        for number, stream in enumerate(others, 1):
            what = f"{_WAITED}, of stream {number} of {len(others)} that wait for one event"
            bench.stays_pending(bench.marker(stream), gate, what)
        bench.stays_pending(event, gate, "an event that streams wait for")
        gate.release()
        for stream, target in zip(others, targets[1:], strict=True):
            _require_seen(bench, stream, target, 1.0, "one event, several streams")
    bench.completes(event, None, "an event that streams have waited for")
    bench.backend.wait(late, event)
    bench.copy(late, source, targets[0])
    bench.completes(bench.marker(late), None, f"{_WAITED} for an event that is complete")
    _require_seen(bench, late, targets[0], 1.0, "an event that is complete")


@checks("ORD-08", "rerecord_newest", gate=True)
def rerecord_newest(bench: Bench) -> None:
    """After an event is recorded again, new waits and queries mean the new record."""
    for how, record, wait in ways(bench):
        a, b = bench.streams(2)
        source, target = bench.cell(), bench.cell()
        event = record(a)
        bench.completes(event, None, "a record on an idle stream")
        with bench.gate(a) as gate:
            bench.write(a, source, 1.0)
            record(a, event)
            wait(b, event)
            bench.copy(b, source, target)
            bench.stays_pending(event, gate, f"an event that was recorded again ({how})")
            bench.stays_pending(bench.marker(b), gate, f"{_WAITED} for the second record ({how})")
            gate.release()
            _require_seen(bench, b, target, 1.0, f"{how}, recorded again")


@checks("ORD-09", "rerecord_keeps", gate=True)
def rerecord_keeps(bench: Bench) -> None:
    """A wait keeps the record for which it was issued when the event is recorded again."""
    a, b, c = bench.streams(3)
    source, target = bench.cell(), bench.cell()
    with bench.gate(a) as gate:
        bench.write(a, source, 1.0)
        event = bench.marker(a)
        bench.backend.wait(b, event)
        bench.backend.record(event, c)
        bench.copy(b, source, target)
        bench.stays_pending(bench.marker(b), gate, f"{_WAITED} whose event was recorded elsewhere")
        gate.release()
        _require_seen(bench, b, target, 1.0, "recorded again after the wait")

    a, b, c = bench.streams(3)
    target = bench.cell()
    event = bench.marker(a)
    # The waiting stream is held, so that it gets to its wait only after the second record.
    with bench.gate(c) as gate, bench.gate(b, part=0.3) as own:
        bench.backend.wait(b, event)
        bench.backend.record(event, c)
        bench.write(b, target, 1.0)
        done = bench.marker(b)
        own.release()
        bench.completes(done, gate, f"{_WAITED} for the first record of an event")
        require(bench.read(b, target) == 1.0, "work behind a wait had no effect")


@checks("ORD-10", "rerecord_moves", gate=True)
def rerecord_moves(bench: Bench) -> None:
    """An event that is recorded on a second stream stands for that one's work, and no other's."""
    for held_first in (True, False):
        a, b, c = bench.streams(3)
        source, target = bench.cell(), bench.cell()
        with bench.gate(a if held_first else c) as gate:
            event = bench.marker(a)
            bench.write(c, source, 1.0)
            bench.backend.record(event, c)
            bench.backend.wait(b, event)
            bench.copy(b, source, target)
            done = bench.marker(b)
            if held_first:
                what = f"{_WAITED} for an event that was moved away from the held stream"
                bench.completes(done, gate, what)
            else:
                what = f"{_WAITED} for an event that was moved to the held stream"
                bench.stays_pending(done, gate, what)
                gate.release()
            _require_seen(bench, b, target, 1.0, "recorded on a second stream")


@checks("ORD-11", "wait_unrecorded")
def wait_unrecorded(bench: Bench) -> None:
    """Waiting for an event that was never recorded changes nothing, then or later."""
    for how, record, wait in ways(bench):
        a, b = bench.streams(2)
        cells = [bench.cell(), bench.cell()]
        with bench.gate_if_any(a) as gate:
            event = bench.event()
            call = _calling(wait, b, event)
            bench.returns(call, gate, f"waiting for an event that was never recorded ({how})")
            bench.write(b, cells[0], 1.0)
            what = f"{_WAITED} for an event that was never recorded ({how})"
            bench.completes(bench.marker(b), gate, what)
            record(a, event)
            bench.write(b, cells[1], 1.0)
            bench.completes(bench.marker(b), gate, f"{what}, recorded after the wait")
            found = [bench.read(b, cell) for cell in cells]
            require(found == [1.0, 1.0], "work behind a wait had no effect")


@checks("ORD-12", "self_wait")
def self_wait(bench: Bench) -> None:
    """A stream that waits for itself, by an event or as a stream, goes on."""
    for how, record, wait in ways(bench):
        (a,) = bench.streams(1)
        cell = bench.cell()
        with bench.gate_if_any(a) as gate:
            bench.write(a, cell, 1.0)
            event = record(a)
            bench.returns(_calling(wait, a, event), gate, f"a stream's wait for itself ({how})")
            bench.returns(_calling(a.wait_stream, a), gate, "wait_stream of a stream with itself")
            bench.write(a, cell, 2.0)
            done = bench.marker(a)
            if gate is not None:
                bench.stays_pending(done, gate, "work of a held stream that waits for itself")
                gate.release()
            bench.completes(done, None, f"a stream that waits for itself ({how})")
            require(bench.read(a, cell) == 2.0, "work behind a stream's wait for itself was lost")


@checks("ORD-13", "wait_stream", gate=True)
def wait_stream(bench: Bench) -> None:
    """``b.wait_stream(a)`` makes b wait for what is on a at the call, and for nothing later."""
    a, b = bench.streams(2)
    source, target = bench.cell(), bench.cell()
    with bench.gate(a) as gate:
        bench.write(a, source, 1.0)
        b.wait_stream(a)
        bench.copy(b, source, target)
        bench.stays_pending(bench.marker(b), gate, f"{_WAITED} for a stream")
        gate.release()
        _require_seen(bench, b, target, 1.0, "wait_stream")

    a, b = bench.streams(2)
    source, target = bench.cell(), bench.cell()
    bench.write(a, source, 1.0)
    b.wait_stream(a)
    with bench.gate(a) as gate:
        bench.write(a, source, 2.0)
        bench.copy(b, source, target)
        bench.completes(bench.marker(b), gate, f"{_WAITED} for what a stream did earlier")
        _require_seen(bench, b, target, 1.0, "wait_stream")


@checks("ORD-14", "wait_async", gate=True)
def wait_async(bench: Bench) -> None:
    """Recording and waiting return to the host while the stream's work is pending."""
    a, b = bench.streams(2)
    cell = bench.cell()
    for how, record, wait in ways(bench):
        with bench.gate(a) as gate:
            bench.write(a, cell, 1.0)
            bench.returns(_calling(record, a), gate, f"recording an event ({how})")
            bench.returns(_calling(wait, b, record(a)), gate, f"waiting for an event ({how})")
    with bench.gate(a) as gate:
        bench.returns(_calling(b.wait_stream, a), gate, "wait_stream")


@checks("ORD-15", "cross_device", gate=True, devices=2)
def cross_device(bench: Bench) -> None:
    """A stream of one device can wait for an event of another one, as for one of its own."""
    (a,), (b,) = bench.streams(1, 0), bench.streams(1, 1)
    cell, other = bench.cell(0.0, 0), bench.cell(0.0, 1)
    with bench.gate(a) as gate:
        bench.write(a, cell, 1.0)
        event = bench.event()
        bench.returns(_calling(bench.backend.record, event, a), gate, "recording an event")
        call = _calling(bench.backend.wait, b, event)
        bench.returns(call, gate, "waiting for an event of another device")
        bench.write(b, other, 1.0)
        bench.stays_pending(bench.marker(b), gate, f"{_WAITED} for an event of another device")
        gate.release()
        require(bench.read(b, other) == 1.0, "work behind a wait had no effect")
        bench.completes(event, None, "the event of the other device")

    bench.write(a, cell, 2.0)
    event = bench.marker(a)
    with bench.gate(a) as gate:
        bench.backend.wait(b, event)
        bench.write(b, other, 2.0)
        what = f"{_WAITED} for earlier work of another device"
        bench.completes(bench.marker(b), gate, what)
        require(bench.read(b, other) == 2.0, "work behind a wait had no effect")


@checks("ORD-16", "wrong_device", devices=2)
def wrong_device(bench: Bench) -> None:
    """Recording an event of one device on another's stream raises, and leaves it as it was."""
    (a,), (b,) = bench.streams(1, 0), bench.streams(1, 1)
    cell = bench.cell()
    with bench.gate_if_any(a) as gate:
        bench.write(a, cell, 1.0)
        event = bench.marker(a)
        try:
            bench.backend.record(event, b)
        except (RuntimeError, ValueError, TypeError):
            pass
        else:
            require(False, "an event of device 0 was recorded on a stream of device 1")
        if gate is not None:
            bench.stays_pending(event, gate, "an event that could not be recorded elsewhere")
            gate.release()
        bench.completes(event, None, "an event that could not be recorded elsewhere")
        require(bench.read(a, cell) == 1.0, "work before an event had no effect")


@checks("ORD-17", "event_dropped", gate=True)
def event_dropped(bench: Bench) -> None:
    """A wait holds although the last reference to its event is dropped."""
    a, b, c = bench.streams(3)
    source, target = bench.cell(), bench.cell()
    with bench.gate(a) as gate:
        bench.write(a, source, 1.0)
        event = bench.marker(a)
        bench.backend.wait(b, event)
        del event
        # What the event was made of may serve these.
        others = [bench.marker(c) for _ in range(16)]
        bench.copy(b, source, target)
        bench.stays_pending(bench.marker(b), gate, f"{_WAITED} whose event was dropped")
        gate.release()
        _require_seen(bench, b, target, 1.0, "event dropped")
    for other in others:
        bench.completes(other, None, "a record on an idle stream")


@checks("ORD-18", "stream_dropped", gate=True)
def stream_dropped(bench: Bench) -> None:
    """Dropping the last reference to a stream neither cancels its work nor waits for it."""
    held = bench.streams(1)
    cell = bench.cell()
    with bench.gate(held[0], forget=True) as gate:
        bench.write(held[0], cell, 1.0)
        event = bench.marker(held[0])
        bench.returns(held.clear, gate, "dropping a stream with pending work")
        bench.stays_pending(event, gate, "the work of a held stream that was dropped")
        gate.release()
        bench.completes(event, None, "the work of a stream that was dropped")
    (other,) = bench.streams(1)
    require(bench.read(other, cell) == 1.0, "the work of a stream that was dropped was lost")


def _calling(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: function(*arguments)


def _require_seen(bench: Bench, stream: Stream, cell: Any, value: float, how: str) -> None:
    found = bench.read(stream, cell)
    require(found == value, f"work behind a wait found {found}, expected {value} ({how})")
