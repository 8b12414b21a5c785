"""The simulated device's own traces: real torch programs, with and without their waits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).with_name("fake_device_programs.py")
# The device's extension may have to be built first.
LIMIT = 300


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    # In a process of its own: the device is registered with torch once and for all.
    done = subprocess.run(
        [sys.executable, str(PROGRAMS)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def races(reports: list[dict[str, Any]], name: str, **options: bool) -> list[tuple[str, str, str]]:
    """Return each race of one program as its kind, the stream to wait for and the one to wait."""
    (report,) = [
        report for report in reports if report["name"] == name and options.items() <= report.items()
    ]
    assert report["operations"] > 0
    return [
        (race["kind"], race["first"]["stream"], race["second"]["stream"])
        for race in report["races"]
    ]


pytestmark = pytest.mark.timeout(LIMIT + 20)


def test_a_bucket_filled_by_two_streams(reports: list[dict[str, Any]]) -> None:
    unread = ("read-after-write", "p1", "reduction")
    overwritten = ("write-after-read", "reduction", "p0")
    assert races(reports, "bucket", producers=True, release=True) == []
    assert races(reports, "bucket", producers=False, release=True) == [unread]
    assert races(reports, "bucket", producers=True, release=False) == [overwritten]
    assert races(reports, "bucket", producers=False, release=False) == [unread, overwritten]


def test_the_place_is_the_line_of_the_program(reports: list[dict[str, Any]]) -> None:
    lines = PROGRAMS.read_text().splitlines()
    report = next(report for report in reports if report["races"])
    race = report["races"][0]
    assert race["buffer"] == "bucket"
    assert race["first"]["file"] == str(PROGRAMS)
    assert "copy_(gradient)" in lines[race["first"]["line"] - 1]
    assert "bucket.mul_" in lines[race["second"]["line"] - 1]


def test_memory_freed_while_another_stream_uses_it(reports: list[dict[str, Any]]) -> None:
    ((kind, first, _),) = races(reports, "temporary", record=False, wait=False)
    assert (kind, first) == ("use-after-free", "side")
    assert races(reports, "temporary", record=True, wait=False) == []
    assert races(reports, "temporary", record=False, wait=True) == []


def test_a_gradient_taken_before_the_backward_is_done(reports: list[dict[str, Any]]) -> None:
    found = races(reports, "backward", wait=False)
    assert found
    assert {first for _, first, _ in found} == {"side"}
    assert races(reports, "backward", wait=True) == []


def test_what_the_host_has_read_is_over(reports: list[dict[str, Any]]) -> None:
    assert [kind for kind, _, _ in races(reports, "host", wait=False)] == ["read-after-write"]
    assert races(reports, "host", wait=True) == []
