"""DeepSpeed's ZeRO on the stand-in for an MLU: its own accelerator, and this package's.

Two ranks, and the step under a stream of the user's, which is where the fault was first seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from accel_streams.explore import (
    Run,
    RunFailedError,
    Runner,
    RunResult,
    Schedule,
    Script,
    Variant,
)
from accel_streams.fake import SCHEDULES
from ports import free_port
from stand_in_device import ENVIRONMENT

deepspeed = pytest.importorskip("deepspeed")
if shutil.which("c++") is None:
    pytest.skip("the simulated device needs a C++ compiler", allow_module_level=True)

SCRIPT = str(Path(__file__).parents[1] / "deepspeed" / "scripts" / "train_towers.py")
IN_ORDER = Schedule("in-order")
REORDERING = (Schedule("lifo"), Schedule("priority", 1))
# Up to 0.17.4 only the second of them shows that DeepSpeed as shipped is wrong.
SHOWING = (Schedule("lifo"), Schedule("fifo"))

DEEPSPEED = Version(deepspeed.__version__.strip())
# They hand communication, whose torch is 2.3 or later, a device that for an MLU is none.
CANNOT_START = Version("0.17.1") < DEEPSPEED < Version("0.18.2")

Train = Callable[..., RunResult]

# Starting the processes may build the device's extension.
pytestmark = pytest.mark.timeout(600)


def _trainer(device: str) -> Iterator[Train]:
    # The branch with the most faults.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_MLU_STAND_IN", "r1.22_pt2.1.0")
        runner = Runner(ranks=2, device=f"stand_in_device:{device}", timeout_s=120, jobs=1)
        with runner:

            def train(options: str, schedule: Schedule = IN_ORDER) -> RunResult:
                script = Script(SCRIPT, ("--producers", "user", *options.split()))
                return runner.run(Run(script, Variant(device, ()), schedule))

            yield train


@pytest.fixture(scope="module")
def ours() -> Iterator[Train]:
    """Train under this package's accelerator."""
    yield from _trainer("MluStandIn")


@pytest.fixture(scope="module")
def shipped() -> Iterator[Train]:
    """Train under DeepSpeed's own accelerator."""
    yield from _trainer("ShippedMluStandIn")


def races(result: RunResult) -> list[dict[str, Any]]:
    return [race for rank in result.ranks for race in rank.races]


def skipped(result: RunResult) -> int:
    return sum(rank.skipped_steps for rank in result.ranks)


def trains_the_same(train: Train, options: str, schedules: Iterable[Schedule]) -> None:
    in_order = train(options)
    assert in_order.ranks[0].operations > 100
    assert (races(in_order), skipped(in_order)) == ([], 0)
    for schedule in schedules:
        other = train(options, schedule)
        assert (races(other), skipped(other)) == ([], 0), schedule
        assert other.digest == in_order.digest, schedule


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_another_schedule_trains_the_same(ours: Train, stage: int) -> None:
    trains_the_same(ours, f"--stage {stage}", REORDERING)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    ["--stage 1", "--stage 1 --no-overlap", "--stage 2", "--stage 2 --no-overlap", "--stage 3"],
)
def test_every_schedule_trains_the_same(ours: Train, options: str) -> None:
    schedules = [*(Schedule(name) for name in SCHEDULES), *REORDERING]
    trains_the_same(ours, options, schedules)


needs_start = pytest.mark.skipif(
    CANNOT_START, reason=f"DeepSpeed {DEEPSPEED} as shipped does not start on an MLU"
)


@pytest.mark.skipif(not CANNOT_START, reason="DeepSpeed 0.17.4 and its neighbours alone")
def test_deepspeeds_own_accelerator_does_not_start(shipped: Train) -> None:
    with pytest.raises(RunFailedError, match="object has no attribute 'type'"):
        shipped("--stage 2")


@needs_start
def test_deepspeeds_own_accelerator_races(ours: Train, shipped: Train) -> None:
    options = "--stage 2 --no-overlap"
    in_order = shipped(options)
    assert races(in_order)
    assert in_order.digest == ours(options).digest
    assert any(shipped(options, other).digest != in_order.digest for other in SHOWING)


@needs_start
@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeeds_own_accelerator_trains(ours: Train, shipped: Train, stage: int) -> None:
    assert shipped(f"--stage {stage}").digest == ours(f"--stage {stage}").digest


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["mlu", "accel_streams:mlu"])
def test_the_launcher_starts_a_rank_for_each_device(choice: str) -> None:
    launcher = Path(sys.executable).with_name("deepspeed")
    script = Path(SCRIPT).with_name("train_plain.py")
    done = subprocess.run(
        [str(launcher), "--num_gpus", "2", "--master_port", str(free_port()), str(script)],
        env=os.environ | ENVIRONMENT | {"DS_ACCELERATOR": choice},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"trained on mlu:{rank} rank {rank} loss is finite True" in done.stdout
