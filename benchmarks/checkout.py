"""Which state of this repository results are of."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["commit"]

ROOT = Path(__file__).resolve().parents[1]


def commit(*paths: str) -> str:
    """Return the commit of this tree, with a + if files below ``paths``, or any, differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    clean = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *paths], check=False)
    return f"{head}+" if head and clean.returncode else head or "unknown"
