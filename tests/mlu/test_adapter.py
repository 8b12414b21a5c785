"""torch_mlu's faults by branch, on the stand-in, and what this package's backend makes of them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version

from stand_in_device import ENVIRONMENT, STAND_IN

deepspeed = pytest.importorskip("deepspeed")
if shutil.which("c++") is None:
    pytest.skip("the simulated device needs a C++ compiler", allow_module_level=True)

DEEPSPEED = Version(deepspeed.__version__.strip())
SCRIPTS = Path(__file__).with_name("scripts")

# Starting a process may build the device's extension.
pytestmark = pytest.mark.timeout(600)


def _load_branches() -> ModuleType:
    """Load the stand-in's list of branches, and nothing else of it."""
    spec = importlib.util.spec_from_file_location("branches", STAND_IN / "torch_mlu/_branch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BRANCHES: dict[str, frozenset[str]] = _load_branches().BRANCHES
# The others have the faults of one of these.
DIFFERENT = [
    name
    for number, (name, faults) in enumerate(BRANCHES.items())
    if faults not in list(BRANCHES.values())[:number]
]


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@cache
def facts_of(branch: str) -> dict[str, Any]:
    done = run(str(SCRIPTS / "facts.py"), TORCH_MLU_STAND_IN=branch)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(params=DIFFERENT)
def branch(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def facts(branch: str) -> dict[str, Any]:
    return facts_of(branch)


def test_each_branch_of_the_sources_has_its_faults() -> None:
    assert len(DIFFERENT) == 4
    assert {name for name, faults in BRANCHES.items() if "default_stream" in faults} == {
        "r1.22_pt2.1.0"
    }


DEFAULT_STREAMS = (
    "default stream",
    "default stream of another device",
    "default stream of DeepSpeed's",
)


@pytest.mark.once
@pytest.mark.parametrize("which", DEFAULT_STREAMS)
def test_the_default_stream_is_one_whichever_is_current(
    branch: str, facts: dict[str, Any], which: str
) -> None:
    assert facts["ours"][which]
    assert facts["theirs"][which] is ("default_stream" not in BRANCHES[branch])


@pytest.mark.once
def test_events_that_block_are_taken(branch: str, facts: dict[str, Any]) -> None:
    assert facts["ours"]["blocking"]
    assert facts["theirs"]["blocking"] is ("blocking" not in BRANCHES[branch])


@pytest.mark.once
def test_torchs_own_streams_are_taken_for_what_they_are(branch: str, facts: dict[str, Any]) -> None:
    """As torch_mlu is, the event stands for whatever it found in memory."""
    assert facts["ours"]["foreign"] == "pending"
    assert facts["generic streams"]
    theirs = "done" if "unchecked" in BRANCHES[branch] else "TypeError"
    assert facts["theirs"]["foreign"] == theirs


@pytest.mark.once
def test_what_is_no_stream_is_refused(branch: str, facts: dict[str, Any]) -> None:
    assert facts["ours"]["no stream"] == "TypeError"
    assert set(facts["refused"].values()) == {"TypeError"}
    theirs = "" if "unchecked" in BRANCHES[branch] else "TypeError"
    assert facts["theirs"]["no stream"] == theirs


@pytest.mark.once
def test_only_some_branches_can_hold_a_stream_for_a_while(
    branch: str, facts: dict[str, Any]
) -> None:
    assert facts["sleeps"] is ("no_sleep" not in BRANCHES[branch])


class TestAccelerator:
    @pytest.fixture
    def facts(self) -> dict[str, Any]:
        return facts_of(DIFFERENT[0])

    def test_takes_every_call_of_the_installed_deepspeed(self, facts: dict[str, Any]) -> None:
        assert facts["deepspeed"] == str(DEEPSPEED)
        assert facts["ours"]["faults"] == []
        broken = ["create_graph", "initial_seed", "pin_memory"]
        theirs = broken if Version("0.19.2") >= DEEPSPEED else []
        assert sorted(facts["theirs"]["faults"]) == theirs

    def test_is_deepspeeds_with_what_it_lacks(self, facts: dict[str, Any]) -> None:
        accelerator = facts["accelerator"]
        exported = accelerator.pop("exported")
        assert {"NEUWARE_HOME", "CNCL", "DS_ACCELERATOR", "ACCEL_STREAMS"} <= set(exported)
        assert accelerator == {
            "is DeepSpeed's": True,
            "events are torch_mlu's": True,
            "seed": 11,
            "graph": "MLUGraph",
            "pinned": True,
            "ranges": True,
            "backend": "cncl",
        }

    def test_mixed_precision_works(self, facts: dict[str, Any]) -> None:
        assert facts["autocast"] == "torch.bfloat16"
        assert facts["scaled step"] == [0.0] * 4


WHICH = (
    "from deepspeed.accelerator import get_accelerator as get; a = get(); "
    "print(a.device_name(), hasattr(a, 'accel_streams_backend'))"
)


@pytest.mark.parametrize(
    ("choice", "ours"), [("accel_streams", True), ("accel_streams:mlu", True), ("mlu", False)]
)
def test_deepspeed_gets_the_accelerator_that_was_asked_for(choice: str, ours: bool) -> None:
    done = run("-c", WHICH, DS_ACCELERATOR=choice)
    assert done.stdout.splitlines()[-1:] == [f"mlu {ours}"], done.stderr


@pytest.mark.once
def test_list_finds_it(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    done = run("-m", "accel_streams.cli", "list", "--probe", "--json", str(file))
    assert done.returncode == 0, done.stderr
    states = {info["name"]: info["state"] for info in json.loads(file.read_text())["backends"]}
    assert states["mlu"] == "usable"


@pytest.mark.once
def test_it_takes_no_other_devices_place() -> None:
    done = run("-c", "from accel_streams import fake\nfake.enable()\nimport torch_mlu")
    assert done.returncode != 0
    assert "one place" in done.stderr


@pytest.mark.once
def test_a_misspelt_branch_is_an_error() -> None:
    done = run("-c", "import torch_mlu", TORCH_MLU_STAND_IN="r1.22")
    assert done.returncode != 0
    assert "r1.22_pt2.1.0" in done.stderr.splitlines()[-1]
