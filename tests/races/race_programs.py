"""Programs over streams, events and memory, by hand or at random, as the records of their trace."""

from __future__ import annotations

import random
from typing import Any

from accel_streams.races import READ, WRITE, Access, Record, StreamKey

BOTH = READ | WRITE
STREAMS: tuple[StreamKey, ...] = ((0, 0), (1, 0), (0, 1), (1, 1))


class Recorder:
    """Writes down what a host program would submit. Every operation has a place of its own."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.thread = 0
        self._seq = 0
        self._blocks = 0
        self._owners: dict[int, StreamKey] = {}
        self._recorded: dict[str, int] = {}

    def add(self, kind: str, *fields: Any) -> int:
        self._seq += 1
        self.records.append((kind, self._seq, self.thread, *fields))
        return self._seq

    def _source(self) -> tuple[str, int, str]:
        return ("program.py", self._seq + 1, "main")

    def alloc(self, stream: StreamKey, nbytes: int = 16) -> int:
        self._blocks += 1
        self._owners[self._blocks] = stream
        self.add("alloc", stream, self._blocks, nbytes, self._source())
        return self._blocks

    def launch(self, stream: StreamKey, *accesses: Access, name: str = "op") -> int:
        return self.add("launch", stream, name, accesses, self._source())

    def read(self, stream: StreamKey, block: int, lo: int = 0, hi: int = 16) -> int:
        return self.launch(stream, (block, lo, hi, READ), name="read")

    def write(self, stream: StreamKey, block: int, lo: int = 0, hi: int = 16) -> int:
        return self.launch(stream, (block, lo, hi, WRITE), name="write")

    def record(self, stream: StreamKey, event: str) -> int:
        before = self._recorded.get(event)
        recorded = self._recorded[event] = self.add("record", stream, self._source())
        if before is not None:
            self.add("drop", before)  # The event now stands for the new recording.
        return recorded

    def wait(self, stream: StreamKey, event: str) -> None:
        # An event that was never recorded is waited for in no time, and leaves no record.
        if event in self._recorded:
            self.add("wait", stream, self._recorded[event], self._source())

    def edge(self, producer: StreamKey, consumer: StreamKey) -> None:
        self.record(producer, "edge")
        self.wait(consumer, "edge")

    def collective(self, stream: StreamKey, communicator: StreamKey, *accesses: Access) -> int:
        self.edge(stream, communicator)
        return self.launch(communicator, *accesses, name="fccl::all_reduce")

    def synchronize_event(self, event: str) -> None:
        if event in self._recorded:
            self.add("sync_event", self._recorded[event], self._source())

    def synchronize_stream(self, stream: StreamKey, name: str = "") -> None:
        self.add("sync_stream", stream, name, self._source())

    def synchronize_device(self, device: int) -> None:
        self.add("sync_device", device, self._source())

    def record_stream(self, block: int, stream: StreamKey) -> None:
        self.add("record_stream", stream, block)

    def free(self, block: int) -> None:
        self.add("free", self._owners[block], block)

    def reuse(self, block: int) -> None:
        self.add("reuse", self._owners[block], block)

    def name(self, block: int, label: str) -> None:
        self.add("name", block, label)

    def release(self, token: int) -> None:
        self.add("release", token)

    def acquire(self, token: int) -> None:
        self.add("acquire", token)

    def hand_over(self, thread: int, token: int = 1) -> None:
        """Go on in another host thread, which knows what this one knows."""
        self.release(token)
        self.thread = thread
        self.acquire(token)


def random_program(
    rng: random.Random,
    *,
    operations: int = 12,
    streams: int = 4,
    nbytes: int = 8,
    care: float | None = None,
) -> list[Record]:
    """Return a program of up to ``operations`` launches on 2 to ``streams`` streams.

    It re-records events, waits for them early, late and never, touches overlapping and strided
    views, frees memory with and without record_stream, and synchronises in every way. Most have two
    host threads, with and without hand-overs. ``care`` is how probable it is that an access waits
    for another stream first: with 1 the program has no race, by default it varies.
    """
    program = Recorder()
    used = list(STREAMS[: rng.randint(2, streams)])
    if rng.random() < 0.3:
        used = [stream for stream in used if stream[0] == 0] or used
        used += [(0, 2)]
    live: list[int] = []
    freed: list[int] = []
    events = ["a", "b", "c"][: rng.randint(1, 3)]
    cuts = sorted({0, nbytes, *(rng.randrange(nbytes) for _ in range(rng.randint(0, 3)))})
    launches = rng.randint(2, operations)
    # Careless programs race everywhere; careful ones show false alarms.
    careful = rng.choice((0.0, 0.5, 0.8, 0.95)) if care is None else care

    def interval() -> tuple[int, int]:
        lo, hi = sorted(rng.sample(range(len(cuts)), 2))
        return cuts[lo], cuts[hi]

    # Rows, columns and lattices of the block as a matrix.
    shapes: list[tuple[int, tuple[int, ...]]] = [
        (lo, (width, count, stride))
        for width, count, stride in ((1, 4, 2), (2, 2, 4), (1, 2, 4), (1, 3, 3), (2, 2, 3))
        for lo in range(nbytes)
        if lo + (count - 1) * stride + width <= nbytes
    ]
    shapes += [(lo, (1, 2, 4, 2, 2)) for lo in range(nbytes - 6)]
    strided = rng.choice((0.0, 0.3, 0.9))

    def access() -> Access:
        # Work that was not submitted yet may hold on to memory that its owner has dropped.
        block = rng.choice(live + freed if care is None and rng.random() < 0.2 else live)
        mode = rng.choice((READ, WRITE, BOTH))
        if rng.random() < strided:
            lo, shape = rng.choice(shapes)
            steps = zip(shape[1::2], shape[2::2], strict=True)
            hi = lo + shape[0] + sum((count - 1) * stride for count, stride in steps)
            return (block, lo, hi, mode, shape)
        return (block, *interval(), mode)

    # How often another host thread goes on, and how often it is told.
    switching, telling = rng.choice((0.0, 0.2, 0.5)), rng.choice((0.0, 0.5, 0.9))
    released: list[int] = []
    for program.thread in (1, 0):
        program.release(9)

    def order(stream: StreamKey) -> None:
        for other in used:
            if other != stream and rng.random() < careful:
                program.edge(other, stream)

    def allocate() -> None:
        stream = rng.choice(used)
        # The allocator hands out what was freed on the stream before it asks for more.
        for block in [block for block in freed if program._owners[block] == stream]:
            program.reuse(block)
            freed.remove(block)
        live.append(program.alloc(stream, nbytes))

    if rng.random() < 0.2:
        live.append(-1)  # Memory from before the trace began.
        program._owners[-1] = rng.choice(used)
    else:
        allocate()
    while launches > 0:
        if rng.random() < switching:
            if care is not None or rng.random() < telling:
                program.hand_over(1 - program.thread)
            else:
                program.thread = 1 - program.thread
        if rng.random() < 0.05:
            released.append(rng.randint(2, 4))
            program.release(released[-1])
        elif released and rng.random() < 0.1:
            program.acquire(rng.choice(released))
        action = rng.random()
        stream = rng.choice(used)
        if care is None and switching and launches > 1 and rng.random() < 0.05:
            # What else one thread learns from another: by an event, by memory that it gets, and by
            # memory that comes back.
            launches -= 2
            used_block = access()
            program.launch(stream, used_block)
            program.synchronize_stream(stream)
            how = rng.random()
            if how < 0.3:
                owner = rng.choice(used)
                fresh = program.alloc(owner, nbytes)
                live.append(fresh)
                program.thread = 1 - program.thread
                program.launch(rng.choice(used), (fresh, 0, nbytes, READ), used_block)
            elif how < 0.6:
                program.record(rng.choice(used), events[0])
                program.thread = 1 - program.thread
                program.wait(rng.choice(used), events[0])
                program.launch(rng.choice(used), used_block)
            elif used_block[0] in live and len(live) > 1:
                live.remove(used_block[0])
                program.free(used_block[0])
                program.thread = 1 - program.thread
                program.reuse(used_block[0])
            continue
        if action < 0.45:
            launches -= 1
            order(stream)
            program.launch(stream, *(access() for _ in range(rng.choice((1, 1, 1, 2, 3)))))
        elif action < 0.50:
            launches -= 1
            order(stream)
            communicator = rng.choice(used)
            program.collective(stream, communicator, access())
            if rng.random() < 0.7:
                program.edge(communicator, rng.choice(used))
        elif action < 0.62:
            program.record(stream, rng.choice(events))
        elif action < 0.78:
            program.wait(stream, rng.choice(events))
        elif action < 0.80:
            program.synchronize_event(rng.choice(events))
        elif action < 0.82:
            program.synchronize_stream(stream, rng.choice(("", "item")))
        elif action < 0.83:
            program.synchronize_device(stream[0])
        elif action < 0.87 and len(live) < 3:
            allocate()
        elif action < 0.92:
            program.record_stream(rng.choice(live), stream)
        elif action < 0.97:
            block = live.pop(rng.randrange(len(live)))
            order(program._owners[block])
            program.free(block)
            freed.append(block)
            if not live:
                allocate()
        elif freed:
            program.reuse(freed.pop())
    return program.records


def with_times(records: list[Record], *, cost: int = 2000) -> list[Record]:
    """Add the ``ran`` records of an in-order run on a device that overlaps all it may."""
    out: list[Record] = []
    clocks: dict[StreamKey, int] = {}
    recorded: dict[int, int] = {}
    host = order = 0
    for record in records:
        out.append(record)
        kind, seq = record[0], record[1]
        if kind not in ("launch", "record", "wait"):
            continue
        host += 500
        start = max(clocks.get(record[3], 0), host)
        end = start
        if kind == "launch":
            end += cost + sum(hi - lo for _, lo, hi, _ in record[5])
        elif kind == "wait":
            end = max(start, recorded[record[4]])
        else:
            recorded[seq] = start
        clocks[record[3]] = end
        out.append(("ran", seq, order, start, end))
        order += 1
    return out


DEFAULT, SIDE, REDUCTION, COMMUNICATOR = (0, 0), (0, 1), (0, 2), (0, 3)
STREAM_NAMES = {
    DEFAULT: "init",
    SIDE: "side1",
    REDUCTION: "reduction_stream",
    COMMUNICATOR: "fccl",
}
_ZERO = "/usr/lib/python3/site-packages/deepspeed/runtime/zero/stage_1_and_2.py"


class DoubleBuffer(Recorder):
    """Gradients copied from two streams into two buckets in turn, and reduced on a third.

    The waits of `waits` are made: ``producers`` (the reduction waits for both producers),
    ``release`` (a producer waits for the last reduction of the bucket), ``allocation`` (a producer
    waits for the work that the memory of the buckets may still have queued).
    """

    ALL = frozenset({"producers", "release", "allocation"})

    def __init__(self, waits: frozenset[str] = ALL, *, fills: int = 4, gradients: int = 4) -> None:
        super().__init__()
        self.line = ("", 0, "")
        self.waits = waits
        size = 1024
        self.weights = self.at(11, "__init__").alloc(DEFAULT, size)
        self.averaged = self.alloc(DEFAULT, size)
        self.edge(DEFAULT, SIDE)
        self.edge(DEFAULT, REDUCTION)
        self.at(2120, "setup_buckets")
        self.buckets = [self.alloc(DEFAULT, size * gradients) for _ in range(2)]
        for index, bucket in enumerate(self.buckets):
            self.name(bucket, f"ipg_buckets[bf16].buffer[{index}]")
        if "allocation" in waits:
            self.edge(DEFAULT, SIDE)
        for fill in range(fills):
            bucket = self.buckets[fill % 2]
            for slot in range(gradients):
                producer = (DEFAULT, SIDE)[(fill + slot) % 2]
                self.gradient(producer, bucket, slot * size, size, f"released{fill % 2}")
            self.reduce(bucket, size * gradients, f"released{fill % 2}")

    def at(self, line: int, function: str) -> DoubleBuffer:
        self.line = (_ZERO, line, function)
        return self

    def _source(self) -> tuple[str, int, str]:
        return self.line

    def gradient(self, stream: StreamKey, bucket: int, lo: int, size: int, release: str) -> None:
        self.line = ("autograd", 0, "MmBackward0")
        gradient = self.alloc(stream, size)
        for _ in range(3):
            self.launch(stream, (self.weights, 0, size, READ), name="aten::mm")
        self.launch(stream, (gradient, 0, size, WRITE), name="aten::mm")
        self.at(1456, "reduce_independent_p_g_buckets_and_remove_grads")
        if "release" in self.waits:
            self.wait(stream, release)
        copied = (gradient, 0, size, READ), (bucket, lo, lo + size, WRITE)
        self.launch(stream, *copied, name="aten::copy_")
        self.free(gradient)

    def reduce(self, bucket: int, nbytes: int, release: str) -> None:
        self.at(1613, "average_tensor").edge(DEFAULT, REDUCTION)
        if "producers" in self.waits:
            self.edge(SIDE, REDUCTION)
        whole = (bucket, 0, nbytes, BOTH)
        self.at(1497, "gradient_reduction_w_predivide").launch(REDUCTION, whole, name="aten::div_")
        self.at(1498, "gradient_reduction_w_predivide")
        self.collective(REDUCTION, COMMUNICATOR, whole)
        self.edge(COMMUNICATOR, REDUCTION)
        read = (bucket, 0, nbytes, READ), (self.averaged, 0, 1024, WRITE)
        self.at(1528, "allreduce_and_copy").launch(REDUCTION, *read, name="aten::copy_")
        self.record(REDUCTION, release)
