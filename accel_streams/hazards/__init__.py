"""The known ordering hazards of DeepSpeed, as programs that show them."""

from __future__ import annotations

from accel_streams.hazards.scenarios import HAZARDS, Expected, Scenario, script_of

__all__ = ["HAZARDS", "Expected", "Scenario", "script_of"]
