"""Two slow and simple judges of a trace, which share no code with the analyser.

`by_execution` runs the program in every legal way. Each stream has a queue in which every operation
has the place that it had in the run; it can run once its host thread has submitted it and what is
before it has run, and a wait once its recording has run. A host thread goes through its own acts in
order: it blocks at each synchronisation, and until what it uses exists (an allocation, a recording,
what another thread has released). A pair races when, in some run, the one submitted later runs
while the earlier one has not.

`by_closure` builds the declared order as a graph and takes its transitive closure.

Handing memory out again is no operation of a stream, nothing waits for it. It comes after all that
the stream was given before, after what the host thread knew that frees the memory, and after what
the streams named by record_stream were given before the free.

What an analyser has to report follows from the pairs. It may report any of them. It must report,
for each access, each byte and each other stream, the pair with the stream's last read and last
write of that byte: those are what an analyser that keeps one access for each stream knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from accel_streams.races import READ, WRITE, Race, Record, StreamKey

# The seq of the earlier and of the later operation, and the block.
Pair = tuple[int, int, int]

QUEUED = ("launch", "record", "wait", "alloc")
SYNCS = ("sync_stream", "sync_event", "sync_device")


@dataclass
class Touch:
    """One access of an operation, of an allocation or of a reuse."""

    seq: int
    stream: StreamKey
    block: int
    bytes: frozenset[int]
    mode: int
    kind: str


def bytes_of(access: tuple[Any, ...]) -> frozenset[int]:
    """Return every byte of an access."""
    _, lo, hi, _, *shapes = access
    if not shapes:
        return frozenset(range(lo, hi))
    width, *dimensions = shapes[0]
    found = {lo}
    for count, stride in zip(dimensions[::2], dimensions[1::2], strict=True):
        found = {byte + k * stride for byte in found for k in range(count)}
    return frozenset(byte + more for byte in found for more in range(width))


def touches(records: list[Record]) -> list[Touch]:
    """Return every access in order of submission."""
    found: list[Touch] = []
    extent: dict[int, int] = {}
    for record in records:
        kind, seq = record[0], record[1]
        if kind == "launch":
            for access in record[5]:
                block, _, hi, mode = access[:4]
                found.append(Touch(seq, record[3], block, bytes_of(access), mode, kind))
                extent[block] = max(extent.get(block, 0), hi)
        elif kind == "alloc":
            extent[record[4]] = record[5]
            whole = frozenset(range(record[5]))
            found.append(Touch(seq, record[3], record[4], whole, WRITE, kind))
        elif kind == "reuse":
            whole = frozenset(range(extent.get(record[4], 0)))
            found.append(Touch(seq, record[3], record[4], whole, WRITE, kind))
    return found


def conflict(first: Touch, second: Touch) -> bool:
    """Return whether the order of two accesses matters."""
    if first.seq >= second.seq or first.block != second.block:
        return False
    if not first.bytes & second.bytes or not (first.mode | second.mode) & WRITE:
        return False
    return first.kind != "alloc" or second.mode != READ


@dataclass
class Needs:
    """What the program says of one record, by seq: the acts and operations that come before it."""

    acts: set[int] = field(default_factory=set)
    runs: set[int] = field(default_factory=set)


def needs(records: list[Record]) -> tuple[dict[int, Needs], dict[int, Needs]]:
    """Return what each host act needs, and what each operation needs to run."""
    acts: dict[int, Needs] = {}
    runs: dict[int, Needs] = {}
    last_act: dict[int, int] = {}
    queues: dict[StreamKey, list[int]] = {}
    allocated: dict[int, int] = {}
    released: dict[int, int] = {}
    recorded: dict[int, set[StreamKey]] = {}
    freed: dict[int, Needs] = {}
    for record in records:
        kind, seq, thread = record[:3]
        act = acts[seq] = Needs()
        if thread in last_act:
            act.acts.add(last_act[thread])
        last_act[thread] = seq
        blocks: list[int] = []
        if kind == "launch":
            blocks = [access[0] for access in record[5]]
        elif kind in ("record_stream", "free"):
            blocks = [record[4]]
        act.acts |= {allocated[block] for block in blocks if block in allocated}
        if kind == "wait":
            act.acts.add(record[4])
        elif kind == "sync_event":
            act.acts.add(record[3])
            act.runs.add(record[3])
        elif kind == "sync_stream":
            act.runs |= set(queues.get(record[3], ()))
        elif kind == "sync_device":
            for key, queue in queues.items():
                act.runs |= set(queue) if key[0] == record[3] else set()
        elif kind == "acquire" and record[3] in released:
            act.acts.add(released[record[3]])
        elif kind == "release":
            released[record[3]] = seq
        elif kind == "record_stream":
            recorded.setdefault(record[4], set()).add(record[3])
        elif kind == "free":
            end = freed[record[4]] = Needs({seq})
            for key in recorded.get(record[4], ()):
                end.runs |= set(queues.get(key, ()))
        elif kind == "reuse":
            end = freed[record[4]]
            runs[seq] = Needs({seq} | end.acts, set(queues.get(record[3], ())) | end.runs)
        if kind in QUEUED:
            queue = queues.setdefault(record[3], [])
            run = runs[seq] = Needs(set(), set(queue[-1:]))
            if kind != "alloc":  # Which is a place in the stream, no work.
                run.acts.add(seq)
            else:
                allocated[record[4]] = seq
            if kind == "wait":
                run.runs.add(record[4])
            queue.append(seq)
    return acts, runs


def by_closure(records: list[Record]) -> set[tuple[int, int]]:
    """Return every pair of operations that the declared order leaves open."""
    acts, runs = needs(records)
    before_act: dict[int, set[int]] = {}
    before_run: dict[int, set[int]] = {}
    for record in records:
        seq = record[1]
        before_act[seq] = _before(acts[seq], before_act, before_run)
        if seq in runs:
            before_run[seq] = _before(runs[seq], before_act, before_run)
    return {
        (one, other)
        for other in runs
        for one in runs
        if one < other and one not in before_run[other]
    }


def _before(
    need: Needs, before_act: dict[int, set[int]], before_run: dict[int, set[int]]
) -> set[int]:
    known = set(need.runs)
    return known.union(
        *(before_act[seq] for seq in need.acts), *(before_run[seq] for seq in need.runs)
    )


def by_execution(records: list[Record]) -> set[tuple[int, int]]:
    """Return every pair of operations that some legal run executes in the other order."""
    acts, runs = needs(records)
    bit = {seq: 1 << number for number, seq in enumerate(runs)}
    mask = {seq: sum(bit[run] for run in need.runs) for seq, need in runs.items()}
    act_mask = {seq: sum(bit[run] for run in need.runs) for seq, need in acts.items()}
    after: dict[int, int] = dict.fromkeys(runs, 0)
    # A moment: the operations that have run, as bits. How far the host threads have come follows,
    # as to submit early only adds to what can happen.
    todo: list[tuple[int, frozenset[int]]] = [(0, _submitted(acts, act_mask, 0, frozenset()))]
    seen = {0}
    while todo:
        done, submitted = todo.pop()
        for seq, need in runs.items():
            if done & bit[seq] or mask[seq] & ~done or not need.acts <= submitted:
                continue
            after[seq] |= ~done
            following = done | bit[seq]
            if following not in seen:
                seen.add(following)
                todo.append((following, _submitted(acts, act_mask, following, submitted)))
    return {
        (one, other) for other in runs for one in runs if one < other and after[other] & bit[one]
    }


def _submitted(
    acts: dict[int, Needs], mask: dict[int, int], done: int, before: frozenset[int]
) -> frozenset[int]:
    found = set(before)
    for seq, need in acts.items():  # in order of seq, which every need follows
        if seq not in found and not mask[seq] & ~done and need.acts <= found:
            found.add(seq)
    return frozenset(found)


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
    for byte in access.bytes:
        for mode in (READ, WRITE):
            last: dict[StreamKey, Touch] = {}
            for one in found:
                if one.seq >= access.seq:
                    break
                if one.block == access.block and byte in one.bytes and one.mode & mode:
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
                for byte in touch.bytes:
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
