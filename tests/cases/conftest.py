"""Runs of small trainings on the simulated device, which the cases share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_streams.explore import Runner
from bucket_cases import Train, trainer


@pytest.fixture(scope="session")
def needs_device() -> None:
    pytest.importorskip("deepspeed")
    if shutil.which("c++") is None:
        pytest.skip("the simulated device needs a C++ compiler")


@pytest.fixture
def one_rank(needs_device: None, runner_of: Callable[[int], Runner]) -> Runner:
    return runner_of(1)


@pytest.fixture
def two_ranks(needs_device: None, runner_of: Callable[[int], Runner]) -> Runner:
    return runner_of(2)


@pytest.fixture
def train(one_rank: Runner, tmp_path: Path) -> Train:
    return trainer(one_rank, tmp_path)


@pytest.fixture
def train_pair(two_ranks: Runner, tmp_path: Path) -> Train:
    return trainer(two_ranks, tmp_path)
