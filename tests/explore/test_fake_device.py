"""Exploring on the simulated device: what differs, what is reported, what fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_streams.explore import (
    IN_ORDER,
    VARIANTS,
    Run,
    RunFailedError,
    Runner,
    Schedule,
    Script,
    compare,
    plan_schedules,
)

SCRIPTS = Path(__file__).parent / "scripts"
STREAMS = str(SCRIPTS / "fake_streams.py")
ZERO = str(SCRIPTS / "zero.py")
DEEPSPEED, OURS = VARIANTS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(ranks=2, timeout_s=60) as running:
        assert running.fresh_reason == "", "importing torch and DeepSpeed left threads behind"
        yield running


def test_a_script_without_deepspeed_that_forgets_a_wait_is_found_out(runner: Runner) -> None:
    script = Script(STREAMS, ("--forget-to-wait",))
    (summary,) = compare(runner, script, [OURS], plan_schedules(6))
    assert summary.agreeing < 6
    assert {race["kind"] for race in summary.races} >= {"read-after-write"}
    assert all(race["first"]["file"].endswith("fake_streams.py") for race in summary.races)


def test_the_same_script_with_its_wait_is_clean(runner: Runner) -> None:
    (summary,) = compare(runner, Script(STREAMS), [OURS], plan_schedules(6))
    assert summary.clean, summary.races
    assert summary.reference.steps == 3


def test_a_repeated_run_is_the_same_run(runner: Runner) -> None:
    random = Schedule("random", 7)
    one, two = runner.run_all([Run(Script(ZERO), OURS, random)] * 2)
    assert (one.digest, one.losses, one.operations) == (two.digest, two.losses, two.operations)
    assert one.steps == 2
    assert len(one.losses) == 2


def test_a_fork_and_a_fresh_interpreter_train_the_same(runner: Runner) -> None:
    run = Run(Script(ZERO), OURS, Schedule("lifo"))
    with Runner(ranks=2, timeout_s=60, fresh=True) as fresh:
        assert fresh.run(run).digest == runner.run(run).digest


def test_collecting_results_synchronises_nothing_while_the_script_runs(runner: Runner) -> None:
    short, long = runner.run_all(
        [Run(Script(ZERO, ("--steps", steps)), OURS, IN_ORDER) for steps in ("2", "5")]
    )
    for result in (short, long):
        for rank in result.ranks:
            assert set(rank.synchronizing_ops) == {"aten::_local_scalar_dense"}
    # What is read back during a step is DeepSpeed's: the overflow flag, the norm, the scale.
    per_step = [
        (more.synchronizing_ops["aten::_local_scalar_dense"] - less) / 3
        for more, less in zip(
            long.ranks,
            [rank.synchronizing_ops["aten::_local_scalar_dense"] for rank in short.ranks],
            strict=True,
        )
    ]
    assert per_step == [3, 3]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_while_its_peer_waits_for_it(runner: Runner, rank: int) -> None:
    started = time.monotonic()
    with pytest.raises(RunFailedError, match="RuntimeError: the data of this rank") as caught:
        runner.run(Run(Script(ZERO, ("--fail-rank", str(rank))), OURS, IN_ORDER))
    assert caught.value.rank == rank
    assert time.monotonic() - started < 30
