"""Measure what the installed package adds to ``import torch``, and how long ``list`` takes; JSON.

Each sample is a new process. ``import_torch_added`` is the time to load and call the package's
entry point once torch has been imported, which is what torch does at the end of its import.
``list_own`` is the command ``accel-streams list`` inside a process, with all that it imports;
``list_process`` is that process from start to end, and ``python_process`` one that does nothing.

Example:
    python benchmarks/import_cost.py --samples 11

"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from typing import Any

ADDED = """
import time, torch
from importlib.metadata import entry_points
(point,) = [p for p in entry_points(group="torch.backends") if p.name == "accel_streams"]
start = time.perf_counter()
point.load()()
print((time.perf_counter() - start) * 1e3)
"""

LIST_OWN = """
import sys, time
start = time.perf_counter()
from accel_streams.cli import main
try:
    main(["list"])
finally:
    print((time.perf_counter() - start) * 1e3, file=sys.stderr)
    assert "torch" not in sys.modules
"""

PROCESS = """
import subprocess, sys, time
start = time.perf_counter()
subprocess.run([sys.executable, {arguments}], check=True, stdout=subprocess.DEVNULL)
print((time.perf_counter() - start) * 1e3)
"""
LIST_PROCESS = PROCESS.format(arguments='"-m", "accel_streams.cli", "list"')
PYTHON_PROCESS = PROCESS.format(arguments='"-c", ""')


def sample(program: str, environment: dict[str, str]) -> float:
    """Run ``program`` in a new process and return the milliseconds that it prints last."""
    inherited = dict(os.environ)
    # An installation has its modules compiled; without this each process would compile them anew.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return float((done.stderr or done.stdout).split()[-1])


def measure(name: str, program: str, samples: int, **environment: str) -> dict[str, Any]:
    """Return one entry of ``runs``; the first sample warms the disk's cache and is dropped."""
    values = [sample(program, environment) for _ in range(samples + 1)][1:]
    return {
        "name": name,
        "median_ms": round(statistics.median(values), 3),
        "min_ms": round(min(values), 3),
        "samples": [round(value, 3) for value in values],
    }


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=7, help="processes for each figure")
    samples = parser.parse_args().samples
    result = {
        "schema": 1,
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "runs": [
            measure("import_torch_added", ADDED, samples, TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
            measure("list_own", LIST_OWN, samples),
            measure("list_process", LIST_PROCESS, samples),
            measure("python_process", PYTHON_PROCESS, samples),
        ],
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
