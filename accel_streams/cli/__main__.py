"""Run the command as ``python -m accel_streams.cli``."""

from __future__ import annotations

from accel_streams.cli import main

if __name__ == "__main__":
    main()
