"""DeepSpeed's accelerator for MLUs on the stand-in, as shipped and as this package has it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from on_stand_in import run

deepspeed = pytest.importorskip("deepspeed")
if shutil.which("c++") is None:
    pytest.skip("the simulated device needs a C++ compiler", allow_module_level=True)

DEEPSPEED = Version(deepspeed.__version__.strip())

# Starting a process may build the device's extension.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    done = run("scripts/accelerator_facts.py", TORCH_MLU_STAND_IN="r1.22_pt2.1.0")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["deepspeed"] == str(DEEPSPEED)
    return found


def test_takes_every_call_of_the_installed_deepspeed(facts: dict[str, Any]) -> None:
    broken = ["create_graph", "initial_seed", "pin_memory"]
    assert facts["faults"]["ours"] == []
    assert sorted(facts["faults"]["theirs"]) == (broken if Version("0.19.2") >= DEEPSPEED else [])


def test_the_default_stream_is_one_whichever_is_current(facts: dict[str, Any]) -> None:
    assert facts["default is current"] == {"theirs": True, "ours": False}


def test_is_deepspeeds_with_what_it_lacks(facts: dict[str, Any]) -> None:
    exported = facts["ours"]["exported"]
    assert {"NEUWARE_HOME", "CNCL", "DS_ACCELERATOR", "ACCEL_STREAMS"} <= set(exported)
    assert facts["ours"] == {
        "is DeepSpeed's": True,
        "events are torch_mlu's": True,
        "blocking": True,
        "device": ["mlu:1", "mlu"],
        "seed": 11,
        "graph": "MLUGraph",
        "pinned": True,
        "ranges": [1, 0],
        "communication": "cncl",
        "exported": exported,
    }


def test_mixed_precision_works(facts: dict[str, Any]) -> None:
    assert facts["autocast"] == "torch.bfloat16"
    assert facts["scaled step"] == [0.0] * 4


WHICH = (
    "from deepspeed.accelerator import get_accelerator as get; a = get(); "
    "print(a.device_name(), hasattr(a, 'accel_streams_backend'))"
)


@pytest.mark.parametrize(("choice", "ours"), [("accel_streams", True), ("mlu", False)])
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
