"""Collectives between ranks that are processes: right values, NCCL's ordering, no deadlock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "collectives.py"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        (1, "every"),
        (2, "every"),
        (3, "one"),
        (8, "one"),
        (2, "host"),
        (2, "early"),
        (3, "two"),
        (2, "cpu"),
    ],
)
def test_collectives(ranks: int, case: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(ranks), case], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
