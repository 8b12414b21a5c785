"""Racing pairs on their way to reports: counted, merged by place, put into words at the end."""

from __future__ import annotations

import functools
import operator
import sys
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from accel_streams.races._clocks import Clocks
from accel_streams.races._memory import Block, Cell, Stamp
from accel_streams.races._race import (
    Kind,
    Operation,
    Race,
    StreamNames,
    consequence,
    early_wait,
    missing_edge,
    size,
    stream_label,
    where,
)
from accel_streams.races._records import (
    READ,
    WRITE,
    Access,
    Record,
    Source,
    StreamKey,
    is_collective,
)

__all__ = ["Findings", "Names", "Side"]


class Side(NamedTuple):
    """One operation of a race: its stream (by index) and its stamp."""

    stream: int
    stamp: Stamp

    @property
    def seq(self) -> int:
        """Its place in the order of submission."""
        seq: int = self.stamp[1][1]
        return seq

    @property
    def place(self) -> object:
        """What identifies it in a report: its source, or its name where there is none."""
        record = self.stamp[1]
        return _source(record) or _name(record)


@dataclass(frozen=True, slots=True)
class Names:
    """What streams are called, by their index in the clocks."""

    clocks: Clocks
    given: StreamNames
    device_type: str

    def key(self, index: int) -> StreamKey:
        """Return the stream's (device index, stream id)."""
        return self.clocks.by_index[index].key

    def label(self, index: int) -> str:
        """Return what to call the stream."""
        return stream_label(self.key(index), self.given, self.device_type)


class _Meeting(NamedTuple):
    """How two operations conflict in one block: the bytes, and what each does to them."""

    kind: Kind
    lo: int
    hi: int
    first_mode: int
    second_mode: int


def _meet(first: Side, second: Side, block: int) -> _Meeting:
    """Gather all conflicting accesses of two operations to a block."""
    pairs = [
        (max(a[1], b[1]), min(a[2], b[2]), a[3], b[3])
        for a in _accesses(first.stamp[1], block)
        for b in _accesses(second.stamp[1], block)
        if (a[3] | b[3]) & WRITE and _cell(a).meets(_cell(b))
    ]
    first_mode = functools.reduce(operator.or_, (pair[2] for pair in pairs))
    second_mode = functools.reduce(operator.or_, (pair[3] for pair in pairs))
    kind: Kind = "write-after-write"
    # The flow of data first, where several names fit.
    if second.stamp[1][0] == "reuse":
        kind = "use-after-free"
    elif first.stamp[1][0] == "alloc":
        pass
    elif any(a & WRITE and b & READ for _, _, a, b in pairs):
        kind = "read-after-write"
    elif any(a & READ and b & WRITE for _, _, a, b in pairs):
        kind = "write-after-read"
    lo, hi = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    return _Meeting(kind, lo, hi, first_mode, second_mode)


def _cell(access: Access) -> Cell:
    return Cell(access[1], access[2], access[4] if len(access) == 5 else None)


def _accesses(record: Record, block: int) -> list[Access]:
    if record[0] == "launch":
        return [access for access in record[5] if access[0] == block]
    nbytes: int = record[5] if record[0] == "alloc" else sys.maxsize
    return [(block, 0, nbytes, WRITE)]


class Findings:
    """All racing pairs, one entry for each pair of places, kind and buffer."""

    def __init__(self) -> None:
        self.total = 0
        self._by_place: dict[tuple[object, ...], _Finding] = {}
        self._latest = -1
        self._counted: set[tuple[int, int]] = set()

    def add(self, block: Block, first: Side, second: Side, waited: Record | None) -> None:
        """Count a racing pair of operations; ``waited``: see `_Finding`.

        A pair that meets in several intervals of the block is counted once.
        """
        if second.seq != self._latest:
            self._latest = second.seq
            self._counted.clear()
        if (first.seq, block.number) in self._counted:
            return
        self._counted.add((first.seq, block.number))
        self.total += 1
        meeting = _meet(first, second, block.number)
        buffer = block.label or (block.number if block.alloc is None else block.alloc[5:])
        key = (meeting.kind, buffer, first.place, second.place)
        finding = self._by_place.get(key)
        if finding is None:
            finding = self._by_place[key] = _Finding(block, meeting, first, second, waited)
        finding.count += 1
        finding.pairs[first.stream, second.stream] = None

    def races(self, names: Names) -> list[Race]:
        """Return the findings as reports, in order of the second operation."""
        merged: dict[tuple[object, ...], Race] = {}
        for finding in self._by_place.values():
            race = finding.race(names)
            # Once more: a block may have got its label only after the race.
            key = (race.kind, race.buffer, finding.first.place, finding.second.place)
            earlier = merged.get(key)
            merged[key] = race if earlier is None else _joined(earlier, race)
        return _with_causes(sorted(merged.values(), key=_order))


@dataclass(slots=True)
class _Finding:
    """The races of one pair of places, kind and buffer, while they are counted."""

    block: Block
    meeting: _Meeting
    first: Side
    second: Side
    # The newest recording on the first's stream that the second's stream waited for.
    waited: Record | None
    count: int = 0
    # In the order found: a dict used as an ordered set.
    pairs: dict[tuple[int, int], None] = field(default_factory=dict)

    def race(self, names: Names) -> Race:
        """Put the finding into words."""
        kind = self.meeting.kind
        first = _operation(self.first, self.meeting.first_mode, names)
        second = _operation(self.second, self.meeting.second_mode, names)
        note = ""
        if self.waited is not None and first.issuer is None and second.issuer is None:
            note = early_wait(first, second, self.waited[4])
        return Race(
            kind=kind,
            buffer=_buffer(self.block),
            block=self.block.number,
            lo=self.meeting.lo,
            hi=self.meeting.hi,
            first=first,
            second=second,
            consequence=consequence(kind, first, second),
            missing_edge=missing_edge(first, second),
            note=note,
            count=self.count,
            streams=tuple((names.label(a), names.label(b)) for a, b in self.pairs),
        )


def _operation(side: Side, mode: int, names: Names) -> Operation:
    _, record, issuer = side.stamp
    name = _name(record)
    issued = issuer >= 0 and is_collective(name)
    return Operation(
        name=name,
        stream=names.key(side.stream),
        stream_name=names.label(side.stream),
        source=_source(record),
        seq=record[1],
        thread=record[2],
        mode=mode,
        issuer=names.key(issuer) if issued else None,
        issuer_name=names.label(issuer) if issued else None,
    )


def _name(record: Record) -> str:
    kind: str = record[0]
    name: str = record[4] if kind == "launch" else kind
    return name


def _source(record: Record) -> Source | None:
    source: Source | None = None if record[0] == "reuse" else record[6]
    return source


def _buffer(block: Block) -> str:
    if block.label is not None:
        return block.label
    if block.alloc is None:
        return f"memory allocated before the trace began (block {block.number})"
    return f"{size(block.nbytes)} allocated {where(block.alloc[6], short=False)}"


def _joined(one: Race, other: Race) -> Race:
    earliest, latest = sorted((one, other), key=_order)
    streams = tuple(dict.fromkeys(earliest.streams + latest.streams))
    return replace(earliest, count=one.count + other.count, streams=streams)


def _with_causes(races: list[Race]) -> list[Race]:
    """Number the missing waits; a race that an earlier one's wait would order has its number."""
    waits: list[Race] = []
    numbers: dict[object, int] = {}
    found = []
    for race in races:
        wait = next((wait for wait in waits if _orders(wait, race)), None)
        if wait is None:
            wait = race
            waits.append(race)
        number = numbers.setdefault(_places(wait), len(numbers))
        found.append(replace(race, cause=number))
    return found


def _orders(wait: Race, race: Race) -> bool:
    """Return whether the wait that is missing in ``wait`` would order ``race`` as well."""
    return (
        _submitter(race.first) == _submitter(wait.first)
        and _submitter(race.second) == _submitter(wait.second)
        and race.first.seq <= wait.first.seq
        and race.second.seq >= wait.second.seq
    )


def _submitter(operation: Operation) -> StreamKey:
    # Of a collective, the stream that issued it: it waits for that one, and that one for it.
    return operation.issuer or operation.stream


def _places(wait: Race) -> object:
    first, second = wait.first, wait.second
    if first.source is None or second.source is None:
        return first.name, _submitter(first), second.name, _submitter(second)
    return first.source, second.source


def _order(race: Race) -> tuple[int, int]:
    # The first report of several with one cause is then the one whose missing edge mends them all:
    # from the last of the earlier operations to the first of the later ones.
    return race.second.seq, -race.first.seq
