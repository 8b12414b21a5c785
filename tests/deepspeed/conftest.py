"""Programs in processes of their own, which see the made-up plug-ins of a test."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_up_plugins import NOVA, TORCH_NOVA
from torch_release import IMPORT_FIRST

Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def python(plugins: Any) -> Python:
    """Run a program in a process of its own, which sees the made-up plug-ins."""
    pytest.importorskip("deepspeed")

    def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run(
            [sys.executable, "-c", IMPORT_FIRST + textwrap.dedent(program)],
            env={
                **inherited,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(plugins.folder),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    return run


@pytest.fixture
def vendor(plugins: Any) -> Path:
    """Give a folder with the package and the backend of the device ``nova``."""
    plugins.add("nova", NOVA)
    folder: Path = plugins.folder
    (folder / "torch_nova.py").write_text(TORCH_NOVA)
    return folder
