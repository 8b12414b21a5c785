"""When operations ran: what the pictures of a trace are drawn from."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from accel_streams.races._records import Access, Record, Source, StreamKey

__all__ = ["Edge", "Slice", "Timeline", "read_timeline"]


@dataclass(frozen=True, slots=True)
class Slice:
    """One entry of a stream: a launch, a recording of an event, a wait, an `alloc` or a `reuse`.

    ``start`` and ``end`` are nanoseconds of the virtual clock. ``ran`` is False for what was still
    queued when the trace ended; its times are invented, after everything else.
    """

    kind: str
    seq: int
    stream: StreamKey
    name: str
    accesses: tuple[Access, ...]
    source: Source | None
    start: int
    end: int
    ran: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """A wait for a recording: what orders two streams."""

    recorded: Slice
    waited: Slice


@dataclass(frozen=True, slots=True)
class Timeline:
    """All slices in order of submission, and the edges between them."""

    slices: list[Slice]
    edges: list[Edge]
    labels: dict[int, str]

    def find(self, seq: int) -> Slice | None:
        """Return the slice of an operation, None if it is not in the trace."""
        return next((each for each in self.slices if each.seq == seq), None)


def read_timeline(records: Iterable[Record], memory: Collection[int] = ()) -> Timeline:
    """Put launches, recordings and waits on the virtual clock.

    ``memory`` names the `alloc` and `reuse` records to put there as well, by seq: at the next
    operation of their stream. A trace without ``ran`` records (of a device that can't tell) gets a
    clock that gives each operation the same time, in the order of submission.
    """
    entries: list[Record] = []
    times: dict[int, tuple[int, int]] = {}
    labels: dict[int, str] = {}
    for record in records:
        kind = record[0]
        if kind in ("launch", "record", "wait") or (
            kind in ("alloc", "reuse") and record[1] in memory
        ):
            entries.append(record)
        elif kind == "ran":
            times[record[1]] = (record[3], record[4])
        elif kind == "name":
            labels[record[3]] = record[4]
    clock = max((end for _, end in times.values()), default=0)
    slices: list[Slice] = []
    edges: list[Edge] = []
    recorded: dict[int, Slice] = {}
    following = _following(entries, times)
    for record in entries:
        kind, seq, stream = record[0], record[1], record[3]
        ran = seq in times or kind in ("alloc", "reuse")
        if kind in ("alloc", "reuse"):
            moment = following.get(seq, clock)
            times[seq] = (moment, moment)
        elif not ran:
            times[seq] = (clock, clock + (1000 if kind == "launch" else 0))
            clock = times[seq][1]
        start, end = times[seq]
        name, accesses = (record[4], record[5] or ()) if kind == "launch" else (kind, ())
        source = None if kind == "reuse" else record[-1]
        item = Slice(kind, seq, stream, name, accesses, source, start, end, ran)
        slices.append(item)
        if kind == "record":
            recorded[seq] = item
        elif kind == "wait" and record[4] in recorded:
            edges.append(Edge(recorded[record[4]], item))
    return Timeline(slices, edges, labels)


def _following(entries: list[Record], times: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Return when the next operation of the same stream starts, by the seq of a memory record."""
    found: dict[int, int] = {}
    upcoming: dict[StreamKey, int] = {}
    for record in reversed(entries):
        kind, seq, stream = record[0], record[1], record[3]
        if kind in ("alloc", "reuse"):
            if stream in upcoming:
                found[seq] = upcoming[stream]
        elif seq in times:
            upcoming[stream] = times[seq][0]
    return found
