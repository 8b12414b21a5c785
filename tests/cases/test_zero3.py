"""Case 5: ZeRO-3 with the step under a side stream (DeepSpeed #7898)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from accel_streams.explore import Run, Runner, RunResult, Schedule, Script, Variant
from bucket_cases import AS_SHIPPED, OURS
from hook_streams import DEEPSPEED

pytestmark = pytest.mark.timeout(600)

SCRIPT = str(Path(__file__).with_name("scripts") / "zero3.py")
STEPS = 3
RIGHT = [[-sum((index + 1.0) * (step + 1) for step in range(STEPS))] for index in range(6)]
on_the_stream_of_the_step = pytest.mark.skipif(
    Version("0.16.6") > DEEPSPEED, reason="up to 0.16.5 hooks run on the initialisation's stream"
)
MENDED = Version("0.18.8") <= DEEPSPEED
Train = Callable[..., tuple[list[list[float]], RunResult]]


@pytest.fixture
def train(one_rank: Runner, tmp_path: Path) -> Train:
    def run(
        mode: str, *, side: bool = True, old_wait: bool = False, schedule: str = "in-order"
    ) -> Any:
        result = tmp_path / "result"
        case = {"side": side, "old_wait": old_wait, "steps": STEPS}
        environment = (("ACCEL_STREAMS_ZERO", mode), ("CASE_RESULT", str(result)))
        script = Script(SCRIPT, (json.dumps(case),))
        told = one_rank.run(Run(script, Variant(mode, environment), Schedule(schedule)))
        return json.loads(Path(f"{result}.0").read_text()), told

    return run


def is_of_the_gradient(race: dict[str, Any]) -> bool:
    """Return whether a gradient is read, for its reduction, before it is there."""
    found = race["kind"], race["first"]["stream"], race["second"]["function"]
    return found == ("read-after-write", "side", "__add_grad_to_ipg_bucket")


@on_the_stream_of_the_step
def test_as_0_18_7_did_it_is_reported_and_wrong(train: Train) -> None:
    _, told = train(AS_SHIPPED, old_wait=True)
    assert any(map(is_of_the_gradient, told.races))
    parameters, _ = train(AS_SHIPPED, old_wait=True, schedule="lazy")
    assert parameters != RIGHT


@on_the_stream_of_the_step
def test_deepspeed_as_shipped_is_reported_up_to_0_18_7(train: Train) -> None:
    parameters, told = train(AS_SHIPPED, schedule="lazy")
    assert any(map(is_of_the_gradient, told.races)) is not MENDED
    assert (parameters == RIGHT) is MENDED


def test_without_a_side_stream_nothing_was_wrong(train: Train) -> None:
    parameters, told = train(AS_SHIPPED, side=False, old_wait=True, schedule="lazy")
    assert parameters == RIGHT
    assert told.races == []


@pytest.mark.parametrize("schedule", ["in-order", "lazy", "lifo"])
@pytest.mark.parametrize("old_wait", [False, True], ids=["as installed", "as 0.18.7"])
def test_with_this_package_every_gradient_is_exact(
    train: Train, schedule: str, old_wait: bool
) -> None:
    parameters, told = train(OURS, old_wait=old_wait, schedule=schedule)
    assert parameters == RIGHT
    assert told.races == []
    assert told.skipped_steps == 0
