"""Races between streams: the trace of a run, its happens-before analysis, and the reports.

An `Analyser` is fed the records of a trace (see `_records` for their form) and gives the races: the
pairs of conflicting accesses that no wait orders, each with the wait that is missing. They are
shown as text, JSON, a trace for Perfetto and a picture. Traces are kept in files of JSON lines.
`watch` does all of that for a block of a program.
"""

from accel_streams.races._analyse import Analyser
from accel_streams.races._declare import kernel
from accel_streams.races._perfetto import write_perfetto
from accel_streams.races._picture import draw_timeline
from accel_streams.races._race import Kind, Operation, Race, StreamNames
from accel_streams.races._records import READ, WRITE, Access, Record, Shape, Source, StreamKey
from accel_streams.races._report import render_text, to_json
from accel_streams.races._strides import access
from accel_streams.races._trace import (
    FORMAT_VERSION,
    Trace,
    TraceHeader,
    TraceWriter,
    load_trace,
    save_trace,
)
from accel_streams.races._watch import Watch, watch

__all__ = [
    "FORMAT_VERSION",
    "READ",
    "WRITE",
    "Access",
    "Analyser",
    "Kind",
    "Operation",
    "Race",
    "Record",
    "Shape",
    "Source",
    "StreamKey",
    "StreamNames",
    "Trace",
    "TraceHeader",
    "TraceWriter",
    "Watch",
    "access",
    "draw_timeline",
    "kernel",
    "load_trace",
    "render_text",
    "save_trace",
    "to_json",
    "watch",
    "write_perfetto",
]
