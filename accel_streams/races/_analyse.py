"""Happens-before analysis of a trace: find the conflicting accesses that nothing orders.

Order comes from: the submission order of one stream; a wait for a recording of an event; a host
synchronisation, for everything that the same host thread submits later, and other threads after it
has handed over to them. Submission alone orders nothing between streams. Handing out memory
(`alloc`, and `reuse` after a free) counts as a write of the whole block on the stream that owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from accel_streams._errors import TraceFormatError
from accel_streams.races._clocks import Clocks, HostClock, StreamClock, joined
from accel_streams.races._findings import Findings, Names, Side
from accel_streams.races._memory import ALONE_AT_MOST, SHARED, UNTOUCHED, Block, Cell, Stamp
from accel_streams.races._race import Race, StreamNames
from accel_streams.races._records import FIELDS, READ, WRITE, Access, Record
from accel_streams.races._strides import check_shape

__all__ = ["Analyser"]


class Analyser:
    """Find races in a trace while it is being made.

    Records are fed in chunks, in the order of submission. Memory is bounded by the streams times
    the sets of bytes in use and by the recordings of events that somebody may still wait for, not
    by the length of the trace. ``device_type`` is what the trace's device is called in reports.
    """

    def __init__(self, device_type: str = "fake") -> None:
        self.device_type = device_type
        self._clocks = Clocks()
        self._blocks: dict[int, Block] = {}
        self._findings = Findings()
        self._operations = 0
        self._unseen: dict[str, int] = {}
        self._last_seq = -1
        self._failure: TraceFormatError | None = None
        self._handlers: dict[str, Callable[[Record], None]] = {
            "record": self._record,
            "wait": self._wait,
            "sync_stream": self._sync_stream,
            "sync_event": self._sync_event,
            "sync_device": self._sync_device,
            "alloc": self._alloc,
            "record_stream": self._record_stream,
            "free": self._free,
            "reuse": self._reuse,
            "name": self._name,
            "drop": self._drop,
            "release": self._release,
            "acquire": self._acquire,
            "left_out": self._left_out,
        }

    @property
    def operations(self) -> int:
        """How many launches were analysed."""
        return self._operations

    @property
    def race_count(self) -> int:
        """How many racing pairs were seen so far, before de-duplication."""
        return self._findings.total

    @property
    def unseen(self) -> list[str]:
        """What could not be checked, in words: operations whose accesses nobody knows."""
        return [
            f"{name} ({count:,} time{'s' * (count > 1)}): nobody knows which memory it touches"
            for name, count in self._unseen.items()
        ]

    @property
    def kept_accesses(self) -> int:
        """How many accesses are remembered.

        The last ones by stream and live set of bytes, and some of each block that one stream uses.
        """
        blocks = self._blocks.values()
        cells = (cell for block in blocks for cell in block.cells.values())
        compared = sum(len(cell.reads) + len(cell.writes) for cell in cells)
        return compared + sum(len(block.alone or ()) for block in blocks)

    @property
    def kept_recordings(self) -> int:
        """How many recordings of events are remembered, as somebody may wait for them."""
        return self._clocks.kept_recordings

    def feed(self, records: Iterable[Record]) -> None:
        """Analyse the next records of the trace.

        Raise TraceFormatError when a record is malformed, of an unknown kind, or out of order. The
        analysis can't go on from there, as what it missed could have raced: from then on, this and
        `races` raise that error.
        """
        self._refuse_if_failed()
        clocks = self._clocks
        streams, hosts, changes = clocks.streams, clocks.hosts, clocks.changes
        blocks, check, handlers = self._blocks, self._check, self._handlers
        read, write, both, room = READ, WRITE, READ | WRITE, ALONE_AT_MOST
        last_seq, launches = self._last_seq, 0
        record: Record = ()
        try:
            for record in records:
                kind = record[0]
                if kind == "launch":
                    # The hot path, in one piece and with what it needs in local names: each
                    # operation of the traced program pays for it.
                    _, seq, thread, key, _, accesses, _ = record
                    if seq < last_seq:
                        _out_of_order(record, last_seq)
                    last_seq = seq
                    launches += 1
                    host = hosts.get(thread)
                    if host is None:
                        host = clocks.host(thread)
                    if host.checked != changes[0]:
                        clocks.look_around(host)
                    if host.behind or accesses is None:
                        accesses = self._inherited(record, host)
                    state = streams.get(key)
                    if state is None or state.told is not host.vector:
                        state = clocks.submitting(key, host)
                    me = state.index
                    stamp = (state.vector[me], record, state.issuer)
                    for access in accesses:
                        shape = None
                        try:
                            number, lo, hi, mode = access
                        except ValueError:
                            number, lo, hi, mode, shape = access
                            check_shape(lo, hi, shape)
                        try:
                            block = blocks[number]
                        except KeyError:
                            block = blocks[number] = Block(number)
                        if block.sole != me:
                            if block.sole == UNTOUCHED:
                                block.sole = me
                            elif block.sole != SHARED:
                                block.share()
                        alone = block.alone
                        if alone is not None:
                            if 0 <= lo <= hi and read <= mode <= both and len(alone) < room:
                                alone.append((access, stamp))
                                continue
                            block.compare()
                        cell = block.cells.get((lo, hi, shape))
                        if cell is None:
                            if block.crowded():
                                block.tidy(clocks.settled())
                            cell = block.cell(lo, hi, shape)
                        if block.sole == SHARED:
                            check(state, state.vector, stamp, block, cell, mode)
                        if mode == read:
                            cell.reads[me] = stamp
                        elif mode == write:
                            cell.writes[me] = stamp
                        elif mode == both:
                            cell.reads[me] = cell.writes[me] = stamp
                        else:
                            raise ValueError(mode)
                elif kind != "ran":
                    seq = record[1]
                    if seq < last_seq:
                        _out_of_order(record, last_seq)
                    last_seq = seq
                    handler = handlers.get(kind)
                    if handler is None:
                        _unknown(record)
                    else:
                        handler(record)
        except TraceFormatError as exc:
            self._failure = exc
            raise
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as exc:
            self._failure = TraceFormatError(
                f"the record {record!r} is malformed: expected {_shape(record)}. Record the trace "
                "again with this version of accel_streams."
            )
            raise self._failure from exc
        finally:
            self._last_seq = last_seq
            self._operations += launches

    def _inherited(self, record: Record, host: HostClock) -> tuple[Access, ...]:
        """Return the accesses of a launch; its thread has come after the blocks' allocations."""
        accesses: tuple[Access, ...] | None = record[5]
        if accesses is None:
            name: str = record[4]
            self._unseen[name] = self._unseen.get(name, 0) + 1
            return ()
        for access in accesses:
            block = self._blocks.get(access[0])
            if block is not None and block.born is not None:
                host.take(block.born)
        return accesses

    def _user(self, block: Block, thread: int) -> HostClock:
        """Return the clock of a host thread that does something with ``block``."""
        host = self._clocks.host(thread)
        if block.born is not None:
            host.take(block.born)
        return host

    def _record(self, record: Record) -> None:
        _, _, thread, key, _ = record
        self._clocks.record(key, thread, record)

    def _wait(self, record: Record) -> None:
        _, _, thread, key, record_seq, _ = record
        self._expect_earlier(record, record_seq)
        self._clocks.wait(key, thread, record_seq)

    def _sync_stream(self, record: Record) -> None:
        _, _, thread, key, _, _ = record
        self._clocks.synchronize_stream(key, thread)

    def _sync_event(self, record: Record) -> None:
        _, _, thread, record_seq, _ = record
        self._expect_earlier(record, record_seq)
        self._clocks.synchronize_recording(thread, record_seq)

    def _sync_device(self, record: Record) -> None:
        _, _, thread, device, _ = record
        self._clocks.synchronize_device(device, thread)

    def _drop(self, record: Record) -> None:
        _, _, _, record_seq = record
        self._clocks.drop(record_seq)

    def _release(self, record: Record) -> None:
        _, _, thread, token = record
        self._clocks.release(thread, token)

    def _acquire(self, record: Record) -> None:
        _, _, thread, token = record
        self._clocks.acquire(thread, token)

    def _left_out(self, record: Record) -> None:
        _, _, _, count = record
        self._operations += count

    def _alloc(self, record: Record) -> None:
        _, _, thread, key, number, _, _ = record
        # Only the stream's own epoch matters here, and that is no news from the host.
        state = self._clocks.streams.get(key) or self._clocks.stream(key)
        host = self._clocks.hosts.get(thread) or self._clocks.host(thread)
        me = state.index
        block = self._blocks.get(number)
        if block is None:
            # Nearly always, so without the calls.
            block = self._blocks[number] = Block(number)
            block.alloc, block.owner, block.epoch = record, me, state.vector[me]
            block.sole = me
        else:
            block.allocated(record, me, state.vector[me])
        if host.version:
            block.born = host.now()

    def _record_stream(self, record: Record) -> None:
        _, _, thread, key, number = record
        block = self._block(number)
        self._user(block, thread)
        block.recorded |= {self._clocks.stream(key).index}

    def _free(self, record: Record) -> None:
        _, _, thread, _, number = record
        block = self._blocks.get(number)
        if block is None:
            return
        host = self._user(block, thread)
        if block.alloc is not None and block.sole == block.owner and not block.recorded:
            return  # What its own stream did needs no more than the order of that stream.
        block.end(host.vector)
        for index in block.recorded:
            state = self._clocks.by_index[index]
            block.end(state.vector)
            # What the stream is given from now on is not covered.
            state.vector[index] += 1

    def _reuse(self, record: Record) -> None:
        _, _, thread, key, number = record
        block = self._blocks.pop(number, None)
        if block is None:
            return
        state = self._clocks.streams.get(key) or self._clocks.stream(key)
        if block.sole not in (UNTOUCHED, state.index):
            block.compare()
            whole = Cell(0, max([block.nbytes, *(hi for _, hi, _ in block.cells)]))
            whole.overlaps.extend(block.cells.values())
            # Nothing is queued here, so the stream learns nothing of the host.
            known = joined(joined(state.vector, self._clocks.host(thread).vector), block.freed)
            self._check(state, known, (known[state.index], record, -1), block, whole, WRITE)

    def _name(self, record: Record) -> None:
        _, _, _, number, label = record
        self._block(number).label = label

    def _block(self, number: int) -> Block:
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block(number)
        return block

    def _check(
        self,
        state: StreamClock,
        vector: list[int],
        stamp: Stamp,
        block: Block,
        cell: Cell,
        mode: int,
    ) -> None:
        """Compare an access with the last conflicting ones of every stream.

        ``vector`` is what comes before it.
        """
        found: dict[int, Side] | None = None
        for other in (cell, *cell.overlaps):
            for stream, entry in other.writes.items():
                if entry[0] > vector[stream]:
                    found = found or {}
                    found[entry[1][1]] = Side(stream, entry)
            if mode & WRITE:
                for stream, entry in other.reads.items():
                    if entry[0] > vector[stream]:
                        found = found or {}
                        found[entry[1][1]] = Side(stream, entry)
        if found is not None:
            self._report(state, stamp, block, mode, found)

    def _report(
        self, state: StreamClock, stamp: Stamp, block: Block, mode: int, found: dict[int, Side]
    ) -> None:
        second = Side(state.index, stamp)
        # The nearest first: it is the one to show of those from one place.
        for _, first in sorted(found.items(), reverse=True):
            if mode == READ and first.stamp[1][0] == "alloc":
                # Nothing but the allocation "wrote" what is read, or that write races as well.
                continue
            # What there is of an order between the two streams, for the report.
            waited = state.last_waits.get(first.stream)
            self._findings.add(block, first, second, waited)

    def races(self, stream_names: StreamNames | None = None) -> list[Race]:
        """Return what was found so far, in order of the second operation.

        Of several with one second operation, the one with the latest first operation comes first.
        ``stream_names`` says what to call streams, by (device index, stream id).
        """
        self._refuse_if_failed()
        return self._findings.races(Names(self._clocks, stream_names or {}, self.device_type))

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise TraceFormatError(
                f"the analysis stopped at a bad record and has no result: {self._failure}"
            ) from self._failure

    def _expect_earlier(self, record: Record, record_seq: int) -> None:
        if record_seq >= record[1]:
            raise TraceFormatError(
                f"the record {record!r} waits for the recording {record_seq}, which comes later; "
                "expected the seq of an earlier record"
            )


def _unknown(record: Record) -> None:
    raise TraceFormatError(
        f"unknown kind of record {record[0]!r}; expected one of {', '.join(FIELDS)}. The trace "
        "was made by a newer version of accel_streams: upgrade to read it."
    )


def _out_of_order(record: Record, last_seq: int) -> None:
    raise TraceFormatError(
        f"the record {record!r} comes after seq {last_seq}; expected records in the order "
        "of submission. Feed each chunk once, in the order in which it was handed out."
    )


def _shape(record: object) -> str:
    kind = record[0] if isinstance(record, tuple) and record else None
    fields = FIELDS.get(kind, ()) if isinstance(kind, str) else ()
    return f"(kind, {', '.join(fields or ('seq', '...'))})"
