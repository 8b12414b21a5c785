"""torch_mlu's faults by branch, on the stand-in, and what this package's backend makes of them.

By hand, and by the conformance suite: which streams a device can hold open, and how, is not
torch_mlu's there but the simulated device's.
"""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from accel_streams.conformance import properties
from on_stand_in import BRANCHES, DIFFERENT, run

if shutil.which("c++") is None:
    pytest.skip("the simulated device needs a C++ compiler", allow_module_level=True)

# The same with every release of DeepSpeed. Starting a process may build the device's extension.
pytestmark = [pytest.mark.once, pytest.mark.timeout(600)]

# What each fault breaks. That events refuse to block, and that nothing sleeps, is no property of
# streams; the latter says how far they can be checked on hardware.
FAILING = {"default_stream": "IDN-03", "unchecked": "IDN-13"}


@cache
def _facts(branch: str) -> dict[str, Any]:
    done = run("scripts/branch_facts.py", TORCH_MLU_STAND_IN=branch)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(params=DIFFERENT)
def branch(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def facts(branch: str) -> dict[str, Any]:
    return _facts(branch)


def expected(failing: set[str]) -> dict[str, str]:
    return {each.id: "failed" if each.id in failing else "passed" for each in properties()}


def test_the_suite_finds_exactly_what_the_faults_break(branch: str, facts: dict[str, Any]) -> None:
    failing = {FAILING[fault] for fault in BRANCHES[branch] if fault in FAILING}
    assert facts["theirs"]["conformance"] == expected(failing)


def test_the_suite_finds_nothing_in_our_backend(facts: dict[str, Any]) -> None:
    assert facts["ours"]["conformance"] == expected(set())


def test_branches_that_differ_are_tried() -> None:
    assert len(DIFFERENT) == 4
    (faulty,) = (name for name, faults in BRANCHES.items() if "default_stream" in faults)
    assert faulty == "r1.22_pt2.1.0"


@pytest.mark.parametrize("which", ["default stream", "default stream of another device"])
def test_the_default_stream_is_one_whichever_is_current(
    branch: str, facts: dict[str, Any], which: str
) -> None:
    assert facts["ours"][which]
    assert facts["theirs"][which] is ("default_stream" not in BRANCHES[branch])


def test_events_that_block_are_taken(branch: str, facts: dict[str, Any]) -> None:
    assert facts["ours"]["blocking"]
    assert facts["theirs"]["blocking"] is ("blocking" not in BRANCHES[branch])


def test_torchs_own_streams_are_taken_for_what_they_are(branch: str, facts: dict[str, Any]) -> None:
    """As torch_mlu is, the event stands for whatever it found in memory."""
    assert facts["ours"]["foreign"] == "pending"
    assert facts["generic streams"]
    theirs = "done" if "unchecked" in BRANCHES[branch] else "TypeError"
    assert facts["theirs"]["foreign"] == theirs


def test_what_is_no_stream_is_refused(branch: str, facts: dict[str, Any]) -> None:
    assert facts["ours"]["no stream"] == "TypeError"
    assert set(facts["refused"].values()) == {"TypeError"}
    theirs = "" if "unchecked" in BRANCHES[branch] else "TypeError"
    assert facts["theirs"]["no stream"] == theirs


def test_only_some_branches_can_hold_a_stream_for_a_while(
    branch: str, facts: dict[str, Any]
) -> None:
    assert facts["sleeps"] is ("no_sleep" not in BRANCHES[branch])


FAULTS = ("default_stream", "blocking", "no_sleep", "unchecked")


def test_the_page_says_which_branch_has_which_fault() -> None:
    page = (Path(__file__).parents[2] / "docs" / "mlu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (r\S+) \| 2\.\d \| [0-9a-f]{40} \| (.*) \|$", page, re.MULTILINE)
    told = {
        branch: {
            fault for fault, cell in zip(FAULTS, cells.split(" | "), strict=True) if cell == "yes"
        }
        for branch, cells in rows
    }
    assert told == {branch: set(faults) for branch, faults in BRANCHES.items() if branch != "none"}


def test_it_takes_no_other_devices_place() -> None:
    done = run("-c", "from accel_streams import fake\nfake.enable()\nimport torch_mlu")
    assert done.returncode != 0
    assert "one place" in done.stderr


def test_a_misspelt_branch_is_an_error() -> None:
    done = run("-c", "import torch_mlu", TORCH_MLU_STAND_IN="r1.22")
    assert done.returncode != 0
    assert "r1.22_pt2.1.0" in done.stderr.splitlines()[-1]
