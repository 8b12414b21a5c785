"""Two slow and simple judges of a trace, which share no code with the analyser.

`by_execution` runs the program in every legal way: the device takes the next entry of any stream,
a wait is passed once its recording has run, the host blocks at each synchronisation. A pair races
when, in some run, the one submitted later runs while the earlier one has not.

`by_closure` builds the declared order as a graph and takes its transitive closure.

What an analyser has to report follows from the pairs. It may report any of them. It must report,
for each access, each byte and each other stream, the pair with the stream's last read and last
write of that byte: those are what an analyser that keeps one access for each stream knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from accel_streams.races import READ, WRITE, Race, Record, StreamKey

# The seq of the earlier and of the later operation, and the block.
Pair = tuple[int, int, int]


@dataclass
class Touch:
    """One access of an operation, of an allocation or of a reuse."""

    seq: int
    stream: StreamKey
    block: int
    lo: int
    hi: int
    mode: int
    kind: str
    # Of a reuse: the streams that the allocator knew of, and when the block was freed.
    covered: set[StreamKey] = field(default_factory=set)
    freed_at: int = 0


def touches(records: list[Record]) -> list[Touch]:
    """Return every access in order of submission."""
    found: list[Touch] = []
    extent: dict[int, int] = {}
    covered: dict[int, set[StreamKey]] = {}
    freed: dict[int, int] = {}
    for record in records:
        kind, seq = record[0], record[1]
        if kind == "launch":
            for block, lo, hi, mode in record[5]:
                found.append(Touch(seq, record[3], block, lo, hi, mode, kind))
                extent[block] = max(extent.get(block, 0), hi)
        elif kind == "alloc":
            extent[record[4]] = record[5]
            found.append(Touch(seq, record[3], record[4], 0, record[5], WRITE, kind))
        elif kind == "record_stream":
            covered.setdefault(record[4], set()).add(record[3])
        elif kind == "free":
            freed[record[4]] = seq
        elif kind == "reuse":
            block = record[4]
            touch = Touch(seq, record[3], block, 0, extent.get(block, 0), WRITE, kind)
            touch.covered = covered.get(block, set())
            touch.freed_at = freed[block]
            found.append(touch)
    return found


def conflict(first: Touch, second: Touch) -> bool:
    """Return whether the order of two accesses matters and is not the allocator's business."""
    if first.seq >= second.seq or first.block != second.block:
        return False
    if first.lo >= second.hi or second.lo >= first.hi:
        return False
    if not (first.mode | second.mode) & WRITE:
        return False
    if first.kind == "alloc" and second.mode == READ:
        return False
    if second.kind == "reuse" and first.stream in second.covered:
        return first.seq > second.freed_at
    return True


def by_execution(records: list[Record]) -> set[tuple[int, int]]:
    """Return every pair of operations that some legal run executes in the other order."""
    inverted: set[tuple[int, int]] = set()
    keys = sorted({record[3] for record in records if record[0] in _QUEUED})
    start = _Run(records, 0, dict.fromkeys(keys, ()), dict.fromkeys(keys, 0))
    start.advance_host()
    seen = {start.state()}
    todo = [start]
    while todo:
        run = todo.pop()
        waiting = [entry[1] for queue in run.pending().values() for entry in queue]
        for key, queue in run.pending().items():
            if queue and run.can_run(queue[0]):
                seq = queue[0][1]
                inverted.update((other, seq) for other in waiting if other < seq)
                following = run.after(key)
                if following.state() not in seen:
                    seen.add(following.state())
                    todo.append(following)
    return inverted


_QUEUED = ("launch", "record", "wait", "alloc", "reuse")
_SYNCS = ("sync_stream", "sync_event", "sync_device")


class _Run:
    """A moment of one execution: how far the host and each stream have come."""

    def __init__(
        self,
        records: list[Record],
        host: int,
        queues: dict[StreamKey, tuple[Record, ...]],
        done: dict[StreamKey, int],
    ) -> None:
        self.records = records
        self.host = host
        self.queues = queues
        self.done = done

    def state(self) -> tuple[int, ...]:
        return (self.host, *self.done.values())

    def pending(self) -> dict[StreamKey, tuple[Record, ...]]:
        return {key: queue[self.done[key] :] for key, queue in self.queues.items()}

    def has_run(self, seq: int) -> bool:
        return any(
            entry[1] == seq
            for key, queue in self.queues.items()
            for entry in queue[: self.done[key]]
        )

    def can_run(self, entry: Record) -> bool:
        return entry[0] != "wait" or self.has_run(entry[4])

    def after(self, key: StreamKey) -> _Run:
        following = _Run(
            self.records, self.host, dict(self.queues), {**self.done, key: self.done[key] + 1}
        )
        following.advance_host()
        return following

    def advance_host(self) -> None:
        # To submit early only adds to what can happen, so nothing is lost by always doing so.
        while self.host < len(self.records):
            record = self.records[self.host]
            if record[0] in _QUEUED:
                self.queues[record[3]] += (record,)
            elif record[0] in _SYNCS and self.blocks_host(record):
                return
            self.host += 1

    def blocks_host(self, record: Record) -> bool:
        pending = self.pending()
        if record[0] == "sync_event":
            return not self.has_run(record[3])
        if record[0] == "sync_stream":
            return bool(pending.get(record[3]))
        return any(queue for key, queue in pending.items() if key[0] == record[3])


def by_closure(records: list[Record]) -> set[tuple[int, int]]:
    """Return every pair of queued operations that the declared order leaves open."""
    queued = [record for record in records if record[0] in _QUEUED]
    before: dict[int, set[int]] = {}
    for record in records:
        kind, seq = record[0], record[1]
        earlier = [other for other in queued if other[1] < seq]
        direct: set[int] = set()
        if kind in _QUEUED:
            direct |= {other[1] for other in earlier if other[3] == record[3]}
            # Whatever the host waited for is over when it submits this.
            direct |= {other[1] for other in records if other[1] < seq and other[0] in _SYNCS}
            if kind == "wait":
                direct.add(record[4])
        elif kind == "sync_stream":
            direct |= {other[1] for other in earlier if other[3] == record[3]}
        elif kind == "sync_device":
            direct |= {other[1] for other in earlier if other[3][0] == record[3]}
        elif kind == "sync_event":
            direct.add(record[3])
        before[seq] = direct.union(*(before[other] for other in direct))
    return {
        (one[1], other[1])
        for one in queued
        for other in queued
        if one[1] < other[1] and one[1] not in before[other[1]]
    }


def may_report(records: list[Record], unordered: set[tuple[int, int]]) -> set[Pair]:
    """Return every racing pair."""
    found = touches(records)
    return {
        (one.seq, other.seq, one.block)
        for other in found
        for one in found
        if (one.seq, other.seq) in unordered and conflict(one, other)
    }


def must_report(records: list[Record], unordered: set[tuple[int, int]]) -> set[Pair]:
    """Return the racing pairs that can be told from the last accesses of each stream."""
    found = touches(records)
    return {
        (one.seq, other.seq, one.block)
        for other in found
        for one in _last(found, other)
        if (one.seq, other.seq) in unordered and conflict(one, other)
    }


def _last(found: list[Touch], access: Touch) -> Iterator[Touch]:
    """Give the last reads and writes, by stream, of each byte of ``access`` before it."""
    for byte in range(access.lo, access.hi):
        for mode in (READ, WRITE):
            last: dict[StreamKey, Touch] = {}
            for one in found:
                if one.seq >= access.seq:
                    break
                if one.block == access.block and one.lo <= byte < one.hi and one.mode & mode:
                    last[one.stream] = one
            for one in last.values():
                if mode == WRITE or access.mode & WRITE:
                    yield one


@dataclass(frozen=True)
class Judgement:
    """What an analyser got wrong about one program."""

    missed: set[Pair]
    false_alarms: set[Pair]
    wrong_kinds: set[tuple[Pair, str]]
    racing: set[Pair]
    ordered_conflicts: int

    @property
    def right(self) -> bool:
        return not self.missed and not self.false_alarms and not self.wrong_kinds


def judge(records: list[Record], races: list[Race], *, by_running: bool = True) -> Judgement:
    """Compare reports with what the program can do.

    Every operation of the program needs a place of its own, or reports are merged. Without
    ``by_running`` only the closure is taken, which is much faster for longer programs.
    """
    unordered = by_closure(records)
    if by_running and by_execution(records) != unordered:
        raise AssertionError("the two oracles disagree")
    reported = {(race.first.seq, race.second.seq, race.block): race.kind for race in races}
    racing = may_report(records, unordered)
    found = touches(records)
    conflicts = sum(
        conflict(one, other) and one.stream != other.stream for other in found for one in found
    )
    return Judgement(
        missed=must_report(records, unordered) - set(reported),
        false_alarms=set(reported) - racing,
        wrong_kinds={
            (pair, kind) for pair, kind in reported.items() if kind != kind_of(found, pair)
        },
        racing=racing,
        ordered_conflicts=conflicts - len(racing),
    )


def kind_of(found: list[Touch], pair: Pair) -> str:
    """Name a conflict by what happens to its bytes."""
    done: list[dict[int, int]] = []
    kinds: list[str] = []
    for seq in pair[:2]:
        modes: dict[int, int] = {}
        for touch in found:
            if touch.seq == seq and touch.block == pair[2]:
                kinds.append(touch.kind)
                for byte in range(touch.lo, touch.hi):
                    modes[byte] = modes.get(byte, 0) | touch.mode
        done.append(modes)
    if kinds[-1] == "reuse":
        return "use-after-free"
    if kinds[0] == "alloc":
        return "write-after-write"
    both = [(mode, done[1][byte]) for byte, mode in done[0].items() if byte in done[1]]
    if any(first & WRITE and second & READ for first, second in both):
        return "read-after-write"
    if any(first & READ and second & WRITE for first, second in both):
        return "write-after-read"
    return "write-after-write"
