"""A schedule that fails becomes shorter, and what is printed replays it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_streams.explore import (
    VARIANTS,
    ExploreError,
    Runner,
    Schedule,
    Script,
    compare,
    parse_schedules,
    search_script,
    shorten,
)
from accel_streams.explore._delays import Delay
from accel_streams.explore._notes import inversions
from accel_streams.explore._shrink import shortest

SCRIPTS = Path(__file__).parent / "scripts"
SMALL = str(SCRIPTS / "small_streams.py")
STREAMS = str(SCRIPTS / "fake_streams.py")
DEEPSPEED, OURS = VARIANTS

pytestmark = pytest.mark.timeout(300)


@given(st.sets(st.integers(0, 40), min_size=1, max_size=4), st.integers(41, 60))
def test_what_is_needed_remains_and_nothing_else(needed: set[int], count: int) -> None:
    calls = 0

    def fails(items: Sequence[int]) -> bool:
        nonlocal calls
        calls += 1
        return needed <= set(items)

    assert set(shortest(range(count), fails)) == needed
    assert calls < 120


@given(st.integers(0, 7))
def test_a_budget_is_kept_and_what_was_found_within_it_still_fails(budget: int) -> None:
    calls = 0

    def fails(items: Sequence[int]) -> bool:
        nonlocal calls
        calls += 1
        return {3, 50} <= set(items)

    found = shortest(range(60), fails, budget=budget)
    assert calls <= budget
    assert {3, 50} <= set(found)


def test_one_item_alone_and_none_twice() -> None:
    assert shortest([7], lambda items: True) == (7,)
    assert shortest([1, 1, 2], lambda items: 2 in items) == (2,)


def test_inversions_name_each_crossing_of_two_streams_once() -> None:
    """Two writes on stream 1 run after two reads on stream 0 that were submitted later."""
    main, side = (0, 0), (0, 1)
    records = [
        ("launch", 1, 0, side, "w", ((5, 0, 4, 2),), None),
        ("launch", 2, 0, side, "w", ((5, 0, 4, 2),), None),
        ("launch", 3, 0, main, "r", ((5, 2, 4, 1),), None),
        ("launch", 4, 0, main, "r", ((5, 0, 4, 1),), None),
        ("launch", 5, 0, main, "r", ((6, 0, 4, 1),), None),
    ]
    steps = [(seq, seq, 0, False, side if seq < 3 else main) for seq in (3, 4, 5, 1, 2)]
    assert inversions(records, steps) == [Delay("1", "4")]
    in_order = sorted(steps)
    assert inversions(records, in_order) == []


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(ranks=1, timeout_s=60) as running:
        yield running


def test_a_small_script_is_searched_whole(runner: Runner) -> None:
    right = search_script(runner, Script(SMALL), OURS, max_schedules=50)
    assert (right.complete, right.agrees) == (True, True)
    wrong = search_script(runner, Script(SMALL, ("--forget-to-wait",)), OURS, max_schedules=50)
    assert (wrong.complete, len(wrong.outcomes)) == (True, 2)
    assert wrong.failing is not None
    assert wrong.failing.text == "total 5.0 5.0 5.0"
    (explained,) = wrong.failing.explained
    assert re.search(r"add.* at small_streams.py:\d+ .*runs after .*mul", explained)


def test_a_script_that_fails_under_some_schedule_has_that_as_an_outcome(runner: Runner) -> None:
    script = Script(SMALL, ("--forget-to-wait", "--check"))
    found = search_script(runner, script, OURS, max_schedules=50)
    assert found.complete
    assert found.failing is not None
    assert found.failing.text == "failed: wrong: [5.0, 5.0, 5.0]"


def test_a_printed_schedule_replays_in_a_plain_process(runner: Runner) -> None:
    script = Script(SMALL, ("--forget-to-wait",))
    found = search_script(runner, script, OURS, max_schedules=50)
    assert found.failing is not None
    for outcome in found.outcomes:
        done = subprocess.run(
            [sys.executable, SMALL, "--forget-to-wait"],
            env={**os.environ, "ACCEL_STREAMS_SCHEDULE": outcome.schedule},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.strip() == outcome.text


def test_a_script_that_is_too_large_is_refused(runner: Runner, tmp_path: Path) -> None:
    large = tmp_path / "large.py"
    large.write_text(
        "import torch\nfrom accel_streams import fake\nfake.enable()\n"
        "x = torch.ones(1, device='fake')\nfor _ in range(1200): x.add_(1)\n"
    )
    with pytest.raises(ExploreError, match="at most 1000"):
        search_script(runner, Script(str(large)), OURS, max_schedules=5)


@pytest.mark.parametrize("schedule", ["fifo", "random:3", "lru"])
def test_a_seeded_schedule_that_differs_becomes_one_delay(runner: Runner, schedule: str) -> None:
    script = Script(STREAMS, ("--forget-to-wait",))
    (summary,) = compare(runner, script, [OURS], parse_schedules([schedule]))
    assert not summary.agrees(summary.runs[1]), "this schedule shows nothing; take another"
    short = shorten(runner, summary, budget=10)
    assert short is not None
    assert short.run.schedule.name.startswith("delay:")
    assert "," not in short.run.schedule.name
    again = runner.run(short.run)
    assert again.digest == short.digest != summary.reference.digest


def test_without_a_race_report_the_schedule_itself_is_halved(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(STREAMS, ("--forget-to-wait",))
    (summary,) = compare(runner, script, [OURS], parse_schedules(["fifo"]))
    monkeypatch.setattr("accel_streams.explore._shorten._alternating", lambda ranks: iter(()))
    short = shorten(runner, summary, budget=30)
    assert short is not None
    assert "," not in short.run.schedule.name


def test_what_does_not_differ_is_not_shortened(runner: Runner) -> None:
    (summary,) = compare(runner, Script(STREAMS), [OURS], parse_schedules(["lifo"]))
    assert shorten(runner, summary, budget=10) is None
    assert shorten(runner, summary, budget=0) is None


def test_several_ranks_are_not_searched() -> None:
    with pytest.raises(ExploreError, match="one rank, not 2"):
        search_script(Runner(ranks=2), Script(SMALL), OURS, max_schedules=5)


def test_the_replay_line_is_a_whole_command() -> None:
    from accel_streams.cli._systematic import replay_line
    from accel_streams.explore import Run

    run = Run(Script("my train.py", ("--lr", "1")), DEEPSPEED, Schedule("delay:5-9,7.1-12e"))
    words = shlex.split(replay_line(Runner(ranks=2), run))
    assert words == [
        "DS_ACCELERATOR=accel_streams:cpu_fake",
        "ACCEL_STREAMS_ZERO=off",
        "ACCEL_STREAMS_SCHEDULE=delay:5-9,7.1-12e",
        *("deepspeed", "--num_gpus", "2", "--module", "accel_streams.explore"),
        *("my train.py", "--lr", "1"),
    ]
    seeded = replay_line(Runner(ranks=1), Run(Script("t", (), True), OURS, Schedule("random", 3)))
    assert seeded.endswith(
        "ACCEL_STREAMS_SCHEDULE=random ACCEL_STREAMS_SEED=3 python -m accel_streams.explore -m t"
    )
