"""A trace in the trace-event format that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each device is a process and each stream a thread; launches are slices on the virtual clock,
recordings and waits are instants. Each race has a track of its own under the process "races", and
its missing edge is drawn as a flow from one operation to the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from accel_streams.races._files import atomic_text
from accel_streams.races._race import Race, StreamNames, stream_label, where
from accel_streams.races._records import READ, WRITE, Record
from accel_streams.races._timeline import Slice, Timeline, read_timeline

__all__ = ["write_perfetto"]

_RACES: Final = 1_000_000
_MODES: Final = {READ: "reads", WRITE: "writes", READ | WRITE: "reads and writes"}


def write_perfetto(
    path: str | os.PathLike[str],
    records: Iterable[Record],
    races: Sequence[Race] = (),
    stream_names: StreamNames | None = None,
    *,
    device_type: str = "fake",
) -> None:
    """Write a trace for Perfetto. ``path`` is replaced only when everything is written."""
    involved = {seq for race in races for seq in (race.first.seq, race.second.seq)}
    timeline = read_timeline(records, involved)
    with atomic_text(path) as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        separator = ""
        for event in _events(timeline, races, stream_names or {}, device_type):
            file.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")


def _events(
    timeline: Timeline, races: Sequence[Race], names: StreamNames, device_type: str
) -> Iterator[dict[str, Any]]:
    streams = sorted({each.stream for each in timeline.slices})
    for device in sorted({device for device, _ in streams}):
        yield _metadata("process_name", device, 0, f"{device_type}:{device}")
    for index, stream in enumerate(streams):
        device, number = stream
        yield _metadata("thread_name", device, number, stream_label(stream, names, device_type))
        yield {**_metadata("thread_sort_index", device, number, ""), "args": {"sort_index": index}}
    involved = {seq for race in races for seq in (race.first.seq, race.second.seq)}
    found: dict[int, Slice] = {}
    for each in timeline.slices:
        if each.seq in involved:
            found[each.seq] = each
        yield _launch(each, timeline) if each.kind == "launch" else _instant(each)
    if races:
        yield _metadata("process_name", _RACES, 0, "races")
    for number, race in enumerate(races):
        first, second = found.get(race.first.seq), found.get(race.second.seq)
        yield from _race(number, race, [each for each in (first, second) if each is not None])


def _metadata(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {"name": value}}


def _launch(each: Slice, timeline: Timeline) -> dict[str, Any]:
    accesses = [
        f"{_MODES.get(mode, mode)} {timeline.labels.get(block, f'block {block}')} [{lo}, {hi})"
        for block, lo, hi, mode, *_ in each.accesses
    ]
    return {
        "ph": "X",
        "cat": "launch" if each.ran else "launch,never ran",
        "name": each.name,
        "pid": each.stream[0],
        "tid": each.stream[1],
        "ts": each.start / 1000,
        # A slice of no length can't carry an arrow.
        "dur": max(each.end - each.start, 1) / 1000,
        "args": {
            "seq": each.seq,
            "source": where(each.source, short=False),
            "accesses": accesses,
        },
    }


def _instant(each: Slice) -> dict[str, Any]:
    return {
        "ph": "i",
        "s": "t",
        "cat": "event",
        "name": each.name,
        "pid": each.stream[0],
        "tid": each.stream[1],
        "ts": each.start / 1000,
        "args": {"seq": each.seq, "source": where(each.source, short=False)},
    }


def _race(number: int, race: Race, ends: list[Slice]) -> Iterator[dict[str, Any]]:
    if not ends:
        return
    begin = min(each.start for each in ends)
    end = max(max(each.end, each.start + 1) for each in ends)
    common: dict[str, Any] = {
        "cat": "race",
        "id": number,
        "pid": _RACES,
        "tid": number,
        "name": f"{race.kind} on {race.buffer}",
    }
    yield {**common, "ph": "b", "ts": begin / 1000, "args": race.to_json()}
    yield {**common, "ph": "e", "ts": end / 1000}
    if len(ends) == 2:
        # An arrow has to point forward in time, and the second may have run first: that is a race.
        for phase, each in zip("sf", sorted(ends, key=lambda each: each.start), strict=True):
            yield {
                "ph": phase,
                "bp": "e",
                "cat": "missing edge",
                "id": number,
                "name": race.missing_edge,
                "pid": each.stream[0],
                "tid": each.stream[1],
                "ts": (each.start + max(each.end - each.start, 1) / 2) / 1000,
            }
