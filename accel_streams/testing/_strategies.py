"""Random programs, for hypothesis."""

from __future__ import annotations

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

    def part(kind: Any) -> Any:
        return st.builds(
            lambda s, b, bound, v, **more: kind(s, b, *bound, v, **more),
            stream,
            buffer,
            bounds,
            value,
            **given,
        )

    choices = [
        part(p.Fill),
        part(p.Add),
        part(p.Multiply),
        st.builds(p.Record, stream, event, **given),
        st.builds(p.Wait, stream, event, **given),
    ]
    if buffers > 1:
        pairs = st.permutations(range(buffers)).map(lambda order: order[:2])
        choices.append(
            st.builds(
                lambda s, pair, bound, **more: p.Copy(
                    s, pair[0], bound[0], bound[1], pair[1], **more
                ),
                stream,
                pairs,
                bounds,
                **given,
            )
        )
    if collectives:
        work = st.integers(0, 1)
        choices.append(
            st.builds(
                lambda s, b, bound, w, **more: p.Collective(s, b, bound[0], bound[1], w, **more),
                stream,
                buffer,
                bounds,
                work,
                **given,
            )
        )
        choices.append(st.builds(p.Finish, stream, work, **given))
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
