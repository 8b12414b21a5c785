from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def plain_script() -> str:
    return str(HERE / "scripts" / "plain.py")


@pytest.fixture(scope="session", autouse=True)
def _devices_importable() -> Iterator[None]:
    """Let the processes that run scripts import plain_device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        yield
