"""What to show of a trace so that a person sees one race: which operations, and where."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from accel_streams.races._race import Race
from accel_streams.races._records import StreamKey
from accel_streams.races._timeline import Edge, Slice, Timeline

__all__ = ["Axis", "Scene", "Swarm", "choose_scene", "focus_of"]

# Operations on the buffer shown before and after the pair, and on each side of a cut between them.
_AROUND: Final = 5
_BESIDE_CUT: Final = 4
# Widths on the axis: the narrowest operation, idle time, between touching operations, a cut.
_NARROWEST: Final = 2.0
_IDLE: Final = 0.35
_TOUCHING: Final = 0.05
_CUT: Final = 2.6


class Axis:
    """Virtual time, squeezed and stretched so that every shown operation can hold its name.

    The order of starts and ends is kept, and so is what overlaps what; lengths are not.
    """

    def __init__(self, shown: Sequence[Slice], cut: tuple[int, int] | None) -> None:
        spans = [_ticks(each) for each in shown]
        self.ticks = sorted({tick for span in spans for tick in span})
        index = {tick: number for number, tick in enumerate(self.ticks)}
        position = 0.0
        self.positions = [position]
        for before, after in itertools.pairwise(self.ticks):
            position += _TOUCHING if after // _PARTS == before // _PARTS else _IDLE
            if cut is not None and before // _PARTS >= cut[0] and after // _PARTS >= cut[1]:
                position += _CUT
                cut = None
            self.positions.append(position)
        # From the left, so that what is widened stays so: all that follows moves with it.
        for start, end in sorted(((index[a], index[b]) for a, b in spans), key=lambda s: s[::-1]):
            lacking = _NARROWEST - (self.positions[end] - self.positions[start])
            if lacking > 0:
                for number in range(end, len(self.positions)):
                    self.positions[number] += lacking

    def span(self, each: Slice) -> tuple[float, float]:
        """Return where a shown operation begins and ends."""
        start, end = _ticks(each)
        return self._at(start), self._at(end)

    def after(self, time: int) -> float:
        """Return the position of a moment, right of what ends then."""
        return self._at(time * _PARTS)

    def before(self, time: int) -> float:
        """Return the position of a moment, left of what starts then."""
        return self._at(time * _PARTS + _PARTS - 1)

    def _at(self, tick: int) -> float:
        number = bisect.bisect_right(self.ticks, tick)
        if number == 0:
            return self.positions[0] - _IDLE
        if number == len(self.ticks):
            return self.positions[-1] + (0 if tick == self.ticks[-1] else _IDLE)
        before, after = self.ticks[number - 1], self.ticks[number]
        left, right = self.positions[number - 1], self.positions[number]
        return left + (right - left) * (tick - before) / (after - before)


# A moment has three parts: operations end, memory changes hands, operations start.
_PARTS: Final = 3


def _ticks(each: Slice) -> tuple[int, int]:
    if each.start == each.end:
        return each.start * _PARTS, each.start * _PARTS + _PARTS - 1
    return each.start * _PARTS + _PARTS - 1, each.end * _PARTS


@dataclass(frozen=True, slots=True)
class Swarm:
    """Operations of one stream that don't touch the buffer, too many to be told apart."""

    stream: StreamKey
    start: int
    end: int
    count: int


@dataclass(frozen=True, slots=True)
class Scene:
    """What is shown.

    ``shown`` are the operations on the buffer, in order of time. ``first`` and ``second`` are the
    race, None where there is none. ``cut`` is the stretch of time left out between them and how
    many operations on the buffer fell into it.
    """

    block: int
    lanes: list[StreamKey]
    shown: list[Slice]
    others: list[Swarm]
    edges: list[Edge]
    first: Slice | None
    second: Slice | None
    cut: tuple[int, int, int] | None
    axis: Axis


def focus_of(timeline: Timeline, race: Race | None, buffer: str | None) -> int | None:
    """Return the block to look at: the race's, the one called ``buffer``, or the most shared."""
    if race is not None:
        return race.block
    users: dict[int, set[StreamKey]] = {}
    count: dict[int, int] = {}
    for each in timeline.slices:
        for block, *_ in each.accesses:
            users.setdefault(block, set()).add(each.stream)
            count[block] = count.get(block, 0) + 1
    if buffer is not None:
        return next((b for b in users if timeline.labels.get(b) == buffer), None)
    # A block that somebody took the trouble to name is the better example.
    return max(
        users,
        key=lambda block: (len(users[block]) > 1, block in timeline.labels, count[block], -block),
        default=None,
    )


def choose_scene(
    timeline: Timeline,
    block: int,
    race: Race | None = None,
    window: tuple[int, int] | None = None,
) -> Scene | None:
    """Choose what to show of the accesses to ``block``; None when there are none.

    ``window`` are the first and last seq to show; by default the surroundings of the race.
    """
    pair = () if race is None else (race.first.seq, race.second.seq)
    touching = [
        each
        for each in timeline.slices
        if each.seq in pair or any(access[0] == block for access in each.accesses)
    ]
    touching.sort(key=lambda each: (each.start, each.end, each.seq))
    if window is not None:
        touching = [each for each in touching if window[0] <= each.seq <= window[1]]
    if not touching:
        return None
    ends = [number for number, each in enumerate(touching) if each.seq in pair]
    left, right = (ends[0], ends[-1]) if ends else (0, min(len(touching) - 1, 2 * _AROUND))
    shown, cut = touching, None
    if window is None:
        shown, cut = _surroundings(touching, left, right)
    lanes = sorted({each.stream for each in shown})
    begin, end = min(each.start for each in shown), max(each.end for each in shown)
    by_seq = {each.seq: each for each in shown}
    return Scene(
        block=block,
        lanes=lanes,
        shown=shown,
        others=_swarms(timeline, lanes, shown, begin, end),
        edges=[
            edge
            for edge in timeline.edges
            if edge.recorded.stream != edge.waited.stream
            and edge.recorded.stream in lanes
            and edge.waited.stream in lanes
            and begin <= edge.recorded.start
            and edge.waited.end <= end
            and not (cut and _inside(edge.recorded.start, cut) and _inside(edge.waited.end, cut))
        ],
        first=by_seq.get(pair[0]) if pair else None,
        second=by_seq.get(pair[1]) if pair else None,
        cut=cut,
        axis=Axis(shown, None if cut is None else (cut[0], cut[1])),
    )


def _surroundings(
    touching: list[Slice], left: int, right: int
) -> tuple[list[Slice], tuple[int, int, int] | None]:
    before = touching[max(0, left - _AROUND) : left]
    after = touching[right + 1 : right + 1 + _AROUND]
    between = touching[left : right + 1]
    if len(between) <= 2 * _BESIDE_CUT + 4:
        return before + between + after, None
    head, tail = between[: _BESIDE_CUT + 1], between[-_BESIDE_CUT - 1 :]
    start = max(each.end for each in before + head)
    # What runs on into the cut would be drawn through it: leave it out too.
    while tail and tail[0].start <= start and len(tail) > 1:
        tail = tail[1:]
    shown = before + head + tail + after
    if tail[0].start <= start:
        return shown, None
    return shown, (start, tail[0].start, len(between) - len(head) - len(tail))


def _inside(time: int, cut: tuple[int, int, int]) -> bool:
    return cut[0] < time < cut[1]


def _swarms(
    timeline: Timeline, lanes: list[StreamKey], shown: list[Slice], begin: int, end: int
) -> list[Swarm]:
    """Gather the other launches of each lane between two that are shown."""
    swarms: list[Swarm] = []
    visible = {each.seq for each in shown}
    for lane in lanes:
        gathered: list[Slice] = []
        inside = [
            each
            for each in timeline.slices
            if each.stream == lane
            and (each.kind == "launch" or each.seq in visible)
            and each.start >= begin
            and each.end <= end
        ]
        for each in [*sorted(inside, key=lambda each: (each.start, each.seq)), None]:
            if each is not None and each.seq not in visible:
                gathered.append(each)
            elif gathered:
                swarms.append(
                    Swarm(lane, gathered[0].start, max(g.end for g in gathered), len(gathered))
                )
                gathered = []
    return swarms
