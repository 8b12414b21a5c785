"""The ways in which people record events and have streams wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_streams._backend import Event, Stream
    from accel_streams.conformance._bench import Bench

__all__ = ["Record", "Wait", "ways"]

Record = Callable[..., Any]
"""Record an event on the stream given, a new one or the one given next, and return it."""

Wait = Callable[[Any, Any], object]
"""Make the stream given wait for the event given."""


def ways(bench: Bench) -> list[tuple[str, Record, Wait]]:
    """Return the ways of recording and waiting that people use, with what to call them."""
    backend = bench.backend

    def by_backend(stream: Stream, event: Event = None) -> Event:
        event = bench.event() if event is None else event
        backend.record(event, stream)
        return event

    def by_event(stream: Stream, event: Event = None) -> Event:
        event = bench.event() if event is None else event
        event.record(stream)
        return event

    def by_stream(stream: Stream, event: Event = None) -> Event:
        return stream.record_event() if event is None else stream.record_event(event)

    return [
        ("the backend's record and wait", by_backend, backend.wait),
        ("event.record and stream.wait_event", by_event, _stream_waits),
        ("stream.record_event and event.wait", by_stream, _event_waits),
    ]


def _stream_waits(stream: Stream, event: Event) -> None:
    stream.wait_event(event)


def _event_waits(stream: Stream, event: Event) -> None:
    event.wait(stream)
