"""What a vendor tests: the backend is found, is usable, is short, and trains with ZeRO-2.

Run it in an environment where the package is installed: ``pytest examples/vendor``.
"""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import nova_backend
import pytest

HERE = Path(__file__).parents[1]


def run(*words: str, **variables: str) -> str:
    done = subprocess.run(
        words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> str:
    """Return a port for the ranks to meet at that nobody else uses, as tests may run at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_the_backend_is_short() -> None:
    assert len(Path(nova_backend.__file__).read_text().splitlines()) < 15


@pytest.mark.timeout(300)
def test_the_backend_is_usable() -> None:
    listed = run(sys.executable, "-m", "accel_streams.cli", "list", "--probe")
    (row,) = (line.split() for line in listed.splitlines() if line.startswith("nova "))
    assert row[1] == "usable"
    assert row[2:4] == ["torch-nova", "2.0"]


@pytest.mark.timeout(300)
def test_zero2_trains_under_the_launcher() -> None:
    launcher = shutil.which("deepspeed", path=os.path.dirname(sys.executable))
    words = [launcher] if launcher else [sys.executable, "-m", "deepspeed.launcher.runner"]
    output = run(
        *words,
        "--num_gpus",
        "2",
        "--master_port",
        free_port(),
        str(HERE / "train.py"),
        DS_ACCELERATOR="nova",
        OMP_NUM_THREADS="1",
    )
    for rank in range(2):
        assert f"rank {rank} on nova:{rank}: loss fell True" in output
