"""Which accelerator DeepSpeed gets, for every way of asking, and never silently another one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wrapt

from accel_streams import (
    AccelStreamsError,
    BrokenBackendError,
    SettingError,
    UnavailableBackendError,
    UnknownBackendError,
)
from accel_streams.deepspeed import _seams, _select, install, on_real_accelerator
from made_up_plugins import TORCH_NOVA
from ports import free_port
from torch_release import IMPORT_FIRST, needs_torch_entry_points

Source = Callable[..., str]
Python = Callable[..., subprocess.CompletedProcess[str]]

ACCELERATOR = "a made-up accelerator"


def nova(source: Source, probe: str = "return None", accelerator: str = "") -> str:
    """Return the source of a backend ``nova`` that makes an accelerator."""
    made = accelerator or f"return {ACCELERATOR!r}"
    body = source("nova", device_type="nova", probe=probe)
    return body.replace("keep_alive = accelerator = None", "keep_alive = None") + (
        f"\n        def accelerator(self):\n            {made}\n"
    )


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand in for DeepSpeed's module that keeps the accelerator."""
    monkeypatch.setattr(_select, "_installed", None)
    monkeypatch.delitem(sys.modules, _select._ALIAS, raising=False)
    monkeypatch.setattr(_seams, "hook_optimizers", lambda: None)
    module = SimpleNamespace(
        ds_accelerator=None, SUPPORTED_ACCELERATOR_LIST=["cuda", "cpu"], aliases=[]
    )
    module.set_accelerator = lambda accelerator: setattr(module, "ds_accelerator", accelerator)
    return module


@pytest.mark.parametrize("value", ["accel_streams:nova", "nova", "accel-streams:nova"])
def test_a_backend_can_be_named(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    plugins.add("nova", nova(backend_source))
    monkeypatch.setenv("DS_ACCELERATOR", value)
    on_real_accelerator(real)
    assert real.ds_accelerator == ACCELERATOR


@pytest.mark.parametrize("value", ["accel_streams:two_words", "accel_streams:two-words"])
def test_hyphen_and_underscore_are_the_same(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    plugins.add("two_words", nova(backend_source).replace('"nova"', '"two-words"', 1))
    monkeypatch.setenv("DS_ACCELERATOR", value)
    on_real_accelerator(real)
    assert real.ds_accelerator == ACCELERATOR


def test_without_a_name_the_only_usable_backend_is_taken(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.add("nova", nova(backend_source))
    monkeypatch.setenv("ACCEL_STREAMS_PLUGINS", "nova,cpu_fake")
    monkeypatch.setenv("DS_ACCELERATOR", "accel_streams")
    on_real_accelerator(real)
    assert real.ds_accelerator == ACCELERATOR


def test_without_a_name_the_simulated_device_is_never_taken(
    real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_STREAMS_PLUGINS", "cpu_fake")
    monkeypatch.setenv("DS_ACCELERATOR", "accel_streams")
    with pytest.raises(UnavailableBackendError, match="cpu_fake"):
        on_real_accelerator(real)
    assert real.ds_accelerator is None


@pytest.mark.parametrize("value", ["cuda", "cpu", "", "no_such_device"])
def test_what_is_not_ours_is_left_to_deepspeed(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    plugins.add("nova", nova(backend_source))
    monkeypatch.setenv("DS_ACCELERATOR", value)
    on_real_accelerator(real)
    assert real.ds_accelerator is None


def test_a_name_that_deepspeed_knows_is_deepspeeds(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.add("nova", nova(backend_source))
    real.SUPPORTED_ACCELERATOR_LIST.append("nova")
    monkeypatch.setenv("DS_ACCELERATOR", "nova")
    on_real_accelerator(real)
    assert real.ds_accelerator is None


def test_an_unusable_backend_is_an_error_with_its_reason(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.add("nova", nova(backend_source, probe="return 'the driver is missing'"))
    for value in ("nova", "accel_streams:nova"):
        monkeypatch.setenv("DS_ACCELERATOR", value)
        with pytest.raises(UnavailableBackendError, match="the driver is missing"):
            on_real_accelerator(real)


def test_a_backend_that_makes_no_accelerator_is_broken_with_its_cause(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.add("nova", nova(backend_source, accelerator="raise OSError('no firmware')"))
    monkeypatch.setenv("DS_ACCELERATOR", "nova")
    with pytest.raises(BrokenBackendError, match="no firmware") as caught:
        on_real_accelerator(real)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.name == "nova"


def test_a_misspelt_mode_is_an_error_before_training(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.add("nova", nova(backend_source))
    monkeypatch.setenv("DS_ACCELERATOR", "nova")
    monkeypatch.setenv("ACCEL_STREAMS_ZERO", "tracked")
    with pytest.raises(SettingError, match="ACCEL_STREAMS_ZERO"):
        on_real_accelerator(real)
    assert real.ds_accelerator is None


class TestInstall:
    def test_before_deepspeed_is_imported(
        self, real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugins.add("nova", nova(backend_source))
        hooks = {}
        monkeypatch.delitem(sys.modules, _select._REAL_ACCELERATOR, raising=False)
        monkeypatch.setattr(
            wrapt,
            "register_post_import_hook",
            lambda hook, name: hooks.update({name: hook}),
        )
        install("nova")
        # It wins over the environment, whichever of the two hooks runs first.
        monkeypatch.setenv("DS_ACCELERATOR", "accel_streams:cpu_fake")
        on_real_accelerator(real)
        assert real.ds_accelerator is None
        hooks[_select._REAL_ACCELERATOR](real)
        assert real.ds_accelerator == ACCELERATOR

    def test_after_deepspeed_has_chosen_the_same_device(
        self, real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugins.add("nova", nova(backend_source))
        real.ds_accelerator = SimpleNamespace(_name="nova")
        monkeypatch.setitem(sys.modules, _select._REAL_ACCELERATOR, real)
        install("nova")
        assert real.ds_accelerator == ACCELERATOR

    def test_after_deepspeed_has_chosen_another_device(
        self, real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugins.add("nova", nova(backend_source))
        theirs = real.ds_accelerator = SimpleNamespace(_name="cpu")
        monkeypatch.setitem(sys.modules, _select._REAL_ACCELERATOR, real)
        with pytest.raises(AccelStreamsError, match=r"before DeepSpeed is imported.*:nova"):
            install("nova")
        assert real.ds_accelerator is theirs

    def test_without_deepspeed(
        self, real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugins.add("nova", nova(backend_source))
        for name in ("deepspeed", _select._REAL_ACCELERATOR):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(AccelStreamsError, match="pip install deepspeed"):
            install("nova")

    def test_unknown_backend(self, real: Any) -> None:
        with pytest.raises(UnknownBackendError, match="cpu_fake"):
            install("cpu_fak")


def test_a_checkout_of_deepspeed_has_one_accelerator_under_both_names(
    real: Any, plugins: Any, backend_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the same files are also imported as the top-level package ``accelerator``."""
    alias = SimpleNamespace(SUPPORTED_ACCELERATOR_LIST=["cuda"], set_accelerator=None)
    made: list[object] = []
    alias.set_accelerator = made.append
    foreign = SimpleNamespace(name="somebody else's package called accelerator")
    plugins.add("nova", nova(backend_source))
    monkeypatch.setenv("DS_ACCELERATOR", "nova")
    for module in (alias, foreign):
        monkeypatch.setitem(sys.modules, _select._ALIAS, module)
        real.ds_accelerator = None
        on_real_accelerator(real)
    assert made == [ACCELERATOR]


class TestRealDeepSpeed:
    def test_a_vendors_device_by_its_bare_name(self, python: Python, vendor: Path) -> None:
        done = python(
            """
            import torch, deepspeed
            from deepspeed.accelerator import get_accelerator
            from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
            import wrapt
            accelerator = get_accelerator()
            print(accelerator.device_name(), accelerator.device_count(), accelerator.device(1))
            print(type(accelerator).__name__, torch.zeros(1, device="meta").device)
            print(all(isinstance(vars(DeepSpeedZeroOptimizer)[n], wrapt.FunctionWrapper)
                      for n in ("__init__", "reduce_ipg_grads", "step")))
            """,
            DS_ACCELERATOR="nova",
        )
        assert done.returncode == 0, done.stderr
        assert "nova 4 nova:1" in done.stdout
        assert "GenericAccelerator" in done.stdout
        assert done.stdout.strip().endswith("True")

    def test_deepspeeds_own_accelerators_are_untouched(self, python: Python) -> None:
        done = python(
            """
            import torch, deepspeed, inspect
            from deepspeed.accelerator import get_accelerator
            from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
            print(type(get_accelerator()).__name__)
            print(type(vars(DeepSpeedZeroOptimizer)["reduce_ipg_grads"]).__name__)
            """,
            DS_ACCELERATOR="cpu",
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-2:] == ["CPU_Accelerator", "function"], done.stdout

    @pytest.mark.parametrize("how", ["environment", "install"])
    def test_a_failing_choice_fails_the_import_every_time(
        self, python: Python, vendor: Path, how: str
    ) -> None:
        available = how == "install"
        (vendor / "torch_nova.py").write_text(
            TORCH_NOVA + f"def is_available(): return {available}\n"
        )
        program = """
            import torch, sys
            if {install}:
                import accel_streams
                accel_streams.install("nova")
                # What install() found usable no longer is when the accelerator is made.
                from accel_streams.backends.privateuse1 import PrivateUse1Backend
                def broken(self):
                    raise OSError("the driver went away")
                PrivateUse1Backend.accelerator = broken
            for attempt in range(2):
                try:
                    import deepspeed
                except Exception as exc:
                    print(type(exc).__name__, exc)
                else:
                    print("imported on", deepspeed.accelerator.get_accelerator()._name)
            """.format(install=how == "install")
        environment = {} if how == "install" else {"DS_ACCELERATOR": "accel_streams:nova"}
        done = python(program, **environment)
        expected = "BrokenBackendError" if how == "install" else "UnavailableBackendError"
        failures = [line for line in done.stdout.splitlines() if line.startswith(expected)]
        assert len(failures) == 2, done.stdout + done.stderr
        assert "imported on" not in done.stdout

    @pytest.mark.once
    def test_install_by_hand(self, python: Python, vendor: Path) -> None:
        done = python(
            """
            import accel_streams
            accel_streams.install("nova")
            import deepspeed
            from deepspeed.accelerator import get_accelerator
            print(type(get_accelerator()).__name__, get_accelerator().device_name())
            """
        )
        assert done.returncode == 0, done.stderr
        assert "GenericAccelerator nova" in done.stdout

    @pytest.mark.once
    @needs_torch_entry_points  # the launcher's own processes import DeepSpeed, and nothing of ours
    def test_the_launcher_counts_the_devices_and_passes_the_choice_on(
        self, python: Python, vendor: Path, tmp_path: Path
    ) -> None:
        script = tmp_path / "train.py"
        script.write_text(
            f"{IMPORT_FIRST}import os, torch, deepspeed\n"
            "from deepspeed.accelerator import get_accelerator\n"
            "deepspeed.init_distributed()\n"
            "rank = torch.tensor([1.0 + deepspeed.comm.get_rank()])\n"
            "deepspeed.comm.all_reduce(rank)\n"
            "device = get_accelerator().device_name()\n"
            "visible = os.environ['NOVA_VISIBLE_DEVICES']\n"
            # In one write, or the lines of the two ranks could mix.
            "print(f'sum {rank.item()} {device} {visible}\\n', end='', flush=True)\n"
        )
        done = python(
            f"""
            import sys
            sys.argv = ["deepspeed", "--num_gpus", "2", "--no_local_rank",
                        "--master_port", "{free_port()}", {str(script)!r}]
            from deepspeed.launcher.runner import main
            main()
            """,
            DS_ACCELERATOR="accel_streams:nova",
            GLOO_SOCKET_IFNAME="lo",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("sum 3.0 nova 0,1") == 2, done.stdout
