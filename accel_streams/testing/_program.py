"""Programs over streams, events and memory, as data: to be drawn at random, printed and run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "Access",
    "Add",
    "Allocate",
    "Collective",
    "Copy",
    "Fill",
    "Finish",
    "Free",
    "Multiply",
    "Operation",
    "Program",
    "ReadBack",
    "Record",
    "RecordStream",
    "SyncDevice",
    "SyncEvent",
    "SyncStream",
    "Wait",
    "accesses",
]

READ, WRITE = 1, 2

Access: TypeAlias = tuple[int, int, int, int]
"""Buffer, first element, element after the last, mode: 1 reads, 2 writes, 3 both."""


@dataclass(frozen=True)
class _Step:
    """What one host thread does."""

    thread: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class _Part(_Step):
    """What is done on a stream to elements ``[lo, hi)`` of a buffer."""

    stream: int
    buffer: int
    lo: int
    hi: int


@dataclass(frozen=True)
class Fill(_Part):
    """Set elements ``[lo, hi)`` of a buffer to `value`, on a stream."""

    value: int


@dataclass(frozen=True)
class Add(_Part):
    """Add `value` to elements ``[lo, hi)``."""

    value: int


@dataclass(frozen=True)
class Multiply(_Part):
    """Multiply elements ``[lo, hi)`` by `value`."""

    value: int


@dataclass(frozen=True)
class Copy(_Part):
    """Copy elements ``[lo, hi)`` of `source` to the same place in `buffer`, another one."""

    source: int


@dataclass(frozen=True)
class Collective(_Part):
    """Sum elements ``[lo, hi)`` over two ranks that hold the same: on the communicator's stream.

    It waits for what `stream` has been given, and nobody waits for it but who finishes `work`. A
    later collective with the same `work` takes its place.
    """

    work: int


@dataclass(frozen=True)
class Finish(_Step):
    """Make `stream` wait for the collective that `work` stands for; for none if there is none."""

    stream: int
    work: int


@dataclass(frozen=True)
class Record(_Step):
    """Record an event, perhaps again; waits issued before keep their meaning."""

    stream: int
    event: int


@dataclass(frozen=True)
class Wait(_Step):
    """Make `stream` wait for the latest recording of an event; for nothing if there is none."""

    stream: int
    event: int


@dataclass(frozen=True)
class Allocate(_Step):
    """Drop a buffer, if it is there, and allocate it on `stream`, with undefined contents."""

    stream: int
    buffer: int


@dataclass(frozen=True)
class Free(_Step):
    """Drop a buffer; operations on it are left out until it is allocated again."""

    buffer: int


@dataclass(frozen=True)
class RecordStream(_Step):
    """Keep the memory of a buffer, once freed, until `stream` has done what it then has."""

    buffer: int
    stream: int


@dataclass(frozen=True)
class ReadBack(_Step):
    """Let the host read a whole buffer, on a stream, and note what it sees."""

    stream: int
    buffer: int


@dataclass(frozen=True)
class SyncStream(_Step):
    """Let the host wait for all that a stream has been given."""

    stream: int


@dataclass(frozen=True)
class SyncEvent(_Step):
    """Let the host wait for an event; for nothing if it was never recorded."""

    event: int


@dataclass(frozen=True)
class SyncDevice(_Step):
    """Let the host wait for everything."""


Operation: TypeAlias = (
    Fill
    | Add
    | Multiply
    | Copy
    | Collective
    | Finish
    | Record
    | Wait
    | Allocate
    | Free
    | RecordStream
    | ReadBack
    | SyncStream
    | SyncEvent
    | SyncDevice
)


def accesses(operation: Operation, size: int) -> tuple[Access, ...]:
    """Return what an operation does to buffers on the device; `size` is that of each buffer."""
    match operation:
        case Fill(_, buffer, lo, hi):
            return ((buffer, lo, hi, WRITE),)
        case Add(_, buffer, lo, hi) | Multiply(_, buffer, lo, hi) | Collective(_, buffer, lo, hi):
            return ((buffer, lo, hi, READ | WRITE),)
        case Copy(_, buffer, lo, hi, source):
            return ((source, lo, hi, READ), (buffer, lo, hi, WRITE))
        case ReadBack(_, buffer):
            return ((buffer, 0, size, READ),)
        case _:
            return ()


@dataclass(frozen=True)
class Program:
    """What a host submits, in this order.

    Stream 0 is the default one. There are `buffers` buffers of `size` 64-bit integers; buffer i
    is on stream 0, filled with i + 1, and the device idle, when the program begins. Each operation
    is submitted by the host thread that it names; the threads take turns, so the order is this one.
    """

    operations: tuple[Operation, ...]
    streams: int = 3
    buffers: int = 2
    size: int = 4

    def __post_init__(self) -> None:
        """Check the numbers."""
        for operation in self.operations:
            for name, limit in (("stream", self.streams), ("buffer", self.buffers)):
                number = getattr(operation, name, 0)
                if not 0 <= number < limit:
                    raise ValueError(f"{operation} names {name} {number}; there are {limit}")
            if isinstance(operation, Copy) and not 0 <= operation.source < self.buffers:
                raise ValueError(f"{operation} copies from a buffer that is not there")
            if isinstance(operation, Copy) and operation.source == operation.buffer:
                raise ValueError(f"{operation} copies a buffer to itself")
            lo, hi = getattr(operation, "lo", 0), getattr(operation, "hi", self.size)
            if not 0 <= lo < hi <= self.size:
                raise ValueError(f"{operation} is not within 0 to {self.size}, or is empty")

    @property
    def performed(self) -> tuple[Operation, ...]:
        """Return the operations without those on buffers that are not there at the time."""
        return tuple(_performed(self.operations, self.buffers))

    def __str__(self) -> str:
        """Return the program as Python that runs; see `to_python`."""
        return self.to_python()

    def to_python(self, backend: str = "accel_streams.backends.cpu_fake:CpuFakeBackend") -> str:
        """Return the program as Python that runs, on the given backend, and prints how it ends."""
        from accel_streams.testing._source import script

        return script(self, backend)


def _buffers(operation: Operation) -> set[int]:
    names = (getattr(operation, name, None) for name in ("buffer", "source"))
    return {name for name in names if name is not None}


def _performed(operations: Sequence[Operation], buffers: int) -> Iterator[Operation]:
    live = set(range(buffers))
    for operation in operations:
        if isinstance(operation, Allocate):
            live.add(operation.buffer)
        elif not _buffers(operation) <= live:
            continue
        if isinstance(operation, Free):
            live.remove(operation.buffer)
        yield operation
