"""The command ``explore``, on the CPU with a script that does as it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXPLORE = Path(__file__).parent.parent / "explore"
PLAIN = "tests/explore/scripts/plain.py"
SCRIPT = str(EXPLORE / "scripts" / "plain.py")


def explore(*arguments: str, device: str = "PlainDevice") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accel_streams.cli", "explore", "--ranks", "1"]
    return subprocess.run(
        [*command, "--device", f"plain_device:{device}", *arguments],
        env={**os.environ, "PYTHONPATH": str(EXPLORE), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_equal_runs_end_with_status_0_and_the_documented_json(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = explore("--schedules", "8", "--json", str(file), "--", SCRIPT, "--steps", "2")
    assert result.returncode == 0, result.stderr
    assert "8 of 8 schedules" in result.stdout
    assert "\x1b" not in result.stdout  # no colour in a pipe
    assert result.stderr == ""  # and no progress
    document = json.loads(file.read_text())
    assert document["schema"] == 1
    assert (document["backend"], document["ranks"], document["steps"]) == ("cpu", 1, 2)
    assert (
        document["torch"]
        == subprocess.check_output(
            [sys.executable, "-c", "import torch; print(torch.__version__)"], text=True
        ).strip()
    )
    (variant,) = document["variants"]
    assert (variant["name"], variant["agreeing"], variant["races"]) == ("accel_streams", 8, [])
    assert len({schedule["digest"] for schedule in variant["schedules"]}) == 1
    assert [schedule["name"] for schedule in variant["schedules"]][:2] == ["in-order", "fifo"]
    for schedule in variant["schedules"]:
        assert set(schedule) == {"name", "seed", "digest", "loss", "skipped_steps"}
        assert len(schedule["loss"]) == 2


def test_a_schedule_that_trains_otherwise_ends_with_status_1_and_how_to_replay() -> None:
    # No "--": the script's options are its own all the same.
    result = explore("--schedules", "4", SCRIPT, "--steps", "2", "--differ-under", "lifo")
    assert result.returncode == 1, result.stderr
    assert "3 of 4 schedules" in result.stdout
    assert "ACCEL_STREAMS_ZERO=track ACCEL_STREAMS_SCHEDULE=lifo" in result.stdout
    rows = [line for line in result.stdout.splitlines() if "DIFFERENT" in line]
    assert len(rows) == 1
    assert "lifo" in rows[0]


def test_a_race_without_a_difference_ends_with_status_1(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = explore(
        "--schedules", "3", "--variants", "deepspeed", "--json", str(file), SCRIPT,
        device="RacyDevice",
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert "read-after-write on a bucket: stream `reduction` must wait for `side`" in result.stdout
    (variant,) = json.loads(file.read_text())["variants"]
    assert variant["agreeing"] == 3
    (race,) = variant["races"]
    assert (race["count"], race["schedules"]) == (4, ["fifo", "lifo"])


def test_a_crash_ends_with_status_1_and_one_clear_paragraph(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = explore("--json", str(file), SCRIPT, "--fail", "crash", "--fail-rank", "0")
    assert result.returncode == 1
    assert result.stderr.startswith("accel-streams: error: rank 0 exited with status 1 (")
    assert "ACCEL_STREAMS_SCHEDULE=" in result.stderr
    assert "RuntimeError: the data of rank 1 is damaged" in result.stderr
    assert "test_explore" not in result.stderr
    assert not file.exists()


def test_a_device_that_cannot_be_built_ends_with_status_1() -> None:
    result = explore(SCRIPT, device="BrokenDevice")
    assert result.returncode == 1
    assert result.stderr == "accel-streams: error: no C++ compiler was found; install g++\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing argument"),
        (["nowhere.py"], "there is no file nowhere.py"),
        (["-m"], "No such option: -m"),
        (["--", "-m"], "-m needs the name of a module"),
        (["--schedules", "0", SCRIPT], "--schedules"),
        (["--ranks", "0", SCRIPT], "--ranks"),
        (["--variants", "cuda", SCRIPT], "unknown variant 'cuda'"),
        (["--variants", "", SCRIPT], "no variant given"),
        (["--logs", "/dev/null/logs", SCRIPT], "can't be made: Not a directory"),
        (["--logs", str(EXPLORE), SCRIPT], "is not empty"),
        (["--json", "no/such/folder/x.json", SCRIPT], "--json"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments: list[str], complaint: str) -> None:
    result = explore(*arguments)
    assert result.returncode == 2, result.stderr
    assert complaint in " ".join(result.stderr.split())
    assert result.stdout == ""
