"""What the streams and events of a backend must do, as checks that can fail.

``check_backend(backend)`` checks every property; ``accel-streams check BACKEND`` does so in a
process that may hang or crash, and prints the result.
"""

from __future__ import annotations

from accel_streams.conformance._bench import Bench
from accel_streams.conformance._gates import Gate, Level
from accel_streams.conformance._property import GROUPS, Property, checks, properties
from accel_streams.conformance._results import (
    Broken,
    Inconclusive,
    Outcome,
    Result,
    Unverified,
    needs,
    premise,
    require,
)
from accel_streams.conformance._run import check_backend

__all__ = [
    "GROUPS",
    "Bench",
    "Broken",
    "Gate",
    "Inconclusive",
    "Level",
    "Outcome",
    "Property",
    "Result",
    "Unverified",
    "check_backend",
    "checks",
    "needs",
    "premise",
    "properties",
    "require",
]
