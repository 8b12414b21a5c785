"""Add the waits that a program lacks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

from accel_streams.explore._operations import overlap
from accel_streams.testing._program import (
    WRITE,
    Access,
    Allocate,
    Collective,
    Finish,
    Free,
    Operation,
    Program,
    ReadBack,
    Record,
    SyncDevice,
    SyncEvent,
    SyncStream,
    Wait,
    accesses,
)

__all__ = ["Hazard", "ordered"]

Hazard: TypeAlias = Literal["read-after-write", "write-after-read", "write-after-write"]

_COMMUNICATOR = -1
_Clock: TypeAlias = dict[int, int]  # how many entries of each stream are known to be over


class _Orders:
    """Follows which entries come before which, whatever the schedule."""

    def __init__(self, program: Program, skip: Collection[Hazard]) -> None:
        self.program = program
        self.skip = set(skip)
        self.out: list[Operation] = []
        self.submitted: _Clock = {}
        self.known: dict[int, _Clock] = {}
        self.host: _Clock = {}
        self.events: dict[int, _Clock] = {}
        self.works: dict[int, _Clock] = {}
        self.latest_work = 0
        # (stream, place in it, access), all that was submitted; memory by buffer, for its life.
        self.past: list[tuple[int, int, Access]] = []
        self.owners = dict.fromkeys(range(program.buffers), 0)
        self.next_event = 1 + max(
            (op.event for op in program.operations if isinstance(op, (Record, Wait, SyncEvent))),
            default=-1,
        )

    def submit(self, stream: int) -> _Clock:
        """Note one more entry on a stream; return what is over once it is."""
        known = self.known.setdefault(stream, {})
        _join(known, self.host)
        self.submitted[stream] = known[stream] = self.submitted.get(stream, 0) + 1
        return known

    def before(self, stream: int, waiting: int, wanted: list[Access], thread: int) -> None:
        """Make `waiting` wait for what conflicts with `wanted` on `stream` and is not ordered."""
        known = dict(self.known.get(waiting, {}))
        _join(known, self.host)
        missing = {
            other: None
            for other, place, past in self.past
            if other != stream and known.get(other, 0) < place and self.needs(past, wanted)
        }
        for other in missing:
            if other == _COMMUNICATOR:
                # Only a collective's end stands for it: the latest one covers those before it.
                self.emit(Finish(waiting, self.latest_work, thread=thread))
            else:
                event, self.next_event = self.next_event, self.next_event + 1
                self.emit(Record(other, event, thread=thread))
                self.emit(Wait(waiting, event, thread=thread))

    def needs(self, past: Access, wanted: list[Access]) -> bool:
        return any(overlap(past, new) and self.hazards(past, new) - self.skip for new in wanted)

    @staticmethod
    def hazards(past: Access, new: Access) -> set[Hazard]:
        found: set[Hazard] = set()
        if past[3] & WRITE and new[3] != WRITE:
            found.add("read-after-write")
        if past[3] != WRITE and new[3] & WRITE:
            found.add("write-after-read")
        if past[3] & WRITE and new[3] & WRITE:
            found.add("write-after-write")
        return found

    def emit(self, operation: Operation) -> None:
        """Append an operation and follow what it orders."""
        self.out.append(operation)
        size = self.program.size
        match operation:
            case Record(stream, event):
                self.events[event] = dict(self.submit(stream))
            case Wait(stream, event):
                if event in self.events:
                    _join(self.submit(stream), self.events[event])
            case Finish(stream, work):
                if work in self.works:
                    _join(self.submit(stream), self.works[work])
            case SyncEvent(event):
                _join(self.host, self.events.get(event, {}))
            case SyncStream(stream):
                _join(self.host, self.submit(stream))
            case SyncDevice():
                _join(self.host, self.submitted)
            case Collective(stream, _, _, _, work):
                _join(self.submit(_COMMUNICATOR), dict(self.submit(stream)))
                known = self.submit(_COMMUNICATOR)
                self.note(_COMMUNICATOR, accesses(operation, size))
                self.works[work] = dict(known)
                self.latest_work = work
            case Allocate(stream, buffer):
                self.owners[buffer] = stream
                self.submit(stream)
                self.note(stream, ((buffer, 0, size, WRITE),))
            case _:
                found = accesses(operation, size)
                if found:
                    stream = getattr(operation, "stream", 0)
                    known = self.submit(stream)
                    self.note(stream, found)
                    if isinstance(operation, ReadBack):
                        _join(self.host, known)

    def note(self, stream: int, found: tuple[Access, ...]) -> None:
        self.past += [(stream, self.submitted[stream], access) for access in found]

    def note_free(self, buffer: int) -> None:
        # Its memory may come back as another buffer's, on the owner's stream, which has waited for
        # all users: nothing of it is left to conflict with.
        self.past = [entry for entry in self.past if entry[2][0] != buffer]

    def add(self, operation: Operation) -> None:
        """Append an operation of the program, behind the waits that it needs."""
        size, thread = self.program.size, operation.thread
        if isinstance(operation, (Allocate, Free)):
            buffer = operation.buffer
            if buffer in self.owners:
                owner = self.owners[buffer]
                self.before(owner, owner, [(buffer, 0, size, WRITE)], thread)
                self.note_free(buffer)
                del self.owners[buffer]
        elif isinstance(operation, Collective):
            wanted = list(accesses(operation, size))
            self.before(_COMMUNICATOR, operation.stream, wanted, thread)
        else:
            found = list(accesses(operation, size))
            if found:
                stream: int = getattr(operation, "stream", 0)
                self.before(stream, stream, found, thread)
        self.emit(operation)


def _join(clock: _Clock, other: _Clock) -> None:
    for stream, place in list(other.items()):
        clock[stream] = max(clock.get(stream, 0), place)


def ordered(program: Program, *, skip: Collection[Hazard] = ()) -> Program:
    """Return the program with a wait before each access that may conflict with an earlier one.

    What it then does is the same under every schedule. Waits that only hazards in `skip` call for
    are left out: a fault, planted to be found.
    """
    orders = _Orders(program, skip)
    for operation in program.performed:
        orders.add(operation)
    return Program(tuple(orders.out), program.streams, program.buffers, program.size)
