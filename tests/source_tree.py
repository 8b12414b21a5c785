"""A copy of what this package is built from."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["ROOT", "copy_of_the_sources"]

ROOT = Path(__file__).parents[1]


def copy_of_the_sources(folder: Path) -> Path:
    """Make a copy to build from: a build leaves files behind, and takes up earlier ones."""
    folder.mkdir()
    for name in ("accel_streams", "backends"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder
