"""The catalogue's later hazards on the simulated device: there as shipped, gone with this package.

Each edge of ZeRO-3 and of sequence parallelism is taken out once, and the race has to come back.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from packaging.version import Version

from accel_streams.deepspeed import _zero3, _zero3_seams
from accel_streams.explore import Run, Runner, RunResult, Schedule, Variant
from accel_streams.hazards.scenarios import HAZARDS, script_of

deepspeed = pytest.importorskip("deepspeed")
if shutil.which("c++") is None:
    pytest.skip("the simulated device needs a C++ compiler", allow_module_level=True)

DEEPSPEED = Version(deepspeed.__version__.strip())

Train = Callable[..., RunResult]

# Starting the processes may build the device's extension.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def train(runner_of: Callable[[int], Runner]) -> Train:
    """Return what runs a hazard's program."""

    def train(
        hazard: str, *, mode: str = "track", schedule: str = "in-order", **changes: object
    ) -> RunResult:
        scenario = HAZARDS[hazard]
        variant = Variant(mode, (("ACCEL_STREAMS_ZERO", mode),))
        script = script_of(scenario, **changes)
        return runner_of(scenario.ranks).run(Run(script, variant, Schedule(schedule)))

    return train


def races(result: RunResult) -> list[dict[str, Any]]:
    return [race for rank in result.ranks for race in rank.races]


def has(hazard: str) -> bool:
    """Return whether the installed DeepSpeed has the hazard, by the catalogue."""
    scenario = HAZARDS[hazard]
    return (scenario.since is None or Version(scenario.since) <= DEEPSPEED) and (
        scenario.until is None or Version(scenario.until) >= DEEPSPEED
    )


# The others are those of test_zero_on_device.py.
LATER = [name for name in HAZARDS if int(name[1:]) >= 8]

# A schedule that trains something else, where one is known to.
SHOWN_BY = {"H10": "lifo", "H15": "fifo", "H16": "lifo", "H18": "fifo"}


def require(hazard: str) -> None:
    """Skip the test where DeepSpeed itself can't run the hazard's program."""
    if hazard == "H8" and Version("0.17.5") > DEEPSPEED:
        pytest.skip(f"not run: DeepSpeed {DEEPSPEED} has no ZenFlow")
    if hazard == "H16":
        from accel_streams.hazards.scenarios._sequence import cannot_run  # imports DeepSpeed

        reason = cannot_run()
        if reason is not None:
            pytest.skip(f"not run: {reason}")


@pytest.mark.parametrize("hazard", LATER)
def test_as_shipped_the_hazard_is_there_in_the_releases_that_have_it(
    train: Train, hazard: str
) -> None:
    require(hazard)
    assert HAZARDS[hazard].present(races(train(hazard, mode="off"))) == has(hazard)


@pytest.mark.parametrize("hazard", LATER)
def test_with_this_package_every_schedule_trains_the_same(train: Train, hazard: str) -> None:
    require(hazard)
    in_order = train(hazard)
    other = train(hazard, schedule=SHOWN_BY.get(hazard, "lifo"))
    assert races(in_order) == races(other) == []
    assert other.digest == in_order.digest


@pytest.mark.parametrize("hazard", SHOWN_BY)
def test_as_shipped_another_schedule_trains_something_else(train: Train, hazard: str) -> None:
    require(hazard)
    in_order = train(hazard, mode="off")
    assert train(hazard, mode="off", schedule=SHOWN_BY[hazard]).digest != in_order.digest


EDGES = {
    "partition of parameters: producer->read": "H10",
    "gathered parameter: keep-alive": "H15",
    "ZeRO-3 gradient: producer->read": "H11",
    "ZeRO-3 gradient: keep-alive": "H18",
    "overflow check: producer->read": "H9",
    _zero3_seams.SEQUENCE_EDGE: "H16",
}


def test_every_edge_is_tried() -> None:
    assert set(EDGES) == {*_zero3.EDGES, _zero3_seams.SEQUENCE_EDGE}


@pytest.mark.parametrize("edge", EDGES)
def test_without_any_one_edge_its_hazard_is_back(train: Train, edge: str) -> None:
    hazard = EDGES[edge]
    require(hazard)
    if not has(hazard):
        pytest.skip(f"not run: DeepSpeed {DEEPSPEED} waits there by itself")
    assert HAZARDS[hazard].present(races(train(hazard, skip_edge=edge)))


def test_zenflow_needs_the_order_of_producers(train: Train) -> None:
    if not has("H8"):
        pytest.skip("not run: this DeepSpeed has no ZenFlow")
    broken = train("H8", skip_edge="bucket: producer->read")
    assert HAZARDS["H8"].present(races(broken))


def test_an_overflow_is_seen_and_the_step_skipped(train: Train) -> None:
    in_order, lifo = (train("H9", infinite_at=1, schedule=name) for name in ("in-order", "lifo"))
    assert [rank.skipped_steps for rank in in_order.ranks] == [1]
    assert lifo.digest == in_order.digest
    assert races(in_order) == races(lifo) == []


def test_gradients_that_no_hook_takes_live_until_the_step_has_read_them(train: Train) -> None:
    settings = {"stage": 1, "overlap": False, "contiguous": False}
    in_order, lifo = (train("H5", schedule=name, **settings) for name in ("in-order", "lifo"))
    assert races(in_order) == races(lifo) == []
    assert lifo.digest == in_order.digest
    assert "use-after-free" in {race["kind"] for race in races(train("H5", mode="off", **settings))}


def test_a_clean_program_is_not_reported(train: Train) -> None:
    """The same programs on one stream, and with what hides the hazard."""
    assert races(train("H9", mode="off", producers="one")) == []


def test_sequence_parallelism_on_the_default_stream_is_not_reported(train: Train) -> None:
    require("H16")
    assert races(train("H16", mode="off", default_stream=True)) == []
