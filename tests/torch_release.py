"""The installed torch's release, and marks for the tests that need another one."""

from __future__ import annotations

import re
import shutil

import pytest
import torch

__all__ = ["IMPORT_FIRST", "TORCH", "needs_simulated_device", "needs_torch_entry_points"]

TORCH = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])

needs_simulated_device = pytest.mark.skipif(
    TORCH < (2, 6) or shutil.which("c++") is None,
    reason="the simulated device needs torch 2.6 and a C++ compiler",
)

needs_torch_entry_points = pytest.mark.skipif(
    TORCH < (2, 5), reason="torch runs entry points from 2.5 on"
)

IMPORT_FIRST = "import accel_streams\n" if TORCH < (2, 5) else ""
"""What a program begins with where torch does not run this package's entry point."""
