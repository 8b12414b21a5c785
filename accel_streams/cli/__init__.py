"""The command ``accel-streams``."""

from __future__ import annotations

from accel_streams.cli._main import main

__all__ = ["main"]
