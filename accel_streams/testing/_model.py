"""A device in pure Python that runs programs: small enough to be seen to be right.

Streams are queues. The host goes through the program and submits; when it waits, a schedule picks
which of the streams whose head may run goes on, until what the host waits for is done. The
allocator is a caching one, with a pool for each stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from accel_streams.explore._delays import Delay
from accel_streams.explore._operations import Operation as Node
from accel_streams.explore._search import Execution
from accel_streams.testing._program import (
    WRITE,
    Add,
    Allocate,
    Collective,
    Copy,
    Fill,
    Finish,
    Free,
    Multiply,
    Operation,
    Program,
    ReadBack,
    Record,
    RecordStream,
    SyncDevice,
    SyncEvent,
    SyncStream,
    Wait,
    accesses,
)

__all__ = ["ModelProgram", "all_outcomes"]

GARBAGE = -1
COMMUNICATOR = -1  # the number of the communicator's stream

Pick = Callable[[Sequence["_Entry"]], "_Entry"]


@dataclass(slots=True)
class _Entry:
    """One piece of queued work."""

    index: int
    name: str
    stream: int
    what: str
    run: Callable[[], None]
    waits_for: _Entry | None = None
    accesses: list[tuple[int, int, int, int]] = field(default_factory=list)
    follows: tuple[int, ...] = ()
    done: bool = False


class _Device:
    """One run of one program."""

    def __init__(self, program: Program, pick: Pick) -> None:
        self.program = program
        self.pick = pick
        self.entries: list[_Entry] = []
        self.order: list[int] = []
        self.polled = False
        self.seen: list[list[int]] = []
        self.queues: dict[int, deque[_Entry]] = {}
        # Pieces of memory; a buffer names the one it has, and its stream.
        self.memory = [[index + 1] * program.size for index in range(program.buffers)]
        self.buffers: list[tuple[int, int] | None] = [(i, 0) for i in range(program.buffers)]
        self.recorded: dict[int, list[int]] = {}  # streams, by piece
        self.freed: dict[int, list[int]] = {}
        self.deferred: list[tuple[int, int, list[_Entry]]] = []
        self.pool: dict[int, list[int]] = {}
        self.events: dict[int, _Entry] = {}
        self.works: dict[int, _Entry] = {}
        self.number = self.own = 0
        self.last: dict[int, int] = {}
        self.host: set[int] = set()  # what the host has waited for

    # Submitting

    def submit(
        self,
        stream: int,
        what: str,
        run: Callable[[], None] = lambda: None,
        *,
        waits_for: _Entry | None = None,
        own: bool = False,
    ) -> _Entry:
        if own:
            self.own += 1
        else:
            self.number, self.own = self.number + 1, 0
        name = f"{self.number}.{self.own}" if own else str(self.number)
        follows = set(self.host)
        if stream in self.last:
            follows.add(self.last[stream])
        if waits_for is not None:
            follows.add(waits_for.index)
        entry = _Entry(len(self.entries), name, stream, what, run, waits_for)
        entry.follows = tuple(sorted(follows))
        self.last[stream] = entry.index
        self.entries.append(entry)
        self.queues.setdefault(stream, deque()).append(entry)
        return entry

    def perform(self, operation: Operation) -> None:
        """Do what the host does for one operation."""
        match operation:
            case Fill(stream) | Add(stream) | Multiply(stream) | Copy(stream):
                self.launch(stream, operation)
            case Collective(stream, _, _, _, work):
                issued = self.submit(stream, "event record")
                self.submit(COMMUNICATOR, "event wait", waits_for=issued)
                self.launch(COMMUNICATOR, operation)
                self.works[work] = self.submit(COMMUNICATOR, "event record")
            case Finish(stream, work):
                if work in self.works:
                    self.submit(stream, "event wait", waits_for=self.works[work])
            case Record(stream, event):
                self.events[event] = self.submit(stream, "event record")
            case Wait(stream, event):
                if event in self.events:
                    self.submit(stream, "event wait", waits_for=self.events[event])
            case Allocate(stream, buffer):
                self.free(buffer)
                self.allocate(stream, buffer)
            case Free(buffer):
                self.free(buffer)
            case RecordStream(buffer, stream):
                piece, owner = self.bound(buffer)
                streams = self.recorded.setdefault(piece, [])
                if stream != owner and stream not in streams:
                    streams.append(stream)
            case ReadBack(stream):
                values = self.launch(stream, operation)
                self.wait_for([stream])
                self.seen.append(values)
            case SyncStream(stream):
                self.run_until(self.submit(stream, "event record"))
            case SyncEvent(event):
                if event in self.events:
                    self.run_until(self.events[event])
            case SyncDevice():
                self.wait_for(self.queues)

    def launch(self, stream: int, operation: Operation) -> list[int]:
        """Queue what the operation computes; return the list that a read fills."""
        pieces = {b: self.bound(b)[0] for b, *_ in accesses(operation, self.program.size)}
        values: list[int] = []

        def run() -> None:
            _compute(operation, {b: self.memory[piece] for b, piece in pieces.items()}, values)

        entry = self.submit(stream, str(operation), run)
        entry.accesses += [
            (pieces[buffer], lo, hi, mode)
            for buffer, lo, hi, mode in accesses(operation, self.program.size)
        ]
        return values

    def bound(self, buffer: int) -> tuple[int, int]:
        found = self.buffers[buffer]
        assert found is not None, "the program touches a buffer that is not there"
        return found

    # Memory

    def free(self, buffer: int) -> None:
        found = self.buffers[buffer]
        if found is None:
            return
        self.buffers[buffer] = None
        piece, owner = found
        streams = self.recorded.pop(piece, [])
        if streams:
            points = [self.submit(stream, "allocator", own=True) for stream in streams]
            self.deferred.append((piece, owner, points))
        else:
            self.freed.setdefault(owner, []).append(piece)

    def allocate(self, stream: int, buffer: int) -> None:
        self.polled |= bool(self.deferred)
        for piece, owner, points in list(self.deferred):
            if all(point.done for point in points):
                self.freed.setdefault(owner, []).append(piece)
                self.deferred.remove((piece, owner, points))
        pieces = self.freed.pop(stream, [])
        if pieces:
            fill = self.submit(stream, "allocator", lambda: self.spoil(pieces), own=True)
            fill.accesses += [(piece, 0, self.program.size, WRITE) for piece in pieces]
        pool = self.pool.setdefault(stream, [])
        pool += pieces
        if not pool:
            pool.append(len(self.memory))
            self.memory.append([GARBAGE] * self.program.size)
        self.buffers[buffer] = (pool.pop(), stream)

    def spoil(self, pieces: Sequence[int]) -> None:
        for piece in pieces:
            self.memory[piece][:] = [GARBAGE] * self.program.size

    # Running

    def ready(self) -> list[_Entry]:
        heads = (queue[0] for queue in self.queues.values() if queue)
        return [head for head in heads if head.waits_for is None or head.waits_for.done]

    def step(self) -> None:
        entry = self.pick(self.ready())
        entry.run()
        entry.done = True
        self.queues[entry.stream].popleft()
        self.order.append(entry.index)

    def run_until(self, entry: _Entry) -> None:
        while not entry.done:
            self.step()
        self.host.add(entry.index)

    def wait_for(self, streams: Any) -> None:
        wanted = [self.entries[self.last[stream]] for stream in streams if stream in self.last]
        while not all(entry.done for entry in wanted):
            self.step()
        self.host.update(entry.index for entry in wanted)

    def run(self) -> Any:
        for operation in self.program.performed:
            self.perform(operation)
        self.wait_for(self.queues)
        contents = [b if b is None else list(self.memory[b[0]]) for b in self.buffers]
        return self.seen, contents


def _compute(operation: Operation, memory: dict[int, list[int]], values: list[int]) -> None:
    match operation:
        case Fill(_, buffer, lo, hi, value):
            memory[buffer][lo:hi] = [value] * (hi - lo)
        case Add(_, buffer, lo, hi, value):
            memory[buffer][lo:hi] = [number + value for number in memory[buffer][lo:hi]]
        case Multiply(_, buffer, lo, hi, value):
            memory[buffer][lo:hi] = [number * value for number in memory[buffer][lo:hi]]
        case Collective(_, buffer, lo, hi):
            memory[buffer][lo:hi] = [number * 2 for number in memory[buffer][lo:hi]]
        case Copy(_, buffer, lo, hi, source):
            memory[buffer][lo:hi] = memory[source][lo:hi]
        case ReadBack(_, buffer):
            values[:] = memory[buffer]


class ModelProgram:
    """A program on the model device, as something to search."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def run(self, delays: Sequence[Delay]) -> Execution:
        """Run the program in-order but for `delays`."""
        done: set[str] = set()
        awaited: dict[str, set[str]] = {}
        for late, early in delays:
            awaited.setdefault(late, set()).add(early)

        def pick(ready: Sequence[_Entry]) -> _Entry:
            chosen = min(
                ready, key=lambda entry: (bool(awaited.get(entry.name, done) - done), entry.index)
            )
            done.add(chosen.name)
            return chosen

        device = _Device(self._program, pick)
        ended = str(device.run())
        nodes = tuple(
            Node(e.name, e.stream, tuple(e.accesses), e.follows, e.what) for e in device.entries
        )
        return Execution(nodes, tuple(device.order), ended, ended, device.polled)


def all_outcomes(program: Program, *, most: int = 100_000) -> set[str]:
    """Run the program in every order there is, one after the other, and return how it can end.

    It knows nothing of conflicts or of classes: at each step it tries each stream that may go on.
    With more than `most` orders it is a ValueError.
    """
    return set(_every_ending(program, most))


def _every_ending(program: Program, most: int) -> Iterator[str]:
    prefixes: list[list[int]] = [[]]
    tried = 0
    while prefixes:
        prefix = prefixes.pop()
        taken: list[int] = []

        def pick(
            ready: Sequence[_Entry], prefix: list[int] = prefix, taken: list[int] = taken
        ) -> _Entry:
            place = len(taken)
            if place >= len(prefix):
                prefixes.extend([*taken, other] for other in range(1, len(ready)))
            taken.append(prefix[place] if place < len(prefix) else 0)
            return ready[taken[-1]]

        yield str(_Device(program, pick).run())
        tried += 1
        if tried > most:
            raise ValueError(f"the program has more than {most} orders; that is too many to try")
