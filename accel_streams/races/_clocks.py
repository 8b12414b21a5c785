"""Vector clocks: which work of every stream is known to have finished.

A clock is a list of epochs, one per stream, in order of the streams' first use. A stream's own
epoch grows when something else may learn of its progress: after an event is recorded on it and
after the host has waited for it. An access at epoch ``e`` of stream ``t`` happens before the next
operation of stream ``s`` exactly when ``s.vector[t] >= e``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from accel_streams.races._records import Record, StreamKey

__all__ = ["Clocks", "HostClock", "StreamClock"]

_PRUNE_AT: Final = 512


class HostClock:
    """What a host thread knows to have finished; everything it submits later comes after that."""

    __slots__ = ("vector", "version")

    def __init__(self) -> None:
        self.vector: list[int] = []
        # Grows with every change, so that a stream joins the clock only when there is news.
        self.version = 0

    def join(self, vector: Iterable[int]) -> None:
        """Learn that everything in ``vector`` has finished."""
        own = self.vector
        changed = False
        for index, epoch in enumerate(vector):
            if epoch > own[index]:
                own[index] = epoch
                changed = True
        if changed:
            self.version += 1


class StreamClock:
    """What happens before the next operation of one stream."""

    __slots__ = ("host_version", "index", "issuer", "key", "last_waits", "vector")

    def __init__(self, key: StreamKey, index: int) -> None:
        self.key = key
        self.index = index
        self.vector: list[int] = [0] * index + [1]
        self.host_version = 0
        # The stream waited for last. For a communicator's stream, the one that issued the
        # collective.
        self.issuer = -1
        # By stream waited for: the newest recording waited for. For wording only.
        self.last_waits: dict[int, Record] = {}

    def join(self, vector: Iterable[int]) -> None:
        """Put everything in ``vector`` before the stream's next operation."""
        own = self.vector
        for index, epoch in enumerate(vector):
            if epoch > own[index]:
                own[index] = epoch


class Clocks:
    """The clocks of all streams and of the host.

    One host clock serves all threads: autograd hands work from the thread that calls `backward` to
    its device thread and back, and a trace does not say where. Once it does, `host` becomes one
    clock a thread.
    """

    def __init__(self) -> None:
        self.streams: dict[StreamKey, StreamClock] = {}
        self.by_index: list[StreamClock] = []
        self.host = HostClock()
        # By the seq of a recording: the stream's clock there, and the record.
        self._recordings: dict[int, tuple[tuple[int, ...], Record]] = {}
        self._prune_at = _PRUNE_AT

    def stream(self, key: StreamKey) -> StreamClock:
        """Return the clock of the stream ``key``, a new one on its first use."""
        state = self.streams.get(key)
        if state is None:
            state = StreamClock(key, len(self.by_index))
            for other in self.by_index:
                other.vector.append(0)
            self.host.vector.append(0)
            self.by_index.append(state)
            self.streams[key] = state
        return state

    def submitting(self, key: StreamKey, thread: int) -> StreamClock:
        """Return the clock of ``key`` for an operation that ``thread`` submits now."""
        state = self.streams.get(key) or self.stream(key)
        host = self.host
        if state.host_version != host.version:
            state.join(host.vector)
            state.host_version = host.version
        return state

    def record(self, key: StreamKey, thread: int, record: Record) -> None:
        """Remember the stream's clock at the recording of an event."""
        state = self.submitting(key, thread)
        self._recordings[record[1]] = (tuple(state.vector), record)
        state.vector[state.index] += 1
        if len(self._recordings) > self._prune_at:
            self._prune()

    def wait(self, key: StreamKey, thread: int, record_seq: int) -> None:
        """Put what a recording covers before the stream's next operation.

        A recording that is not known was made before the trace began, or is covered by a host
        synchronisation since: it then orders nothing that is not ordered already.
        """
        state = self.submitting(key, thread)
        recording = self._recordings.get(record_seq)
        if recording is None:
            return
        vector, record = recording
        state.join(vector)
        index = self.streams[record[3]].index
        state.issuer = index
        state.last_waits[index] = record

    def synchronize_stream(self, key: StreamKey, thread: int) -> None:
        """The host waited for all work of a stream."""
        state = self.submitting(key, thread)
        self.host.join(state.vector)
        state.vector[state.index] += 1

    def synchronize_recording(self, thread: int, record_seq: int) -> None:
        """The host saw a recording complete."""
        recording = self._recordings.get(record_seq)
        if recording is not None:
            self.host.join(recording[0])

    def synchronize_device(self, device: int, thread: int) -> None:
        """The host waited for all work of one device; other devices' work stays unknown."""
        for state in self.by_index:
            if state.key[0] == device:
                self.synchronize_stream(state.key, thread)

    def _prune(self) -> None:
        # A recording that the host has seen complete orders nothing any more.
        known = self.host.vector
        self._recordings = {
            seq: recording
            for seq, recording in self._recordings.items()
            if any(epoch > seen for epoch, seen in zip(recording[0], known, strict=False))
        }
        self._prune_at = max(_PRUNE_AT, 2 * len(self._recordings))
