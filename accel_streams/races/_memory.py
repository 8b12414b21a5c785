"""The last accesses to every live byte interval of every block of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from accel_streams._errors import TraceFormatError
from accel_streams.races._clocks import Knowledge, joined
from accel_streams.races._records import READ, WRITE, Access, Record, Shape
from accel_streams.races._strides import meet

__all__ = ["ALONE_AT_MOST", "SHARED", "UNTOUCHED", "Block", "Cell", "Stamp"]

UNTOUCHED: Final = -1
SHARED: Final = -2

# The epoch of an operation on its stream, its record, and the stream that its own waited for last.
Stamp: TypeAlias = tuple[int, Record, int]

ALONE_AT_MOST: Final = 16
_TIDY_AT: Final = 128


class Cell:
    """One set of bytes of a block as some operation accessed it: who read and wrote it last.

    They are the bytes from ``lo`` to ``hi``, all of them or those of ``shape``.

    ``reads`` and ``writes`` are keyed by the index of the stream. One entry a stream is enough:
    what is ordered after the last access of a stream is ordered after all earlier ones, and what
    races with an earlier one races with the last.
    """

    __slots__ = ("hi", "lo", "overlaps", "reads", "shape", "writes")

    def __init__(self, lo: int, hi: int, shape: Shape | None = None) -> None:
        self.lo = lo
        self.hi = hi
        self.shape = shape
        self.reads: dict[int, Stamp] = {}
        self.writes: dict[int, Stamp] = {}
        # The other cells of the block that share a byte with this one.
        self.overlaps: list[Cell] = []

    def meets(self, other: Cell) -> bool:
        """Return whether the two share a byte."""
        if self.lo >= other.hi or other.lo >= self.hi:
            return False
        if self.shape is None and other.shape is None:
            return True
        one = self.shape or (self.hi - self.lo,)
        return meet(self.lo, one, other.lo, other.shape or (other.hi - other.lo,))


class _Nothing(dict[int, Stamp]):
    """Forgets what it is given: an access to no bytes conflicts with nothing."""

    def __setitem__(self, key: int, value: Stamp, /) -> None:
        pass


class Block:
    """One allocation, from its `alloc` to its `reuse`.

    ``alloc`` is the record that allocated it, on the stream of index ``owner`` in its epoch
    ``epoch``; None, and no size, for memory that was allocated before the trace began. ``born`` is
    what the host thread knew that allocated it: whoever uses the block has come after that.
    ``sole`` is the index of the only stream that has used it, `UNTOUCHED` or `SHARED`. ``freed`` is
    what is known to be over when the memory is handed out again: what the host thread knew that
    freed it, and all that comes before the free on the streams named by record_stream, because the
    allocator waits for those.

    Nothing can race in a block that one stream uses, and most blocks are of that kind and soon
    freed. ``alone`` holds the accesses to such a block, in order, until a second stream uses it, or
    there are `ALONE_AT_MOST`; from then on they are in ``cells``, and ``alone`` is None.
    """

    __slots__ = (
        "alloc",
        "alone",
        "born",
        "cells",
        "epoch",
        "freed",
        "label",
        "number",
        "owner",
        "recorded",
        "sole",
        "tidy_at",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.alloc: Record | None = None
        self.born: Knowledge | None = None
        self.owner = self.epoch = 0
        self.sole = UNTOUCHED
        self.alone: list[tuple[Access, Stamp]] | None = []
        self.cells: dict[tuple[int, int, Shape | None], Cell] = {}
        self.label: str | None = None
        # The streams named by record_stream.
        self.recorded: frozenset[int] = frozenset()
        self.freed: list[int] = []
        self.tidy_at = _TIDY_AT

    @property
    def nbytes(self) -> int:
        """Its size as far as it is known."""
        return 0 if self.alloc is None else int(self.alloc[5])

    def allocated(self, record: Record, stream: int, epoch: int) -> None:
        """Note the allocation: a write of the whole block on the stream that owns it."""
        self.alloc, self.owner, self.epoch = record, stream, epoch
        if self.sole in (UNTOUCHED, stream):
            self.sole = stream
        else:
            self.compare()
            self.sole = SHARED

    def compare(self) -> None:
        """Put what `alone` holds into cells, in which accesses can be compared."""
        accesses, self.alone = self.alone or (), None
        for access, stamp in accesses:
            lo, hi, mode = access[1:4]
            shape = access[4] if len(access) == 5 else None
            cell = self.cells.get((lo, hi, shape)) or self._add(lo, hi, shape)
            if mode & READ:
                cell.reads[self.sole] = stamp
            if mode & WRITE:
                cell.writes[self.sole] = stamp

    def share(self) -> None:
        """Note that a second stream uses the block, so that its accesses have to be compared."""
        self.compare()
        self.sole = SHARED
        if self.alloc is not None and self.nbytes > 0:
            # Only now does it matter; most blocks are freed before.
            whole = self.cells.get((0, self.nbytes, None)) or self._add(0, self.nbytes, None)
            whole.writes.setdefault(self.owner, (self.epoch, self.alloc, -1))

    def end(self, known: Sequence[int]) -> None:
        """Note that something is over before the memory is handed out again."""
        self.freed = joined(self.freed, known)

    def crowded(self) -> bool:
        """Return whether the block is cut into so many cells that it is time to tidy."""
        return len(self.cells) >= self.tidy_at

    def cell(self, lo: int, hi: int, shape: Shape | None) -> Cell:
        """Return a new cell for bytes accessed together for the first time."""
        if not 0 <= lo <= hi:
            raise TraceFormatError(
                f"an access to the bytes [{lo}, {hi}) of block {self.number}; expected "
                "0 <= lo <= hi"
            )
        return self._add(lo, hi, shape)

    def _add(self, lo: int, hi: int, shape: Shape | None) -> Cell:
        cell = Cell(lo, hi, shape)
        if lo == hi:
            cell.reads = cell.writes = _Nothing()
        elif self.cells:
            for other in self.cells.values():
                if cell.meets(other):
                    cell.overlaps.append(other)
                    other.overlaps.append(cell)
        self.cells[lo, hi, shape] = cell
        return cell

    def tidy(self, known: Sequence[int]) -> None:
        """Drop what can't race any more; ``known`` is what every host thread knows to be over."""
        for cell in self.cells.values():
            _drop_settled(cell, "reads", known)
            _drop_settled(cell, "writes", known)
        for cell in [cell for cell in self.cells.values() if not cell.reads and not cell.writes]:
            for other in cell.overlaps:
                other.overlaps.remove(cell)
            del self.cells[cell.lo, cell.hi, cell.shape]
        self.tidy_at = max(_TIDY_AT, 2 * len(self.cells))


def _drop_settled(cell: Cell, mode: str, known: Sequence[int]) -> None:
    """Drop what is over, and what a later access of its stream to all bytes repeats."""
    stamps: dict[int, Stamp] = getattr(cell, mode)
    around = [
        other
        for other in cell.overlaps
        if other.shape is None and other.lo <= cell.lo and cell.hi <= other.hi
    ]
    for stream, stamp in list(stamps.items()):
        settled = stamp[0] <= known[stream]
        for other in around:
            later: Stamp | None = getattr(other, mode).get(stream)
            settled = settled or (later is not None and later[1][1] > stamp[1][1])
        if settled:
            del stamps[stream]
