"""Cases 6 and 7: streams and memory by themselves, without DeepSpeed.

6. A temporary that is freed while another stream still uses it (DeepSpeed #7965).
7. A default stream that is the current one (torch_mlu).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from accel_streams import load
from accel_streams.backends.mlu import MluBackend
from accel_streams.backends.privateuse1 import PrivateUse1Backend

PROGRAMS = Path(__file__).with_name("programs.py")
# The device's extension may have to be built first.
LIMIT = 300
SCHEDULES = ("in-order", "fifo", "lifo", "mru", "lru", "lazy", "random", "priority")

pytestmark = pytest.mark.timeout(LIMIT + 20)


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    # In a process of its own: the device is registered with torch once and for all.
    done = subprocess.run(
        [sys.executable, str(PROGRAMS)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def report(reports: list[dict[str, Any]], name: str, switch: bool) -> dict[str, Any]:
    (found,) = [one for one in reports if (one["name"], one["switch"]) == (name, switch)]
    return found


class TestTemporary:
    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_kept_alive_it_has_the_value_from_before_the_free(
        self, reports: list[dict[str, Any]], schedule: str
    ) -> None:
        kept = report(reports, f"temporary, {schedule}", True)
        assert kept["result"] == ["3.0"]
        assert kept["races"] == []

    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_without_that_it_is_a_lifetime_fault(
        self, reports: list[dict[str, Any]], schedule: str
    ) -> None:
        dropped = report(reports, f"temporary, {schedule}", False)
        assert "3.0" not in dropped["result"]
        (race,) = dropped["races"]
        assert (race["kind"], race["buffer"]) == ("use-after-free", "temporary")
        assert race["first"]["stream"] == "R"


class TestDefaultStream:
    def test_of_the_simulated_device_is_the_one_taken_outside(
        self, reports: list[dict[str, Any]]
    ) -> None:
        found = report(reports, "default stream", False)["result"]
        assert found == {"same": True, "is s": False}

    def test_a_faulty_one_is_told_apart(self, reports: list[dict[str, Any]]) -> None:
        found = report(reports, "default stream", True)["result"]
        assert found == {"same": False, "is s": True}

    @pytest.fixture
    def current(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Stand in for torch_mlu as it is for torch 2.1; return the ids of entered streams."""
        entered = [0]
        package: Any = ModuleType("torch_mlu")
        package._MLUC = SimpleNamespace(_mlu_getDefaultStream=lambda index: (0, index, 20))

        def current_stream(device: Any = None) -> Any:
            return SimpleNamespace(stream_id=entered[-1], device_index=0)

        module = SimpleNamespace(
            Stream=SimpleNamespace,
            _lazy_init=lambda: None,
            current_device=lambda: 0,
            current_stream=current_stream,
            # The fault.
            default_stream=current_stream,
        )
        monkeypatch.setitem(sys.modules, "torch_mlu", package)
        monkeypatch.setattr(torch, "mlu", module, raising=False)
        return entered

    def test_of_mlu_is_the_one_taken_outside(self, current: list[int]) -> None:
        backend = MluBackend()
        assert load("mlu").name == backend.name
        outside = backend.stream_id(backend.default_stream())
        current.append(7)
        assert backend.stream_id(backend.default_stream()) == outside
        assert backend.stream_id(backend.current_stream()) != outside

    def test_believing_torch_mlu_gives_the_current_one(self, current: list[int]) -> None:
        class Believing(PrivateUse1Backend):
            name = device_type = "mlu"

        backend = Believing()
        outside = backend.stream_id(backend.default_stream())
        current.append(7)
        assert backend.stream_id(backend.default_stream()) != outside
