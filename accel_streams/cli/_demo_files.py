"""The demo's files: the picture of a race and the trace that Perfetto opens."""

from __future__ import annotations

from pathlib import Path

from accel_streams.explore import RankResult, VariantSummary

__all__ = ["KEPT_RECORDS", "write_trace_files"]

# Enough for the first two steps of the demo, in which every race of it occurs.
KEPT_RECORDS = 40_000


def write_trace_files(folder: Path, summary: VariantSummary) -> list[Path]:
    """Write the timeline and the trace of the run that shows best what went wrong.

    That is one that ended with other parameters than in-order, else the in-order run, and of its
    ranks the first one with a race. Return the files; none if no trace was kept.
    """
    rank = _most_telling(summary)
    if rank.trace is None:
        return []
    # Here, because the timeline imports matplotlib.
    from accel_streams.races import Analyser, draw_timeline, load_trace, write_perfetto

    trace = load_trace(rank.trace)
    names = trace.header.stream_names
    analyser = Analyser(device_type=trace.header.device_type)
    analyser.feed(trace.records)
    races = analyser.races(names)
    picture, perfetto = folder / "timeline.png", folder / "trace.perfetto.json"
    draw_timeline(picture, trace.records, races, names)
    write_perfetto(perfetto, trace.records, races, names)
    return [picture, perfetto]


def _most_telling(summary: VariantSummary) -> RankResult:
    different = [run for run in summary.runs if not summary.agrees(run)]
    run = (different or summary.runs)[0]
    return next((rank for rank in run.ranks if rank.races), run.ranks[0])
