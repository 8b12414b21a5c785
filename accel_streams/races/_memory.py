"""The last accesses to every live byte interval of every block of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from accel_streams._errors import TraceFormatError
from accel_streams.races._records import READ, WRITE, Access, Record

__all__ = ["ALONE_AT_MOST", "SHARED", "UNTOUCHED", "Block", "Cell", "Stamp"]

UNTOUCHED: Final = -1
SHARED: Final = -2

# The epoch of an operation on its stream, its record, and the stream that its own waited for last.
Stamp: TypeAlias = tuple[int, Record, int]

ALONE_AT_MOST: Final = 16
_TIDY_AT: Final = 128


class Cell:
    """One byte interval of a block as some operation accessed it: who read and wrote it last.

    ``reads`` and ``writes`` are keyed by the index of the stream. One entry a stream is enough:
    what is ordered after the last access of a stream is ordered after all earlier ones, and what
    races with an earlier one races with the last.
    """

    __slots__ = ("hi", "lo", "overlaps", "reads", "writes")

    def __init__(self, lo: int, hi: int) -> None:
        self.lo = lo
        self.hi = hi
        self.reads: dict[int, Stamp] = {}
        self.writes: dict[int, Stamp] = {}
        # The other cells of the block that share a byte with this one.
        self.overlaps: list[Cell] = []


class _Nothing(dict[int, Stamp]):
    """Forgets what it is given: an access to no bytes conflicts with nothing."""

    def __setitem__(self, key: int, value: Stamp, /) -> None:
        pass


class Block:
    """One allocation, from its `alloc` to its `reuse`.

    ``alloc`` is the record that allocated it, on the stream of index ``owner`` in its epoch
    ``epoch``; None, and no size, for memory that was allocated before the trace began. ``sole`` is
    the index of the only stream that has used it, `UNTOUCHED` or `SHARED`.

    Nothing can race in a block that one stream uses, and most blocks are of that kind and soon
    freed. ``alone`` holds the accesses to such a block, in order, until a second stream uses it, or
    there are `ALONE_AT_MOST`; from then on they are in ``cells``, and ``alone`` is None.
    """

    __slots__ = (
        "alloc",
        "alone",
        "cells",
        "epoch",
        "freed_at",
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
        self.owner = self.epoch = 0
        self.sole = UNTOUCHED
        self.alone: list[tuple[Access, Stamp]] | None = []
        self.cells: dict[tuple[int, int], Cell] = {}
        self.label: str | None = None
        # The streams named by record_stream, and when the host dropped its last reference.
        self.recorded: frozenset[int] = frozenset()
        self.freed_at: int | None = None
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
        for (_, lo, hi, mode), stamp in accesses:
            cell = self.cells.get((lo, hi)) or self._add(lo, hi)
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
            whole = self.cells.get((0, self.nbytes)) or self._add(0, self.nbytes)
            whole.writes.setdefault(self.owner, (self.epoch, self.alloc, -1))

    def cell(self, lo: int, hi: int, known: Sequence[int]) -> Cell:
        """Return a new cell for an interval accessed for the first time.

        ``known`` is what the host knows to have finished. A block cut into very many intervals is
        tidied here: what can't race any more is dropped.
        """
        if not 0 <= lo <= hi:
            raise TraceFormatError(
                f"an access to the bytes [{lo}, {hi}) of block {self.number}; expected "
                "0 <= lo <= hi"
            )
        if len(self.cells) >= self.tidy_at:
            self._tidy(known)
        return self._add(lo, hi)

    def _add(self, lo: int, hi: int) -> Cell:
        cell = Cell(lo, hi)
        if lo == hi:
            cell.reads = cell.writes = _Nothing()
        elif self.cells:
            for other in self.cells.values():
                if lo < other.hi and other.lo < hi:
                    cell.overlaps.append(other)
                    other.overlaps.append(cell)
        self.cells[lo, hi] = cell
        return cell

    def _tidy(self, known: Sequence[int]) -> None:
        for cell in self.cells.values():
            _drop_settled(cell, "reads", known)
            _drop_settled(cell, "writes", known)
        for cell in [cell for cell in self.cells.values() if not cell.reads and not cell.writes]:
            for other in cell.overlaps:
                other.overlaps.remove(cell)
            del self.cells[cell.lo, cell.hi]
        self.tidy_at = max(_TIDY_AT, 2 * len(self.cells))


def _drop_settled(cell: Cell, mode: str, known: Sequence[int]) -> None:
    """Drop what the host saw finish, and what a later access of its stream to all bytes repeats."""
    stamps: dict[int, Stamp] = getattr(cell, mode)
    around = [other for other in cell.overlaps if other.lo <= cell.lo and cell.hi <= other.hi]
    for stream, stamp in list(stamps.items()):
        settled = stamp[0] <= known[stream]
        for other in around:
            later: Stamp | None = getattr(other, mode).get(stream)
            settled = settled or (later is not None and later[1][1] > stamp[1][1])
        if settled:
            del stamps[stream]
