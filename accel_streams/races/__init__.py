"""Races between streams: the trace of a run, its happens-before analysis, and the reports."""

from accel_streams.races._analyse import Analyser
from accel_streams.races._race import Operation, Race
from accel_streams.races._records import READ, WRITE, Record, StreamKey

__all__ = ["READ", "WRITE", "Analyser", "Operation", "Race", "Record", "StreamKey"]
