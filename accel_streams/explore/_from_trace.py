"""Turn what the simulated device noted in one run into operations that a search understands."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from accel_streams.explore._failures import ExploreError
from accel_streams.explore._operations import WRITE, Access, Operation

__all__ = ["MOST_OPERATIONS", "WHOLE", "Step", "name_of", "operations_of", "polled"]

# The simulated device keeps 4096 entries queued before it runs some by itself, and a search over
# programs of a quarter of that would not end.
MOST_OPERATIONS: Final = 1000
WHOLE: Final = 1 << 62  # more bytes than any block has
_QUEUED: Final = ("launch", "record", "wait")
_ALLOCATION_GRAIN: Final = 512  # bytes; memory of one rounded size is handed out again

Record = tuple[Any, ...]
Step = tuple[Any, ...]
"""(seq, number, own, end, stream): what ran; see note_steps in csrc/core/runtime.h."""


def name_of(step: Step) -> str:
    """Return the name of an operation in a list of delays."""
    _, number, own, end, _ = step
    return f"{number}.{own}" if own else f"{number}e" if end else str(number)


def polled(steps: Sequence[Step]) -> bool:
    """Tell whether the host looked how far the device had come: a step with no number."""
    return any(not (step[1] or step[2]) for step in steps)


def operations_of(
    records: Sequence[Record], steps: Sequence[Step]
) -> tuple[tuple[Operation, ...], tuple[int, ...]]:
    """Return a run's operations in the order of submission, and the order in which they ran.

    `records` is the trace of the run; in `steps`, what ran, are also the allocator's own entries,
    which the trace leaves out. Streams and memory are numbered by their first appearance, so that
    two runs that submit the same give equal operations.
    """
    ran = [step for step in steps if step[1] or step[2]]
    if len(ran) > MOST_OPERATIONS:
        raise ExploreError(
            f"the program submits {len(ran)} operations; a systematic search is for small "
            f"programs, of at most {MOST_OPERATIONS}. Explore it under seeded schedules instead: "
            "accel-streams explore without --systematic"
        )
    ends = {step[0] for step in ran if step[3]}
    noted = {record[1]: record for record in records if record[0] in _QUEUED}
    # False sorts before True: a begin comes before its end.
    events: list[tuple[int, bool, Record, bool]] = [
        (step[0], step[3], step, True) for step in ran
    ] + [
        (record[1], False, record, False)
        for record in records
        if record[0] not in (*_QUEUED, "ran", "name")
    ]
    walk = _Walk(noted, ends)
    for _, _, item, queued in sorted(events, key=lambda event: event[:2]):
        if queued:
            walk.queued(item)
        else:
            walk.host(item)
    return walk.operations(), tuple(walk.index[step[0], step[3]] for step in ran)


@dataclass(slots=True)
class _Draft:
    name: str
    stream: int
    what: str
    accesses: list[Access] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)


class _Walk:
    """Goes through what was submitted, and what the host did in between."""

    def __init__(self, noted: dict[int, Record], ends: set[int]) -> None:
        self.index: dict[tuple[int, bool], int] = {}
        self._noted = noted
        self._ends = ends
        self._drafts: list[_Draft] = []
        self._streams: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._waited: set[int] = set()
        self._memory: dict[int, int] = {}  # which piece of memory a block is
        self._sizes: dict[int, tuple[Hashable, int]] = {}
        self._pool: dict[tuple[Hashable, int], list[int]] = {}
        self._pieces = 0

    def operations(self) -> tuple[Operation, ...]:
        """Return what was gathered."""
        return tuple(
            Operation(d.name, d.stream, tuple(d.accesses), tuple(sorted(set(d.follows))), d.what)
            for d in self._drafts
        )

    def queued(self, step: Step) -> None:
        """Take an entry of a stream's queue, or one end of a collective."""
        seq, _, own, end, stream = step
        record = self._noted.get(seq)
        what = _what(record, end) if record else "allocator" if own else ""
        if not what:
            raise ExploreError(
                "the program holds a stream (fake.hold); a systematic search finds the orders by "
                "itself, so search it without"
            )
        draft = _Draft(name_of(step), self._streams.setdefault(stream, len(self._streams)), what)
        if stream in self._last:
            draft.follows.append(self._last[stream])
        draft.follows.extend(self._waited)
        if record is not None and record[0] == "wait":
            recorded = self.index.get((record[4], False))
            if recorded is not None:  # else it was recorded, and has run, before the program
                draft.follows.append(recorded)
        if record is not None and record[0] == "launch":
            draft.accesses += [(self._piece(a[0]), a[1], a[2], a[3]) for a in record[5]]
        self.index[seq, end] = self._last[stream] = len(self._drafts)
        self._drafts.append(draft)

    def host(self, record: Record) -> None:
        """Take what the host did: waits and memory."""
        kind = record[0]
        if kind == "sync_stream":
            if record[3] in self._last:
                self._waited.add(self._last[record[3]])
        elif kind == "sync_device":
            self._waited.update(
                last for stream, last in self._last.items() if stream[0] == record[3]
            )
        elif kind == "sync_event":
            if (record[3], False) in self.index:
                self._waited.add(self.index[record[3], False])
        elif kind == "alloc":
            _, _, _, stream, block, nbytes = record[:6]
            rounded = max(1, -(-nbytes // _ALLOCATION_GRAIN))
            self._sizes[block] = (stream, rounded)
            free = self._pool.get((stream, rounded))
            self._memory[block] = free.pop() if free else self._new_piece()
        elif kind == "reuse":
            # The allocator's entry just before fills the memory; then it may be handed out again.
            piece = self._piece(record[4])
            self._drafts[-1].accesses.append((piece, 0, WHOLE, WRITE))
            if record[4] in self._sizes:
                self._pool.setdefault(self._sizes[record[4]], []).append(piece)

    def _piece(self, block: int) -> int:
        if block not in self._memory:
            self._memory[block] = self._new_piece()
        return self._memory[block]

    def _new_piece(self) -> int:
        self._pieces += 1
        return self._pieces


def _what(record: Record, end: bool) -> str:
    """Say what an entry is, and which line submitted it."""
    kind = record[0]
    text = str(record[4]) if kind == "launch" else f"event {kind}"
    source = record[-1]
    if source is not None:
        file, line, function = source
        text += f" at {PurePath(file).name}:{line}" if line else f" in {function}"
    return f"the end of {text}" if end else text
