"""Order every conflicting access to one reusable buffer, by events and without waiting on the host.

A gradient bucket is written by several producers, each on its own stream, read by one reduction or
more on another stream, and then written again. The tracker is the readers-writer protocol of such a
buffer on the device: who fills it waits for those who read its former contents, who reads it waits
for all who filled it.

Two producers of one fill write different parts of the buffer, so nothing orders them to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from accel_streams._backend import Backend, Event, Stream, StreamId

__all__ = ["Edge", "EventPool", "ProducerTracker"]

Edge = Literal["allocation->write", "allocation->read", "release->write", "producer->read"]
"""The kinds of order the tracker makes: what has to come first, and what waits for it."""


class EventPool:
    """Events that are used again instead of being made again, for each device.

    Recording an event again does not touch the waits already issued on it, so an event may come
    back as soon as no *later* wait will need what it stands for.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._free: dict[tuple[str, int], list[Event]] = {}

    def get(self, stream_id: StreamId) -> Event:
        """Return an event that can be recorded on the stream's device."""
        free = self._free.get(stream_id[:2])
        return free.pop() if free else self._backend.new_event()

    def put(self, stream_id: StreamId, event: Event) -> None:
        """Take back an event that was recorded on the stream's device."""
        self._free.setdefault(stream_id[:2], []).append(event)


@dataclass(slots=True)
class _Mark:
    """The latest access of one kind by one stream; no event as long as nobody can need it."""

    stream: Stream
    event: Event | None = None


_Marks = dict[StreamId, _Mark]


class ProducerTracker:
    """Order the accesses to one buffer that is filled and read again and again.

    Call ``allocated`` when the buffer's memory is (newly) allocated, and put each access between
    ``before_write`` and ``after_write``, or ``before_read`` and ``after_read``, naming the stream
    it is submitted to; its ``stream_id``, if the caller knows it, saves asking the backend.
    Accesses of one buffer must be submitted by one host thread at a time.

    As long as one stream alone uses the buffer, no event is recorded and no wait issued. From the
    second stream on, an event is recorded directly after each access, so that nobody waits for
    later, unrelated work of the same stream. Only the first time does the second stream wait for
    all that the first one has been given so far.

    The tracker holds streams and events and never a tensor, so it keeps no memory alive.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        pool: EventPool | None = None,
        writes_go_on: bool = False,
        skip_edges: frozenset[Edge] = frozenset(),
    ) -> None:
        """Track a buffer on a device of ``backend``.

        ``pool`` may be shared with other trackers of the same backend. ``writes_go_on``: whoever
        wrote may use the contents after ``after_write``, on the same stream and without telling,
        until a reader comes; the reader then waits for all that the stream has been given.
        ``skip_edges`` leaves out the waits of these kinds: it is there for tests, which prove each
        kind to be needed.
        """
        self._backend = backend
        self._writes_go_on = writes_go_on
        self._pool = pool or EventPool(backend)
        self._skip_edges = skip_edges
        # True once a second stream has been seen: from then on accesses are followed by an event.
        self._shared = False
        self._first: StreamId | None = None
        # Every stream that has used the current memory.
        self._users: dict[StreamId, Stream] = {}
        # Where the memory comes from, until its first fill has been read.
        self._allocation: _Marks = {}
        # The last readers of the former contents: who writes waits for them.
        self._released: _Marks = {}
        # The streams that have already waited, and so need not wait again in this fill.
        self._admitted: set[StreamId] = set()
        # The current contents: who wrote them, and who has read them.
        self._producers: _Marks = {}
        self._readers: _Marks = {}

    def allocated(self, stream: Stream) -> None:
        """Note that ``stream`` has allocated new memory for the buffer.

        A caching allocator may hand out memory whose last use is still queued on ``stream``, so the
        first accesses on other streams wait for what ``stream`` has been given until now.
        """
        for marks in (self._allocation, self._released, self._producers, self._readers):
            self._forget(marks)
        self._admitted.clear()
        self._users.clear()
        self._note(self._allocation, stream, self._identify(stream))

    def before_write(self, stream: Stream, stream_id: StreamId | None = None) -> None:
        """Make ``stream`` wait until the buffer may be written."""
        stream_id = self._identify(stream, stream_id)
        if self._readers:
            self._begin_fill()
        if stream_id in self._admitted:
            return
        self._wait_for(stream, stream_id, self._allocation, "allocation->write")
        self._wait_for(stream, stream_id, self._released, "release->write")
        self._admitted.add(stream_id)

    def after_write(self, stream: Stream, stream_id: StreamId | None = None) -> None:
        """Note that a write has been submitted to ``stream``, which is now a producer."""
        stream_id = self._identify(stream, stream_id)
        if self._readers:
            # Read between before_write and here, necessarily on this same stream, which alone
            # has been let in: the write begins a new fill.
            self._begin_fill()
        self._users.setdefault(stream_id, stream)
        if self._writes_go_on:
            # Without an event until a reader asks for one.
            self._producers.setdefault(stream_id, _Mark(stream))
        else:
            self._note(self._producers, stream, stream_id)

    def before_read(self, stream: Stream, stream_id: StreamId | None = None) -> None:
        """Make ``stream`` wait for every producer of the buffer's contents."""
        stream_id = self._identify(stream, stream_id)
        if self._producers:
            self._wait_for(stream, stream_id, self._producers, "producer->read")
        else:
            # Nothing has been written since the allocation or the last read. Those who read then
            # had waited for the producers of what this stream is about to read.
            self._wait_for(stream, stream_id, self._allocation, "allocation->read")
            self._wait_for(stream, stream_id, self._released, "producer->read")

    def after_read(self, stream: Stream, stream_id: StreamId | None = None) -> None:
        """Note that a read has been submitted to ``stream``: the next fill waits for it."""
        stream_id = self._identify(stream, stream_id)
        self._users.setdefault(stream_id, stream)
        self._note(self._readers, stream, stream_id)

    def users(self) -> tuple[Stream, ...]:
        """Return the streams that have used the memory since it was allocated, in order.

        Freeing counts as a read by each of them: call ``Backend.keep_alive`` for each before that,
        and before ``allocated`` is called for the memory that takes its place.
        """
        return tuple(self._users.values())

    def _begin_fill(self) -> None:
        """Turn the readers of the contents into those whom the next producers wait for.

        All that came before can be forgotten, since each reader has waited for it: for the
        producers, or where there were none, for the allocation and the readers before.
        """
        for marks in (self._allocation, self._released, self._producers):
            self._forget(marks)
        self._released.update(self._readers)
        self._readers.clear()
        self._admitted.clear()

    def _identify(self, stream: Stream, stream_id: StreamId | None = None) -> StreamId:
        if stream_id is None:
            stream_id = self._backend.stream_id(stream)
        if self._first is None:
            self._first = stream_id
        elif stream_id != self._first:
            self._shared = True
        return stream_id

    def _note(self, marks: _Marks, stream: Stream, stream_id: StreamId) -> None:
        """Make the latest access of ``stream`` the one that ``marks`` stands for."""
        mark = marks.setdefault(stream_id, _Mark(stream))
        if self._shared:
            self._record(mark, stream_id)

    def _record(self, mark: _Mark, stream_id: StreamId) -> Event:
        if mark.event is None:
            mark.event = self._pool.get(stream_id)
        self._backend.record(mark.event, mark.stream)
        return mark.event

    def _forget(self, marks: _Marks) -> None:
        for stream_id, mark in marks.items():
            if mark.event is not None:
                self._pool.put(stream_id, mark.event)
        marks.clear()

    def _wait_for(self, stream: Stream, stream_id: StreamId, marks: _Marks, edge: Edge) -> None:
        for other_id, mark in marks.items():
            if other_id == stream_id:
                continue  # A stream runs in order: it needs no event to follow itself.
            event = mark.event
            if event is None:
                event = self._record(mark, other_id)
            self._wait(stream, event, edge)

    def _wait(self, stream: Stream, event: Event, edge: Edge) -> None:
        """Issue one wait. The only place that does, so that a test can leave out a kind."""
        if edge not in self._skip_edges:
            self._backend.wait(stream, event)
