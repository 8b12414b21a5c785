"""SYN: what the host waits for when it waits for a stream or a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from accel_streams.conformance._caller import Caller
from accel_streams.conformance._property import checks
from accel_streams.conformance._results import require

if TYPE_CHECKING:
    from accel_streams.conformance._bench import Bench


@checks("SYN-01", "stream_scope", gate=True)
def stream_scope(bench: Bench) -> None:
    """``stream.synchronize()`` waits for that stream's work, and for no other's."""
    a, b = bench.streams(2)
    cell = bench.cell()
    what = "stream.synchronize()"
    with bench.gate(b) as other, bench.gate(a, part=0.3) as own:
        bench.write(a, cell, 1.0)
        event = bench.marker(a)
        call = bench.blocks(a.synchronize, own, what)
        own.release()
        bench.returns(call, other, f"{what}, with another stream held,")
        require(bench.backend.query(event), f"{what} returned before the stream's work was done")
        require(bench.read(a, cell) == 1.0, "the work of a stream was lost")


@checks("SYN-02", "stream_query", gate=True)
def stream_query(bench: Bench) -> None:
    """``stream.query()`` is True exactly when the stream's work is done, and changes nothing."""
    a, b = bench.streams(2)
    cell, other = bench.cell(), bench.cell()
    with bench.on(b):
        before = bench.backend.stream_id(bench.backend.current_stream())
        with bench.gate(a) as gate:
            bench.write(a, cell, 1.0)
            bench.write(b, other, 1.0)
            bench.stays_pending(a.query, gate, "a held stream, by its query(),")
            bench.completes(b.query, gate, "a free stream, by its query(),")
            require(bench.read(b, other) == 1.0, "the work of a stream was lost")
            gate.release()
            bench.completes(a.query, None, "a stream whose gate has opened, by its query(),")
            after = bench.backend.stream_id(bench.backend.current_stream())
            require(after == before, "query() has changed which stream is current")
        require(bench.read(a, cell) == 1.0, "query() was True before the stream's work was done")


@checks("SYN-03", "device_scope", gate=True)
def device_scope(bench: Bench) -> None:
    """Waiting for a device waits for all of its streams, also for other threads'."""
    for what, synchronize in _ways(bench):
        a, b = bench.streams(2)
        default = bench.backend.default_stream(bench.device())
        cells = [bench.cell() for _ in range(3)]
        with bench.gate(b) as gate:
            # The held work is another thread's than that which waits.
            elsewhere = Caller(partial(bench.write, b, cells[0], 1.0))
            bench.returns(elsewhere, gate, "work put on a held stream")
            bench.write(a, cells[1], 1.0)
            bench.write(default, cells[2], 1.0)
            events = [bench.marker(stream) for stream in (a, b, default)]
            call = bench.blocks(synchronize, gate, what)
            gate.release()
            bench.returns(call, None, what)
            done = all(bench.backend.query(event) for event in events)
            require(done, f"{what} returned before the work of all streams was done")
            found = [bench.read(a, cell) for cell in cells]
            require(found == [1.0] * 3, f"after {what} cells hold {found}, expected 1")


@checks("SYN-04", "other_device", gate=True, devices=2)
def other_device(bench: Bench) -> None:
    """Waiting for one device does not wait for another, and leaves the current device alone."""
    (a,), (b,) = bench.streams(1, 0), bench.streams(1, 1)
    cell, other = bench.cell(0.0, 0), bench.cell(0.0, 1)
    currents: list[int] = []

    def wait() -> None:
        with bench.on_device(1):
            bench.module.synchronize(0)
            currents.append(bench.module.current_device())

    with bench.gate(b) as gate:
        bench.write(b, other, 1.0)
        bench.write(a, cell, 1.0)
        event = bench.marker(a)
        bench.returns(wait, gate, "synchronize(0), with a stream of device 1 held,")
        require(bench.backend.query(event), "synchronize(0) returned before the work was done")
        require(currents == [1], f"synchronize(0) made device {currents} current, not 1")


def _ways(bench: Bench) -> list[tuple[str, Callable[[], object]]]:
    return [
        ("the backend's synchronize()", bench.backend.synchronize),
        ("synchronize(0)", lambda: bench.module.synchronize(0)),
    ]
