"""A script that knows of nothing, started in the ways users start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ports import free_port

SCRIPT = Path(__file__).parent / "scripts" / "train_plain.py"
LAUNCHER = Path(sys.executable).with_name("deepspeed")
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
} | {"DS_ACCELERATOR": "accel_streams:cpu_fake", "OMP_NUM_THREADS": "1"}


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=ENVIRONMENT | variables, capture_output=True, text=True, timeout=170
    )


@pytest.mark.timeout(180)
def test_plain_python_is_the_only_rank() -> None:
    done = run([sys.executable, str(SCRIPT)])
    assert done.returncode == 0, done.stderr
    assert "trained on fake:0 rank 0 loss is finite True" in done.stdout


@pytest.mark.timeout(180)
def test_the_launcher_starts_a_rank_for_each_device() -> None:
    done = run([str(LAUNCHER), "--num_gpus", "2", "--master_port", str(free_port()), str(SCRIPT)])
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"trained on fake:{rank} rank {rank} loss is finite True" in done.stdout


@pytest.mark.once
@pytest.mark.timeout(180)
@pytest.mark.once
def test_ranks_that_are_set_in_part_are_not_guessed() -> None:
    done = run([sys.executable, str(SCRIPT)], RANK="1")
    assert done.returncode != 0
    assert "trained" not in done.stdout


@pytest.mark.once
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ACCEL_STREAMS_ZERO", "fast", "track"),
        ("ACCEL_STREAMS_SCHEDULE", "alphabetical", "in-order"),
        ("DS_ACCELERATOR", "accel_streams:toaster", "cpu_fake"),
    ],
)
@pytest.mark.once
def test_an_unknown_value_stops_the_training(variable: str, value: str, said: str) -> None:
    done = run([sys.executable, str(SCRIPT)], **{variable: value})
    assert done.returncode != 0
    assert value.rpartition(":")[2] in done.stderr
    assert said in done.stderr.splitlines()[-1]  # what is allowed
    assert "trained" not in done.stdout
