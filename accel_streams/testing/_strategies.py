"""Random programs, for hypothesis."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from accel_streams._errors import AccelStreamsError
from accel_streams.testing import _program as p
from accel_streams.testing._ordered import ordered as with_waits

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["operations", "programs"]


def _strategies() -> Any:
    try:
        from hypothesis import strategies
    except ModuleNotFoundError as exc:
        raise AccelStreamsError(
            "The strategies of accel_streams.testing need hypothesis, which is not installed: "
            "pip install 'accel-streams[testing]'."
        ) from exc
    return strategies


def operations(
    *,
    streams: int = 3,
    buffers: int = 2,
    size: int = 4,
    events: int = 2,
    threads: int = 1,
    memory: bool = True,
    collectives: bool = True,
    host_waits: bool = True,
) -> SearchStrategy[p.Operation]:
    """Draw one operation; see `programs` for the arguments."""
    st = _strategies()
    given = {"thread": st.integers(0, threads - 1)} if threads > 1 else {}
    stream, event = st.integers(0, streams - 1), st.integers(0, events - 1)
    buffer, value = st.integers(0, buffers - 1), st.integers(2, 9)
    # Bounds are drawn in whole, so that they shrink towards the whole buffer.
    bounds = st.sampled_from(
        sorted(
            ((lo, hi) for lo in range(size) for hi in range(lo + 1, size + 1)),
            key=lambda part: (part[0] - part[1], part),
        )
    )

    # Together, because hypothesis drops at most five choices at once: those of one operation, with
    # the choice that there is one more.
    places = st.sampled_from([(s, b) for s in range(streams) for b in range(buffers)])

    def part(kind: Any, last: Any) -> Any:
        return st.builds(
            lambda place, bound, v, **more: kind(*place, *bound, v, **more),
            places,
            bounds,
            last,
            **given,
        )

    choices = [
        part(p.Fill, value),
        part(p.Add, value),
        part(p.Multiply, value),
        st.builds(p.Record, stream, event, **given),
        st.builds(p.Wait, stream, event, **given),
    ]
    if buffers > 1:
        ways = st.sampled_from(
            [
                (s, *pair)
                for s in range(streams)
                for pair in itertools.permutations(range(buffers), 2)
            ]
        )
        choices.append(
            st.builds(
                lambda way, bound, **more: p.Copy(
                    way[0], way[1], bound[0], bound[1], way[2], **more
                ),
                ways,
                bounds,
                **given,
            )
        )
    if collectives:
        work = st.integers(0, 1)
        choices += [part(p.Collective, work), st.builds(p.Finish, stream, work, **given)]
    if memory:
        choices += [
            st.builds(p.Allocate, stream, buffer, **given),
            st.builds(p.Free, buffer, **given),
            st.builds(p.RecordStream, buffer, stream, **given),
        ]
    if host_waits:
        choices += [
            st.builds(p.ReadBack, stream, buffer, **given),
            st.builds(p.SyncStream, stream, **given),
            st.builds(p.SyncEvent, event, **given),
            st.builds(p.SyncDevice, **given),
        ]
    drawn: SearchStrategy[p.Operation] = st.one_of(choices)
    return drawn


def programs(
    *,
    max_operations: int = 12,
    streams: int = 3,
    buffers: int = 2,
    size: int = 4,
    events: int = 2,
    threads: int = 1,
    memory: bool = True,
    collectives: bool = True,
    host_waits: bool = True,
    ordered: bool = False,
) -> SearchStrategy[p.Program]:
    """Draw programs; they shrink towards few operations on stream 0 and whole buffers.

    Args:
        max_operations: How many operations are drawn. `ordered` adds waits to them.
        streams: How many streams, the default one among them.
        buffers: How many buffers, of `size` elements each.
        size: Elements of a buffer. Operations touch parts of it.
        events: How many events; they are recorded again and again.
        threads: How many host threads submit, in turns.
        memory: With frees, allocations and record_stream.
        collectives: With collectives, on a communicator's stream.
        host_waits: With operations that make the host wait.
        ordered: Add all waits that are needed, so that every schedule ends alike.

    Raises:
        AccelStreamsError: hypothesis is not installed.

    """
    st = _strategies()
    drawn = st.lists(
        operations(
            streams=streams,
            buffers=buffers,
            size=size,
            events=events,
            threads=threads,
            memory=memory,
            collectives=collectives,
            host_waits=host_waits,
        ),
        max_size=max_operations,
    ).map(lambda items: p.Program(tuple(items), streams, buffers, size))
    chosen: SearchStrategy[p.Program] = drawn.map(with_waits) if ordered else drawn
    return chosen
