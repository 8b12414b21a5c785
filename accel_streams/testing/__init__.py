"""Test your own stream code: random programs over streams, and devices to run them on.

`programs` draws them with hypothesis (``pip install 'accel-streams[testing]'``). A program is data:
printed it is Python that runs; `run` runs it on any backend, `explore_model` under every schedule
of a device in pure Python, and `accel_streams.explore.explore_all` on the simulated device.
"""

from __future__ import annotations

from accel_streams.testing._model import all_outcomes
from accel_streams.testing._ordered import Hazard, ordered
from accel_streams.testing._program import (
    Add,
    Allocate,
    Collective,
    Copy,
    Fill,
    Finish,
    Free,
    Multiply,
    Operation,
    Program,
    ReadBack,
    Record,
    RecordStream,
    SyncDevice,
    SyncEvent,
    SyncStream,
    Wait,
)
from accel_streams.testing._run import explore_model
from accel_streams.testing._source import as_function, run
from accel_streams.testing._strategies import operations, programs

__all__ = [
    "Add",
    "Allocate",
    "Collective",
    "Copy",
    "Fill",
    "Finish",
    "Free",
    "Hazard",
    "Multiply",
    "Operation",
    "Program",
    "ReadBack",
    "Record",
    "RecordStream",
    "SyncDevice",
    "SyncEvent",
    "SyncStream",
    "Wait",
    "all_outcomes",
    "as_function",
    "explore_model",
    "operations",
    "ordered",
    "programs",
    "run",
]
