"""Cases 8 to 10: accelerator classes and backends that are not what they should be.

8. An accelerator class whose methods cannot be called as DeepSpeed does (DeepSpeed #8208).
9. A backend whose import raises (vLLM #48277, SGLang #21388).
10. A backend written for an older abstract class (intel-extension-for-deepspeed #81).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_streams.explore import version_of
from made_up_plugins import Plugins

pytest.importorskip("deepspeed")

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

from accel_streams.deepspeed._accelerator import GenericAccelerator
from accel_streams.deepspeed._interface import interface_faults

Python = Callable[..., "subprocess.CompletedProcess[str]"]


class NovaDevice:
    """As much of a backend as making an accelerator takes."""

    name = "nova"
    device_type = "meta"
    communication_backend = "nova_ccl"
    visible_devices_env = "NOVA_VISIBLE_DEVICES"
    compile_backend = "eager"

    def device_module(self) -> Any:
        return SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)


class Broken(GenericAccelerator):
    def pin_memory(self, tensor: Any) -> Any:  # type: ignore[override]
        return tensor

    def initial_seed(self, seed: int) -> int:  # type: ignore[override]
        return seed

    def create_graph(self) -> None:  # type: ignore[override]
        return None


class TestAccelerator:
    def test_three_faults_are_three_named_failures(self) -> None:
        faults = interface_faults(Broken(NovaDevice()))  # type: ignore[arg-type]
        assert sorted(fault.method for fault in faults) == [
            "create_graph",
            "initial_seed",
            "pin_memory",
        ]
        reasons = {fault.method: fault.reason for fault in faults}
        assert "demands 'seed'" in reasons["initial_seed"]
        assert "None" in reasons["create_graph"]
        # Up to 0.19.4 the name of what it lacks is align_bytes.
        (lacks,) = [
            name for name in ("align_bytes", "make_copy") if repr(name) in reasons["pin_memory"]
        ]
        assert lacks in DeepSpeedAccelerator.pin_memory.__code__.co_varnames

    def test_ours_has_none(self) -> None:
        assert interface_faults(GenericAccelerator(NovaDevice())) == ()  # type: ignore[arg-type]

    def test_a_method_that_is_missing_is_named(self) -> None:
        class Abstract(DeepSpeedAccelerator):  # type: ignore[misc]
            pass

        faults = interface_faults(Abstract)
        properties = {"Event", "Stream"} | {
            name for name in Abstract.__abstractmethods__ if name.endswith("Tensor")
        }
        assert {fault.method for fault in faults} == Abstract.__abstractmethods__ - properties


@pytest.fixture
def python(plugins: Plugins) -> Python:
    """Run a program in a process of its own, which sees the made-up plug-ins."""

    def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = [str(plugins.folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))}
        return subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **settings, **environment},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    return run


WHICH = "import deepspeed.accelerator as a; print('device', a.get_accelerator().device_name())"
# The simulated device under another name, because that one is never chosen by itself.
GOOD = """
from accel_streams.backends.cpu_fake import CpuFakeBackend

class Backend(CpuFakeBackend):
    name = "good"
"""
RAISES = "raise RuntimeError('libnova.so: wrong version')"


@pytest.mark.once
class TestImportThatRaises:
    @pytest.fixture(autouse=True)
    def _nova(self, plugins: Plugins) -> None:
        plugins.add("nova", RAISES)

    def test_named_it_is_an_error_with_the_cause(self, python: Python) -> None:
        done = python("-c", WHICH, DS_ACCELERATOR="accel_streams:nova")
        assert done.returncode != 0
        assert "device" not in done.stdout
        assert "BrokenBackendError" in done.stderr
        assert "RuntimeError: libnova.so: wrong version" in done.stderr

    def test_only_installed_it_is_one_warning(self, python: Python, plugins: Plugins) -> None:
        plugins.add("good", GOOD)
        done = python(
            "-c", WHICH, DS_ACCELERATOR="accel_streams", ACCEL_STREAMS_PLUGINS="nova,good"
        )
        assert done.stdout.splitlines()[-1:] == ["device fake"], done.stderr
        assert done.stderr.count("BackendWarning") == 1
        assert done.stderr.count("libnova.so: wrong version") == 1

    def test_only_installed_it_is_listed_as_broken(self, python: Python, tmp_path: Path) -> None:
        file = tmp_path / "list.json"
        done = python("-m", "accel_streams.cli", "list", "--probe", "--json", str(file))
        assert done.returncode == 0, done.stderr
        (nova,) = [
            entry for entry in json.loads(file.read_text())["backends"] if entry["name"] == "nova"
        ]
        assert nova["state"] == "broken"
        assert "libnova.so: wrong version" in nova["reason"]
        assert done.stderr.count("libnova.so: wrong version") <= 1

    def test_deepspeed_by_itself_would_take_the_cpu(self, python: Python) -> None:
        """What must not happen: nothing is said, and it is another device."""
        done = python("-c", WHICH, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert done.stdout.splitlines()[-1:] == ["device cpu"]
        assert "nova" not in done.stderr


OLD_ACCELERATOR = """
from accel_streams.backends.privateuse1 import PrivateUse1Backend

class Backend(PrivateUse1Backend):
    name = "nova"
    device_type = "meta"
    communication_backend = "nova_ccl"
    visible_devices_env = "NOVA_VISIBLE_DEVICES"
    description = "a vendor's device"
    url = "https://example.com"

    def probe(self):
        return None

    def accelerator(self):
        # A release of DeepSpeed that asks for one method more than this class has.
        import abc
        from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

        known = DeepSpeedAccelerator.__abstractmethods__
        DeepSpeedAccelerator.temperature = abc.abstractmethod(lambda self: None)
        abc.update_abstractmethods(DeepSpeedAccelerator)
        methods = {name: lambda self, *args, **kwargs: None for name in known}
        return type("NovaAccelerator", (DeepSpeedAccelerator,), methods)()
"""


def test_a_backend_for_an_older_deepspeed_fails_early_and_says_which(
    plugins: Plugins, python: Python
) -> None:
    plugins.add("nova", OLD_ACCELERATOR, distribution="torch-nova", version="1.4")
    done = python("-c", WHICH, DS_ACCELERATOR="accel_streams:nova")
    assert done.returncode != 0
    assert "device" not in done.stdout
    told = done.stderr.strip().splitlines()[-1]
    assert told.startswith("accel_streams._errors.BrokenBackendError")
    for part in ("'nova'", "torch-nova 1.4", f"DeepSpeed {version_of('deepspeed')}", "temperature"):
        assert part in told
