"""A device made of queues, in pure Python: the model in which the ProducerTracker is proved.

The host submits a whole program without ever waiting, as it may on a real device. Then the queues
run in an order that a schedule chooses. Reads and writes take time: they begin and end in separate
steps, so that two of them can overlap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from accel_streams import Capabilities, Ordering, ProducerTracker, StreamId
from accel_streams._tracker import EventPool

__all__ = [
    "Access",
    "ModelBackend",
    "ModelEvent",
    "ModelStream",
    "Schedule",
    "Step",
    "Violation",
    "first_violation",
    "run",
    "submit",
]

GARBAGE = -1


class Access(NamedTuple):
    """A read or write of one part of a memory block, or of all of it (``part`` None)."""

    kind: Literal["read", "write"]
    block: int
    part: int | None
    value: int  # What is written, or (read) nothing.
    expected: tuple[tuple[int, int], ...] = ()  # What is read: the value of each part.


class Violation(NamedTuple):
    """What went wrong first in a run."""

    what: str
    access: Access


@dataclass(eq=False)
class ModelEvent:
    """An event; each recording has a version of its own, and a wait means the latest one."""

    version: int = 0
    device: int | None = None


class ModelStream:
    """A new wrapper each time, as vendors give: only ``stream_id`` tells that two are the same."""

    def __init__(self, device: int, number: int) -> None:
        self.device = device
        self.number = number

    def __eq__(self, other: object) -> NoReturn:
        raise AssertionError("streams must be compared by stream_id")

    __hash__ = None  # type: ignore[assignment]


@dataclass
class ModelBackend:
    """As much of a Backend as the tracker may use, with queues that keep what they were given."""

    queues: dict[StreamId, list[tuple[Any, ...]]] = field(default_factory=dict)
    events: int = 0
    records: int = 0
    waits: list[tuple[StreamId, int]] = field(default_factory=list)

    name = "model"
    device_type = "model"
    api_version = 1
    capabilities = Capabilities(Ordering.ASYNC)
    description = url = ""

    def stream(self, number: int, device: int = 0) -> ModelStream:
        return ModelStream(device, number)

    def stream_id(self, stream: ModelStream) -> StreamId:
        return StreamId("model", stream.device, stream.number)

    def new_event(self, *, timing: bool = False) -> ModelEvent:
        assert not timing
        self.events += 1
        return ModelEvent()

    def record(self, event: ModelEvent, stream: ModelStream) -> None:
        assert event.device in (None, stream.device), "an event belongs to one device"
        event.device = stream.device
        self.records += 1
        event.version = self.records
        self.submit(stream, "record", event.version)

    def wait(self, stream: ModelStream, event: ModelEvent) -> None:
        assert event.version, "an event that was never recorded orders nothing"
        self.waits.append((self.stream_id(stream), event.version))
        self.submit(stream, "wait", event.version)

    def submit(self, stream: ModelStream, kind: str, what: object = None) -> None:
        self.queues.setdefault(self.stream_id(stream), []).append((kind, what))

    def _forbidden(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the tracker must not do this")

    # Some would make the host wait or hold a tensor; the others are none of the tracker's business.
    query = synchronize = keep_alive = probe = accelerator = _forbidden
    current_stream = default_stream = new_stream = use_stream = _forbidden


class Step(NamedTuple):
    """One thing the host does with a buffer: allocate, write or read it, or unrelated work.

    ``refrain``: announce a write, and then don't write. ``flush``: announce a write, read what is
    there, and only then write, as DeepSpeed does with a bucket that is full.
    """

    action: Literal["allocate", "write", "flush", "refrain", "read", "unrelated"]
    stream: int
    buffer: int = 0


Schedule = Callable[[Sequence[StreamId]], StreamId]
"""Chooses which of the streams that can go on does."""

MakeTracker = Callable[[ModelBackend, EventPool], ProducerTracker]


class _Buffer:
    """What the host knows of one buffer, and what sequential execution would put there."""

    def __init__(self, tracker: ProducerTracker) -> None:
        self.tracker = tracker
        self.block = -1
        self.contents: dict[int, int] = {}
        self.fill = 0
        self.next_part = 0
        self.read_since_write = False

    def written(self) -> tuple[int, int]:
        """Return the part and the value of the next write, and take them as written."""
        if self.read_since_write:
            self.next_part, self.read_since_write = 0, False
        self.fill += 1
        self.next_part += 1
        self.contents[self.next_part - 1] = self.fill
        return self.next_part - 1, self.fill


def submit(backend: ModelBackend, program: Sequence[Step], make: MakeTracker) -> None:
    """Submit ``program`` with its buffers' trackers in between, as a training loop would."""
    pool = EventPool(backend)
    buffers = [_Buffer(make(backend, pool)) for _ in range(1 + max(s.buffer for s in program))]
    blocks = 0
    for step in program:
        buffer, stream = buffers[step.buffer], backend.stream(step.stream)
        if step.action == "unrelated":
            backend.submit(stream, "unrelated")
        elif step.action == "allocate" or buffer.block < 0:
            # The allocator hands out memory whose former user is still queued on this stream.
            buffer.block = blocks
            blocks += 1
            buffer.contents, buffer.next_part, buffer.read_since_write = {}, 0, False
            backend.submit(stream, "access", Access("write", buffer.block, None, GARBAGE))
            buffer.tracker.allocated(stream)
        elif step.action == "refrain":
            buffer.tracker.before_write(stream)
        elif step.action == "read":
            _read(backend, buffer, step.stream)
        else:
            buffer.tracker.before_write(stream)
            if step.action == "flush":
                _read(backend, buffer, step.stream)
            access = Access("write", buffer.block, *buffer.written())
            backend.submit(stream, "access", access)
            buffer.tracker.after_write(backend.stream(step.stream))


def _read(backend: ModelBackend, buffer: _Buffer, number: int) -> None:
    buffer.read_since_write = True
    expected = tuple(sorted(buffer.contents.items()))
    buffer.tracker.before_read(backend.stream(number))
    access = Access("read", buffer.block, None, 0, expected)
    backend.submit(backend.stream(number), "access", access)
    buffer.tracker.after_read(backend.stream(number))


def run(queues: dict[StreamId, list[tuple[Any, ...]]], schedule: Schedule) -> Violation | None:
    """Run the queues, the schedule choosing among the streams that can go on."""
    waiting = {stream_id: deque(queue) for stream_id, queue in queues.items()}
    recorded: set[int] = set()
    active: dict[StreamId, Access] = {}
    memory: dict[int, dict[int, int]] = {}
    while any(waiting.values()):
        ready = [
            stream_id
            for stream_id, queue in waiting.items()
            if queue and (queue[0][0] != "wait" or queue[0][1] in recorded)
        ]
        assert ready, "deadlock: every stream waits for another"
        stream_id = schedule(ready)
        kind, what = waiting[stream_id][0]
        if kind == "access" and stream_id not in active:
            for other in active.values():
                if _conflict(what, other):
                    return Violation(f"overlaps {other}", what)
            active[stream_id] = what
            continue
        waiting[stream_id].popleft()
        if kind == "record":
            recorded.add(what)
        elif kind == "access":
            del active[stream_id]
            block = memory.setdefault(what.block, {})
            if what.kind == "read":
                for part, value in what.expected:
                    if block.get(part, GARBAGE) != value:
                        return Violation(f"part {part} is {block.get(part, GARBAGE)}", what)
                if GARBAGE not in block:
                    return Violation("read before the memory's former user had finished", what)
            elif what.part is None:
                block.clear()
                block[GARBAGE] = GARBAGE  # Marks that the former user has finished.
            else:
                block[what.part] = what.value
    return None


def _conflict(one: Access, other: Access) -> bool:
    return (
        one.block == other.block
        and "write" in (one.kind, other.kind)
        and (one.part is None or other.part is None or one.part == other.part)
    )


def first_violation(
    program: Sequence[Step],
    schedule: Schedule,
    make: MakeTracker,
) -> Violation | None:
    """Submit and run ``program``; return what went wrong first, None when nothing did."""
    backend = ModelBackend()
    submit(backend, program, make)
    return run(backend.queues, schedule)
