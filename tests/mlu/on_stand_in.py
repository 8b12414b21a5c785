"""Processes in which torch_mlu is the stand-in, and the branches that it can be."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import ModuleType

from stand_in_device import ENVIRONMENT, STAND_IN

__all__ = ["BRANCHES", "DIFFERENT", "run"]


def _load_branches() -> ModuleType:
    """Load the stand-in's list of branches, and nothing else of it."""
    spec = importlib.util.spec_from_file_location("branches", STAND_IN / "torch_mlu/_branch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BRANCHES: dict[str, frozenset[str]] = _load_branches().BRANCHES
# The others have the faults of one of these.
DIFFERENT = [
    name
    for number, (name, faults) in enumerate(BRANCHES.items())
    if faults not in list(BRANCHES.values())[:number]
]


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of these tests, with settings for it, and return what came of it."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=STAND_IN.parent,
        env=os.environ | ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
