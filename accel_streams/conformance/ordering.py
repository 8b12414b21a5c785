"""ORD: what runs before what, on one stream, and over events between streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_streams.conformance._property import checks
from accel_streams.conformance._results import require

if TYPE_CHECKING:
    from accel_streams.conformance._bench import Bench


@checks("ORD-02", "independence", gate=True)
def independence(bench: Bench) -> None:
    """Work on one stream completes while another stream is held."""
    a, b = bench.streams(2)
    cell = bench.cell()
    with bench.gate(a) as gate:
        bench.write(b, cell, 1.0)
        bench.completes(bench.marker(b), gate, "work on another stream")
        require(bench.read(b, cell) == 1.0, "the work of a free stream had no effect")


@checks("ORD-03", "record_wait", gate=True)
def record_wait(bench: Bench) -> None:
    """What a stream does after waiting for an event sees what was done before its record."""
    a, b = bench.streams(2)
    source, target = bench.cell(), bench.cell()
    with bench.gate(a) as gate:
        bench.write(a, source, 1.0)
        event = bench.marker(a)
        bench.backend.wait(b, event)
        bench.copy(b, source, target)
        bench.stays_pending(bench.marker(b), gate, "a stream that waits for an event")
        gate.release()
        require(bench.read(b, target) == 1.0, "a stream went on before the event it waited for")
