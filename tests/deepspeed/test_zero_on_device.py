"""The real DeepSpeed on the simulated device: wrong as shipped, right with this package.

Each run is one training; a race is a missing order whether or not the run came out wrong, and two
schedules that end with other parameters are wrong whether or not a race was seen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from accel_streams.deepspeed import _ordering
from accel_streams.explore import Run, Runner, RunResult, Schedule, Script, Variant
from hook_streams import DEEPSPEED, ON_ONE_STREAM
from ports import free_port

deepspeed = pytest.importorskip("deepspeed")
if shutil.which("c++") is None:
    pytest.skip("the simulated device needs a C++ compiler", allow_module_level=True)

SCRIPT = str(Path(__file__).with_name("scripts") / "train_towers.py")
REORDERING = ("fifo", "lifo", "lazy")

Train = Callable[..., RunResult]

# Starting the processes may build the device's extension.
pytestmark = pytest.mark.timeout(600)


def _trainer(runner: Runner) -> Train:
    def train(options: str, *, mode: str = "track", schedule: str = "in-order") -> RunResult:
        variant = Variant(mode, (("ACCEL_STREAMS_ZERO", mode),))
        script = Script(SCRIPT, tuple(options.split()))
        return runner.run(Run(script, variant, Schedule(schedule)))

    return train


@pytest.fixture
def train(runner_of: Callable[[int], Runner]) -> Train:
    return _trainer(runner_of(1))


@pytest.fixture
def train_pair(runner_of: Callable[[int], Runner]) -> Train:
    return _trainer(runner_of(2))


def races(result: RunResult) -> list[dict[str, Any]]:
    return [race for rank in result.ranks for race in rank.races]


def kinds(result: RunResult, buffer: str = "") -> set[str]:
    return {race["kind"] for race in races(result) if buffer in race["buffer"]}


def skipped(result: RunResult) -> int:
    return sum(rank.skipped_steps for rank in result.ranks)


CONFIGURATIONS = [
    "--stage 2",
    "--stage 2 --oversized --no-reduce-scatter --accumulate bf16",
    "--stage 2 --autocast --oversized",
    "--stage 2 --scattered --oversized",
    "--stage 2 --no-overlap",
    "--stage 2 --no-overlap --oversized --accumulate bf16 --micro-batches 2",
    "--stage 2 --no-overlap --autocast",
    "--stage 2 --no-overlap --scattered --oversized",
    "--stage 1 --oversized --accumulate bf16 --micro-batches 2",
    "--stage 1 --no-overlap --accumulate bf16",
    "--stage 1 --no-overlap --scattered --autocast",
    # Gradients are added up in another dtype than the parameters'.
    "--stage 1 --float32 --oversized --accumulate bf16 --micro-batches 2",
    "--stage 1 --float32 --no-overlap --scattered --accumulate bf16 --micro-batches 2",
]


@pytest.mark.parametrize("options", CONFIGURATIONS)
def test_every_schedule_gives_the_same_parameters(train: Train, options: str) -> None:
    in_order = train(options)
    assert races(in_order) == []
    assert skipped(in_order) == 0
    for schedule in REORDERING:
        other = train(options, schedule=schedule)
        assert (races(other), skipped(other)) == ([], 0), schedule
        assert other.digest == in_order.digest, schedule


@pytest.mark.parametrize("options", CONFIGURATIONS[:5:2])
def test_the_parameters_are_those_of_a_single_stream(train: Train, options: str) -> None:
    single = train(f"{options} --producers one")
    assert races(single) == []
    assert train(options).digest == single.digest


RIGHT_AS_SHIPPED = [
    "--user-hook --producers one",
    "--user-hook --producers one --scattered",
    "--user-hook --oversized",
    "--coalesce",
    "--coalesce --no-overlap",
    "--coalesce --scattered",
    "--step-apart",
    "--step-apart --micro-batches 2",
]


@pytest.mark.parametrize("options", RIGHT_AS_SHIPPED)
def test_what_deepspeeds_own_waits_give_by_the_way_is_given_too(train: Train, options: str) -> None:
    """A hook after DeepSpeed's, reductions put off, a step elsewhere: no wait of the user's."""
    if "coalesce" in options and not hasattr(deepspeed.DeepSpeedEngine, "coalesce_grad_reduction"):
        pytest.skip(f"not run: DeepSpeed {DEEPSPEED} has no coalesce_grad_reduction")
    assert races(train(options)) == []


@pytest.mark.parametrize("options", CONFIGURATIONS[:5:2])
def test_waiting_on_the_host_is_right_too(train: Train, options: str) -> None:
    for schedule in ("in-order", "lifo"):
        result = train(options, mode="sync", schedule=schedule)
        assert races(result) == []
        assert result.digest == train(options).digest


def test_the_host_waits_no_more_often_than_in_deepspeed(train: Train) -> None:
    ours, theirs = (train("--oversized", mode=mode).ranks[0] for mode in ("track", "off"))
    assert ours.synchronizing_ops == theirs.synchronizing_ops
    assert set(ours.synchronizing_ops) <= {
        "aten::_local_scalar_dense",
        "aten::copy_ (device to host)",
    }


def waits_of_the_host(mode: str, options: str) -> dict[str, int]:
    """Return how often the host waits for a device, a stream or an event in three steps."""
    script = Path(SCRIPT).with_name("host_waits.py")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, str(script), *options.split()],
        env=os.environ | address | {"ACCEL_STREAMS_ZERO": mode},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    waits: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return waits


@pytest.mark.parametrize(
    "options", ["1 overlap", "2 overlap", "2 overlap scattered", "2 in-order scattered"]
)
def test_the_host_waits_for_no_stream(options: str) -> None:
    assert waits_of_the_host("track", options) == {}


def test_as_shipped_the_host_waits_for_the_device() -> None:
    assert waits_of_the_host("off", "2 overlap")["device"] >= 3


# As shipped: the hazard, options that show it, its kind, and the buffer it is in. H7 shows as a
# write after the allocation's.
HAZARDS = {
    "H2": ("--no-overlap", "read-after-write", "ipg_buffer[0"),
    "H2 write": ("--no-overlap", "write-after-read", "ipg_buffer[0"),
    "H3": ("", "write-after-read", "ipg_buffer[1"),
    "H4": ("--oversized", "read-after-write", "MmBackward0"),
    "H5": ("--no-overlap --scattered", "read-after-write", "AddmmBackward0"),
    "H6": ("--oversized --no-reduce-scatter --accumulate bf16", "use-after-free", "MmBackward0"),
    "H7": ("--no-overlap", "write-after-write", "ipg_buffer[0"),
}


if Version("0.19.3") > DEEPSPEED:
    del HAZARDS["H4"]  # It came with the fix of H1.
    HAZARDS["H1"] = ("", "read-after-write", "ipg_buffer")


@pytest.mark.parametrize("hazard", HAZARDS)
def test_deepspeed_as_shipped_races(train: Train, hazard: str) -> None:
    options, kind, buffer = HAZARDS[hazard]
    assert kind in kinds(train(options, mode="off"), buffer)


@pytest.mark.parametrize("options", ["", "--no-overlap", "--no-overlap --scattered"])
def test_deepspeed_as_shipped_trains_something_else(train: Train, options: str) -> None:
    in_order = train(options, mode="off")
    others = [train(options, mode="off", schedule=schedule) for schedule in REORDERING]
    assert any(other.digest != in_order.digest for other in others)


def test_deepspeed_as_shipped_is_wrong_without_a_sign_of_it(train: Train) -> None:
    """No NaN, no skipped step: a loss that goes down, and other parameters."""
    in_order = train("", mode="off")
    others = [train("", mode="off", schedule=schedule) for schedule in REORDERING]
    assert skipped(in_order) == 0
    assert any(other.digest != in_order.digest and not skipped(other) for other in others)


# Later than 0.19.5 float32 gradients have a tensor of their own.
PARTITION = "averaged_gradients" if Version("0.19.5") < DEEPSPEED else "grads_in_partition"

# What each edge is needed for: options, what is reported without it, and where, and whether a
# schedule then trains something else. (An allocation is a write that changes nothing, and two
# reductions write different parts of the partition.)
EDGES = {
    "bucket: allocation->write": ("", "write-after-write", "ipg_buffer", False),
    "bucket: release->write": ("", "write-after-read", "ipg_buffer", True),
    "bucket: producer->read": ("--no-overlap", "read-after-write", "ipg_buffer", True),
    "bucket: release->free": ("--no-overlap", "use-after-free", "ipg_buffer", True),
    "gradient: producer->read": (
        "--no-overlap --scattered",
        "read-after-write",
        "AddmmBackward0",
        True,
    ),
    "gradient: keep-alive": (
        "--oversized --no-reduce-scatter --accumulate bf16",
        "use-after-free",
        "MmBackward0",
        True,
    ),
    "partition: release->write": (
        "--no-overlap --autocast",
        "write-after-write",
        "grads_in_partition",
        False,
    ),
    # Up to 0.19.2 the step brings a norm to the host before it uses them.
    "partition: producer->read": (
        "--step-apart",
        "read-after-write",
        PARTITION,
        Version("0.19.3") <= DEEPSPEED,
    ),
    "partition: keep-alive": ("--no-overlap", "use-after-free", PARTITION, True),
}


def test_every_edge_is_tried() -> None:
    assert set(EDGES) == set(_ordering.EDGES)


# Up to 0.18.2 a reduction takes all that waits for one. The hook that triggers it then writes, on
# the same stream, what the next reduction takes: that waits for the write, and so for the former.
IMPLIED = {"partition: release->write"} if Version("0.18.3") > DEEPSPEED else set[str]()
if Version("0.17.2") > DEEPSPEED:
    # The buffers are allocated before the backward, on the stream that calls it. The streams of the
    # hooks come after that, and it after them in the end, by autograd's own waits.
    IMPLIED |= {"bucket: allocation->write", "bucket: release->free"}


@pytest.mark.parametrize("edge", EDGES)
def test_without_any_one_edge_there_is_a_race(train: Train, edge: str) -> None:
    options, kind, buffer, shows = EDGES[edge]
    right = train(options)
    broken = f"{options} --skip-edge {edge.replace(' ', '_')}"
    if edge in IMPLIED:
        assert races(train(broken)) == []
        return
    assert kind in kinds(train(broken), buffer)
    if shows:
        others = (train(broken, schedule=name) for name in ("lifo", "fifo", "lazy", "mru", "lru"))
        assert any(other.digest != right.digest for other in others)


class TestTwoRanks:
    """Here nothing special is needed for two streams with hooks: the step runs under a user's."""

    @pytest.mark.parametrize(
        "options",
        ["", "--oversized --no-reduce-scatter", "--no-overlap", "--no-overlap --scattered"],
    )
    def test_under_a_user_stream(self, train_pair: Train, options: str) -> None:
        options += " --producers user"
        right = train_pair(options)
        assert (races(right), skipped(right)) == ([], 0)
        assert train_pair(options, schedule="lifo").digest == right.digest
        shipped = [train_pair(options, mode="off", schedule=s) for s in ("in-order", "lifo")]
        if ON_ONE_STREAM:
            # A gradient larger than a bucket is freed too early all the same (H6).
            assert kinds(shipped[0]) <= {"use-after-free"}
            return
        assert races(shipped[0])
        assert len({result.digest for result in shipped}) == 2

    def test_a_single_stream_is_not_safe_either(self, train_pair: Train) -> None:
        """H6: a gradient larger than a bucket is freed while the reduction still reads it."""
        options = "--producers one --oversized --no-reduce-scatter"
        shipped = kinds(train_pair(options, mode="off"))
        # H14 is there on a single stream, too.
        has_h14 = Version("0.17.2") <= DEEPSPEED < Version("0.18.3")
        assert shipped - ({"write-after-read"} if has_h14 else set()) == {"use-after-free"}
        assert races(train_pair(options)) == []


def test_a_nan_gradient_is_treated_the_same_by_every_schedule(train: Train) -> None:
    in_order, lifo = (train("--nan", schedule=schedule) for schedule in ("in-order", "lifo"))
    assert races(in_order) == races(lifo) == []
    assert in_order.digest == lifo.digest
    # Earlier releases check float16 alone.
    assert skipped(in_order) == skipped(lifo) == int(Version("0.19.3") <= DEEPSPEED)
