"""Vector clocks: which work of every stream is known to have finished.

A clock is a list of epochs, one per stream, in order of the streams' first use. A stream's own
epoch grows when something else may learn of its progress: after an event is recorded on it and
after the host has waited for it. An access at epoch ``e`` of stream ``t`` happens before the next
operation of stream ``s`` exactly when ``s.vector[t] >= e``.

Each host thread has a clock of its own: what it has waited for comes before what *it* submits
later. It learns what other threads know by the hand-overs of the trace, and by what it can have
only from them: an allocation, or a recording of an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from accel_streams.races._records import Record, StreamKey

__all__ = ["Clocks", "HostClock", "Knowledge", "StreamClock", "joined"]

_PRUNE_AT: Final = 512


def joined(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the later epoch for each stream; a clock that is too short knows nothing beyond."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    both = [max(a, b) for a, b in zip(longer, shorter, strict=False)]
    both += longer[len(shorter) :]
    return both


class Knowledge(NamedTuple):
    """What a host thread knew at some moment, and the version of its clock then."""

    thread: int
    version: int
    vector: tuple[int, ...]


class HostClock:
    """What a host thread knows to have finished; everything it submits later comes after that."""

    __slots__ = ("behind", "changes", "checked", "taken", "thread", "vector", "version")

    def __init__(self, thread: int, vector: tuple[int, ...], changes: list[int]) -> None:
        self.thread = thread
        # Whether another thread knows more, as of so many changes of all threads' clocks.
        self.behind = False
        self.checked = -1
        self.changes = changes
        # Replaced by a new one when it changes, so that others may keep it, and tell by its
        # identity whether there is news.
        self.vector = vector
        self.version = 1 if vector else 0
        # By thread: the version of its clock that is part of this one.
        self.taken: dict[int, int] = {}

    def now(self) -> Knowledge:
        """Return what the thread knows."""
        return Knowledge(self.thread, self.version, self.vector)

    def join(self, vector: Sequence[int]) -> None:
        """Learn that everything in ``vector`` has finished."""
        both = tuple(joined(self.vector, vector))
        if both != self.vector:
            self.vector = both
            self.version += 1
            self.changes[0] += 1

    def take(self, other: Knowledge) -> None:
        """Learn what another thread knew."""
        thread, version, vector = other
        if thread != self.thread and self.taken.get(thread, 0) < version:
            self.taken[thread] = version
            self.checked = -1
            self.join(vector)


class StreamClock:
    """What happens before the next operation of one stream."""

    __slots__ = ("index", "issuer", "key", "last_waits", "told", "vector")

    def __init__(self, key: StreamKey, index: int) -> None:
        self.key = key
        self.index = index
        self.vector: list[int] = [0] * index + [1]
        # The host's vector that was joined last.
        self.told: tuple[int, ...] = ()
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


class _Recording(NamedTuple):
    """The stream's clock where an event was recorded, the record, and what its thread knew."""

    vector: tuple[int, ...]
    record: Record
    host: Knowledge


class _Release(NamedTuple):
    """What a thread handed over, and which versions of other threads' clocks are part of it."""

    host: Knowledge
    taken: dict[int, int]


class Clocks:
    """The clocks of all streams and of all host threads."""

    def __init__(self) -> None:
        self.streams: dict[StreamKey, StreamClock] = {}
        self.by_index: list[StreamClock] = []
        self.hosts: dict[int, HostClock] = {}
        # One number, how often the clock of some thread changed, in a place that all share.
        self.changes = [0]
        # What was forgotten because every thread knew it to be over. Threads first seen later
        # start from it.
        self._floor: tuple[int, ...] = ()
        self._recordings: dict[int, _Recording] = {}
        self._releases: dict[int, _Release] = {}
        self._prune_at = _PRUNE_AT

    @property
    def kept_recordings(self) -> int:
        """How many recordings are remembered."""
        return len(self._recordings)

    def stream(self, key: StreamKey) -> StreamClock:
        """Return the clock of the stream ``key``, a new one on its first use."""
        state = self.streams.get(key)
        if state is None:
            state = StreamClock(key, len(self.by_index))
            for other in self.by_index:
                other.vector.append(0)
            self.by_index.append(state)
            self.streams[key] = state
        return state

    def host(self, thread: int) -> HostClock:
        """Return the clock of a host thread, a new one at its first act."""
        host = self.hosts.get(thread)
        if host is None:
            host = self.hosts[thread] = HostClock(thread, self._floor, self.changes)
            self.changes[0] += 1
        return host

    def look_around(self, host: HostClock) -> None:
        """Note whether another thread knows something that ``host`` has not taken over."""
        host.behind = any(
            other.version > host.taken.get(other.thread, 0)
            for other in self.hosts.values()
            if other is not host
        )
        host.checked = self.changes[0]

    def submitting(self, key: StreamKey, host: HostClock) -> StreamClock:
        """Return the clock of ``key`` for an operation that the thread of ``host`` submits now."""
        state = self.streams.get(key) or self.stream(key)
        if state.told is not host.vector:
            state.join(host.vector)
            state.told = host.vector
        return state

    def record(self, key: StreamKey, thread: int, record: Record) -> None:
        """Remember the stream's clock at the recording of an event."""
        host = self.host(thread)
        state = self.submitting(key, host)
        self._recordings[record[1]] = _Recording(tuple(state.vector), record, host.now())
        state.vector[state.index] += 1
        if len(self._recordings) > self._prune_at:
            self._prune()

    def wait(self, key: StreamKey, thread: int, record_seq: int) -> None:
        """Put what a recording covers before the stream's next operation.

        A recording that is not known was made before the trace began, or is known by every thread
        to be over: it then orders nothing that is not ordered already.
        """
        host = self.host(thread)
        recording = self._recordings.get(record_seq)
        if recording is not None:
            host.take(recording.host)
        state = self.submitting(key, host)
        if recording is None:
            return
        state.join(recording.vector)
        index = self.streams[recording.record[3]].index
        state.issuer = index
        state.last_waits[index] = recording.record

    def drop(self, record_seq: int) -> None:
        """Forget a recording: nobody can wait for it any more."""
        self._recordings.pop(record_seq, None)

    def synchronize_stream(self, key: StreamKey, thread: int) -> None:
        """The host thread waited for all work of a stream."""
        state = self.stream(key)
        self.host(thread).join(state.vector)
        state.vector[state.index] += 1

    def synchronize_recording(self, thread: int, record_seq: int) -> None:
        """The host thread saw a recording complete."""
        host = self.host(thread)
        recording = self._recordings.get(record_seq)
        if recording is not None:
            host.take(recording.host)
            host.join(recording.vector)

    def synchronize_device(self, device: int, thread: int) -> None:
        """The host thread waited for all work of one device; of other devices it knows nothing."""
        for state in self.by_index:
            if state.key[0] == device:
                self.synchronize_stream(state.key, thread)

    def release(self, thread: int, token: int) -> None:
        """A host thread makes what it knows available under a token."""
        host = self.host(thread)
        self._releases[token] = _Release(host.now(), dict(host.taken))

    def acquire(self, thread: int, token: int) -> None:
        """A host thread takes over what was made available under a token."""
        host = self.host(thread)
        release = self._releases.get(token)
        if release is None:
            return
        host.take(release.host)
        for other, version in release.taken.items():
            if other != thread and host.taken.get(other, 0) < version:
                host.taken[other] = version
                host.checked = -1

    def settled(self) -> tuple[int, ...]:
        """Return what every host thread knows to be over, also those first seen from now on."""
        vectors = [host.vector for host in self.hosts.values()]
        if vectors:
            common = tuple(map(min, zip(*vectors, strict=False)))
            self._floor = tuple(joined(self._floor, common))
        # As long as a clock, for whoever looks up a stream.
        return self._floor + (0,) * (len(self.by_index) - len(self._floor))

    def _prune(self) -> None:
        # A recording that every thread knows to be complete orders nothing any more.
        known = self.settled()
        self._recordings = {
            seq: recording
            for seq, recording in self._recordings.items()
            if any(epoch > seen for epoch, seen in zip(recording.vector, known, strict=False))
        }
        self._prune_at = max(_PRUNE_AT, 2 * len(self._recordings))
