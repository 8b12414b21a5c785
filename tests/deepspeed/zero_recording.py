"""A backend that runs nothing and records everything, as a trace the race analysis understands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from accel_streams import Capabilities, Ordering, StreamId
from accel_streams.races import READ, WRITE, Analyser, Race

__all__ = ["READ_WRITE", "RecordingBackend", "RecordingStream", "RecordingTensor", "races_in"]

ASYNC = Capabilities(Ordering.ASYNC)
READ_WRITE = READ | WRITE


class RecordingStream:
    """A new wrapper each time, as vendors give: only ``stream_id`` tells that two are the same."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> NoReturn:
        raise AssertionError("streams must be compared by stream_id")

    __hash__ = None  # type: ignore[assignment]


@dataclass(eq=False)
class RecordingEvent:
    seq: int | None = None


@dataclass(eq=False)
class RecordingTensor:
    """A range of elements of a block of memory; its type has one byte."""

    block: int
    owner: int
    low: int
    high: int
    backend: RecordingBackend = field(repr=False)

    def numel(self) -> int:
        return self.high - self.low

    def narrow(self, low: int, numel: int) -> RecordingTensor:
        return RecordingTensor(
            self.block, self.owner, self.low + low, self.low + low + numel, self.backend
        )

    def untyped_storage(self) -> RecordingTensor:
        return self

    def data_ptr(self) -> int:
        return self.block


@dataclass
class RecordingBackend:
    """The Backend protocol without a device, and the few things a program does with memory."""

    capabilities: Capabilities = ASYNC
    records: list[tuple[Any, ...]] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    """Each wait: who waits, and for which stream's event."""
    recorded_events: int = 0
    host_waits: int = 0
    kept_alive: list[tuple[int, int]] = field(default_factory=list)
    """Each block kept alive, and for which stream."""
    labels: dict[str, int] = field(default_factory=dict)
    in_backward: bool = False

    name = "recording"
    device_type = "recording"
    api_version = 1
    description = ""
    url = ""

    def __post_init__(self) -> None:
        self._streams = 1
        self._blocks = 0
        self._current = [0]
        self._owners: dict[int, int] = {}
        self._freed: dict[int, list[int]] = {}

    def probe(self) -> None:
        return None

    # -- the protocol ----------------------------------------------------------------------------

    def current_stream(self, device: object = None, /) -> RecordingStream:
        return RecordingStream(self._current[-1])

    def default_stream(self, device: object = None, /) -> RecordingStream:
        return RecordingStream(0)

    def new_stream(self, device: object = None, /, *, priority: int = 0) -> RecordingStream:
        self._streams += 1
        return RecordingStream(self._streams - 1)

    @contextmanager
    def use_stream(self, stream: RecordingStream) -> Iterator[None]:
        self._current.append(stream.number)
        yield
        self._current.pop()

    def new_event(self, *, timing: bool = False) -> RecordingEvent:
        return RecordingEvent()

    def record(self, event: RecordingEvent, stream: RecordingStream) -> None:
        event.seq = self._add("record", (0, stream.number), None)
        self.recorded_events += 1

    def wait(self, stream: RecordingStream, event: RecordingEvent) -> None:
        assert event.seq is not None, "a wait for an event that was never recorded"
        self.waits.append((stream.number, self.records[event.seq][3][1]))
        self._add("wait", (0, stream.number), event.seq, None)

    def query(self, event: RecordingEvent) -> bool:
        raise AssertionError("nothing here polls")

    def synchronize(self, event: RecordingEvent | None = None, /) -> None:
        self.host_waits += 1
        self.synchronize_device()

    def stream_id(self, stream: RecordingStream) -> StreamId:
        return StreamId("recording", 0, stream.number)

    def keep_alive(self, tensor: Any, stream: RecordingStream) -> None:
        if stream.number == tensor.owner:
            return  # The owner's own work comes first anyway, so an allocator does nothing.
        self.kept_alive.append((tensor.block, stream.number))
        self._add("record_stream", (0, stream.number), tensor.block)

    def accelerator(self) -> Any:
        raise AssertionError("not needed")

    def annotate_stream(self, stream: RecordingStream, label: str) -> None:
        self.labels[label] = stream.number

    def annotate_storage(self, tensor: RecordingTensor, label: str) -> None:
        self.labels[label] = tensor.block

    # -- what a program does -----------------------------------------------------------------------

    def allocate(self, numel: int) -> RecordingTensor:
        """Allocate on the current stream, which takes back what was freed there."""
        owner = self._current[-1]
        for block in self._freed.pop(owner, []):
            self._add("reuse", (0, owner), block)
        self._blocks += 1
        self._owners[self._blocks] = owner
        self._add("alloc", (0, owner), self._blocks, numel, None)
        return RecordingTensor(self._blocks, owner, 0, numel, self)

    def free(self, tensor: RecordingTensor) -> None:
        """Drop the last reference on the host. Freeing twice is none."""
        owner = self._owners.pop(tensor.block, None)
        if owner is not None:
            self._add("free", (0, owner), tensor.block)
            self._freed.setdefault(owner, []).append(tensor.block)

    def launch(self, name: str, *accesses: tuple[RecordingTensor, int]) -> None:
        """Queue an operation on the current stream."""
        spans = tuple((tensor.block, tensor.low, tensor.high, mode) for tensor, mode in accesses)
        self._add("launch", (0, self._current[-1]), name, spans, (name, 1, name))

    def order(self, first: int, then: int) -> None:
        """Make one stream wait for another, not on behalf of what is tested."""
        if first != then:
            seq = self._add("record", (0, first), None)
            self._add("wait", (0, then), seq, None)

    def synchronize_device(self) -> None:
        """Make the host wait, not on behalf of what is tested."""
        self._add("sync_device", 0, None)

    def _add(self, kind: str, *fields: Any) -> int:
        seq = len(self.records)
        self.records.append((kind, seq, 0, *fields))
        return seq


def races_in(backend: RecordingBackend) -> list[Race]:
    """Return the races of what ``backend`` has recorded."""
    analyser = Analyser(device_type="recording")
    analyser.feed(backend.records)
    return analyser.races({})
