"""However a program starts and whatever it imports first, it gets the accelerator it asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_release import IMPORT_FIRST, needs_torch_entry_points

Python = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.once

NAMED = {"DS_ACCELERATOR": "accel_streams:nova"}
SHOW = """
from deepspeed.accelerator import get_accelerator
print("got", type(get_accelerator()).__name__, get_accelerator().device_name())
"""
GOT = "got GenericAccelerator nova"


def got(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("got ")]


@needs_torch_entry_points
@pytest.mark.parametrize("imports", ["torch, deepspeed", "deepspeed, torch", "deepspeed.comm"])
def test_whatever_is_imported_first(python: Python, vendor: Path, imports: str) -> None:
    assert got(python(f"import {imports}\n{SHOW}", **NAMED)) == [GOT]


@pytest.mark.parametrize("imports", ["accel_streams, deepspeed", "accel_streams, torch, deepspeed"])
def test_with_entry_points_off_this_package_comes_first(
    python: Python, vendor: Path, imports: str
) -> None:
    off = {**NAMED, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert got(python(f"import {imports}\n{SHOW}", **off)) == [GOT]


@needs_torch_entry_points
def test_with_entry_points_off_and_nothing_done_about_it_deepspeed_refuses_the_name(
    python: Python, vendor: Path
) -> None:
    """Never another device than the one that was asked for."""
    off = {**NAMED, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = python(f"import deepspeed\n{SHOW}", **off)
    assert done.returncode != 0
    assert "accel_streams:nova" in done.stderr
    assert "got " not in done.stdout


# What a program with processes of its own does: each shows what it got.
CHILDREN = """
import multiprocessing, subprocess, sys

def show():
    from deepspeed.accelerator import get_accelerator
    accelerator = get_accelerator()
    # In one write, or the lines of two processes could mix.
    found = f"got {type(accelerator).__name__} {accelerator.device_name()}"
    print(found + "\\n", end="", flush=True)

def in_child(method):
    child = multiprocessing.get_context(method).Process(target=show)
    child.start()
    child.join()
    assert child.exitcode == 0, (method, child.exitcode)

if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        show()
        sys.exit()
    if sys.argv[1:] == ["install"]:
        # Only this process is told; the others must not be left to DeepSpeed's own choice.
        import accel_streams
        accel_streams.install("nova")
    in_child("spawn")
    in_child("fork")  # imports DeepSpeed itself
    show()
    in_child("fork")  # has it
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


@pytest.mark.timeout(620)
@pytest.mark.parametrize("how", [pytest.param("environment", marks=pytest.mark.slow), "install"])
def test_processes_of_the_program(vendor: Path, tmp_path: Path, how: str) -> None:
    """Spawned, forked before and after the import of DeepSpeed, and programs that it starts."""
    pytest.importorskip("deepspeed")
    script = tmp_path / "program.py"
    script.write_text(IMPORT_FIRST + CHILDREN, encoding="utf-8")
    variables = {"PYTHONPATH": str(vendor), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), how],
        env={**os.environ, **variables, **(NAMED if how == "environment" else {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert got(done) == [GOT] * 5
