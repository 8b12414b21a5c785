"""A training program for each known hazard, and how its report is told from others.

Importing this imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from accel_streams.hazards.scenarios._catalogue import HAZARDS
from accel_streams.hazards.scenarios._scenario import Expected, Scenario, script_of

__all__ = ["HAZARDS", "Expected", "Scenario", "script_of"]
