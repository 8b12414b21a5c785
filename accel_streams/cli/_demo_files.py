"""The demo's files: the picture of a race and the trace that Perfetto opens."""

from __future__ import annotations

from pathlib import Path

from accel_streams.cli._demo_verdict import main_race
from accel_streams.explore import RankResult, VariantSummary
from accel_streams.explore._results import identity

__all__ = ["KEPT_RECORDS_PER_LAYER", "write_trace_files"]

# Enough for the first two steps, in which every race of the demo occurs: they take about 1,500
# records a layer.
KEPT_RECORDS_PER_LAYER = 5_000


def write_trace_files(folder: Path, summary: VariantSummary) -> list[Path]:
    """Write the timeline and the trace of the run that shows best what went wrong.

    Of those that were looked at for races, that is one that ended with other parameters than the
    first, else the first, and of its ranks the first one with a race. Return the files; none if no
    race was kept.
    """
    told = main_race(summary.races)
    rank = _most_telling(summary)
    if told is None or rank.trace is None:
        return []
    # Here, because the timeline imports matplotlib.
    from accel_streams.races import Analyser, draw_timeline, load_trace, write_perfetto

    trace = load_trace(rank.trace)
    names = trace.header.stream_names
    analyser = Analyser(device_type=trace.header.device_type)
    analyser.feed(trace.records)
    races = analyser.races(names)
    if not races:
        return []
    # The picture shows the first one: the one that the text tells.
    races.sort(key=lambda race: identity(race.to_json()) != identity(told))
    picture, perfetto = folder / "timeline.png", folder / "trace.perfetto.json"
    draw_timeline(picture, trace.records, races, names)
    write_perfetto(perfetto, trace.records, races, names)
    return [picture, perfetto]


def _most_telling(summary: VariantSummary) -> RankResult:
    checked = [run for run in summary.runs if run.run.check]
    different = [run for run in checked if not summary.agrees(run)]
    run = (different or checked)[0]
    return next((rank for rank in run.ranks if rank.races), run.ranks[0])
