"""``explore --systematic``, ``--schedule`` and ``--shorten``, on the simulated device."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if shutil.which("c++") is None:
    pytest.skip("the simulated device needs a C++ compiler", allow_module_level=True)

SCRIPTS = Path(__file__).parent.parent / "explore" / "scripts"
SMALL, STREAMS = str(SCRIPTS / "small_streams.py"), str(SCRIPTS / "fake_streams.py")

# Starting the processes may build the device's extension.
pytestmark = pytest.mark.timeout(600)


def explore(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel_streams.cli", "explore", *arguments],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=500,
    )


def replayed(told: str) -> subprocess.CompletedProcess[str]:
    """Run the command that was printed, as somebody would who pastes it into a shell."""
    (line,) = re.findall(r"replay it with (.*)", told)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=200
    )


def test_all_orders_of_a_script_with_its_waits_end_alike(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = explore("--systematic", "--json", str(file), SMALL)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("no difference in all orders of ")
    document = json.loads(file.read_text())
    assert (document["schema"], document["complete"], document["reason"]) == (1, True, "")
    (outcome,) = document["outcomes"]
    assert outcome["delays"] == []


def test_a_missing_wait_is_found_and_what_is_printed_shows_it_again(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = explore("--systematic", "--json", str(file), SMALL, "--forget-to-wait", "--check")
    assert result.returncode == 1, result.stderr
    document = json.loads(file.read_text())
    assert len(document["outcomes"]) == 2
    assert replayed(result.stdout).returncode != 0


def test_a_bounded_search_says_that_it_is_not_complete(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    options = ("--systematic", "--max-deviations", "0", "--json", str(file))
    result = explore(*options, SMALL, "--forget-to-wait")
    assert result.returncode == 0, result.stderr
    assert json.loads(file.read_text())["complete"] is False
    assert "which are not all" in result.stdout


@pytest.mark.parametrize("options", [("--ranks", "2"), ("--variants", "deepspeed,accel_streams")])
def test_a_systematic_search_of_more_than_one_rank_or_variant_is_refused(
    options: tuple[str, str],
) -> None:
    result = explore("--systematic", *options, SMALL)
    assert result.returncode == 2
    assert "one variant on one rank" in " ".join(result.stderr.split())


def test_named_schedules_run_after_the_one_in_order(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    named = ("--schedule", "random:7", "--schedule", "lifo")
    result = explore("--ranks", "1", *named, "--json", str(file), STREAMS)
    assert result.returncode == 0, result.stderr
    (variant,) = json.loads(file.read_text())["variants"]
    assert [run["name"] for run in variant["schedules"]] == ["in-order", "random", "lifo"]
    assert [run["seed"] for run in variant["schedules"]][1] == 7


def test_a_schedule_that_nobody_knows_is_wrong_usage() -> None:
    result = explore("--ranks", "1", "--schedule", "sideways", STREAMS)
    assert result.returncode == 2
    assert "sideways" in result.stderr


def test_a_schedule_that_differs_is_made_as_short_as_one_delay() -> None:
    named = ("--ranks", "1", "--schedule", "lazy")
    result = explore(*named, STREAMS, "--forget-to-wait")
    assert result.returncode == 1, result.stderr
    assert "the shortest schedule found that differs has 1 delay" in result.stdout
    assert "ACCEL_STREAMS_SCHEDULE=delay:" in result.stdout
    assert replayed(result.stdout).returncode == 0
    as_found = explore(*named, "--shorten", "0", STREAMS, "--forget-to-wait")
    assert as_found.returncode == 1
    assert "the shortest schedule" not in as_found.stdout
    assert "ACCEL_STREAMS_SCHEDULE=lazy" in as_found.stdout
