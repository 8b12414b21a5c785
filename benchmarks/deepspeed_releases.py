"""Releases of DeepSpeed to run with, each in a folder that goes on PYTHONPATH.

    python benchmarks/deepspeed_releases.py 0.19.2 -- pytest tests/cases

installs the release without its dependencies, which the environment has, and runs the command with
it. torch is shared, so a release takes 20 MB and half a minute once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["MATRIX", "environment", "overlay"]

MATRIX = ("0.15.2", "0.16.9", "0.17.4", "0.18.6", "0.18.9", "0.19.2", "0.19.5", "0.19.8")
"""The releases that everything is tested with; the environments of tox have the same."""


def overlay(release: str, folder: Path) -> Path:
    """Return a folder in ``folder`` that holds DeepSpeed ``release``, installed if it isn't yet."""
    target = folder / f"ds{release.replace('.', '')}"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # Moved into place when whole: an interrupted installation must not look like one.
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--target", f"{partial}/new", f"deepspeed=={release}"]
        subprocess.run(command, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
        shutil.move(f"{partial}/new", target)
    return target


def environment(target: Path) -> dict[str, str]:
    """Return the variables for a process that is to use the release in ``target``."""
    path = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def default_folder() -> Path:
    """Return where releases are kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "accel_streams" / "deepspeed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release")
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    target = overlay(options.release, options.folder)
    return subprocess.run(command, env=environment(target), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
