"""How the package gets in: on ``import torch``, at no cost, without ever breaking an import."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from torch_release import needs_torch_entry_points

# A DeepSpeed in which only the module that is hooked exists. It imports torch first, as the real
# one does, and a made-up torch that runs the entry point at the end of its import, as the real one
# does. accel_streams.deepspeed is replaced too: it writes down what it is asked.
FILES = {
    "torch.py": """
        import os
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
            from accel_streams._bootstrap import autoload
            autoload()
    """,
    "deepspeed/__init__.py": """
        import torch
        from deepspeed.accelerator import real_accelerator
    """,
    "deepspeed/accelerator/__init__.py": "",
    "deepspeed/accelerator/real_accelerator.py": "accelerator = None\n",
}
PRELUDE = """
    import sys, types
    layer = types.ModuleType("accel_streams.deepspeed")
    calls = []
    layer.on_real_accelerator = lambda module: calls.append(module.__name__)
    sys.modules["accel_streams.deepspeed"] = layer
"""
HOOKED = "['deepspeed.accelerator.real_accelerator']"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, source in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), encoding="utf-8")
    return tmp_path


def python(
    program: str, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process, with the folder's modules before all others."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if folder is not None:
        env["PYTHONPATH"] = str(folder)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(program)],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def output(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import torch; import deepspeed",
        "import deepspeed",
        "import deepspeed.accelerator.real_accelerator",
        "import torch; import accel_streams; import deepspeed; import deepspeed",
        "import accel_streams; import deepspeed",
    ],
)
def test_the_accelerator_module_is_hooked_once(folder: Path, imports: str) -> None:
    done = python(f"{imports}\nprint(calls)", folder, DS_ACCELERATOR="accel_streams")
    assert output(done) == HOOKED


def test_without_the_variable_nothing_happens(folder: Path) -> None:
    program = """
        del sys.modules["accel_streams.deepspeed"]
        import deepspeed
        print(calls, sorted(name for name in sys.modules if name.startswith("accel_streams")))
    """
    assert output(python(program, folder)) == "[] ['accel_streams', 'accel_streams._bootstrap']"


def test_with_entry_points_off_an_import_of_the_package_does_the_same(folder: Path) -> None:
    environment = {"DS_ACCELERATOR": "accel_streams", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    off = python("import deepspeed\nprint(calls)", folder, **environment)
    assert output(off) == "[]"
    before = "import accel_streams, deepspeed\nprint(calls)"
    assert output(python(before, folder, **environment)) == HOOKED
    after = "import deepspeed, accel_streams\nprint(calls)"
    assert output(python(after, folder, **environment)) == HOOKED


def test_torch_alone_imports_neither_wrapt_nor_anything_else_of_ours(folder: Path) -> None:
    program = """
        before = set(sys.modules)
        import torch
        print(sorted(set(sys.modules) - before - {"torch"}))
    """
    names = output(python(program, folder))
    assert "wrapt" not in names
    assert "accel_streams._registry" not in names
    assert "accel_streams._bootstrap" in names


def test_an_error_of_ours_reaches_whoever_imports_deepspeed_each_time(folder: Path) -> None:
    program = """
        def refuse(module):
            raise RuntimeError("no such backend")
        layer.on_real_accelerator = refuse
        for attempt in range(3):
            try:
                import deepspeed
            except RuntimeError as exc:
                print(exc)
    """
    done = python(program, folder, DS_ACCELERATOR="accel_streams:nonsense")
    assert output(done).splitlines() == ["no such backend"] * 3


def test_a_missing_wrapt_breaks_neither_torch_nor_deepspeed(folder: Path) -> None:
    (folder / "wrapt.py").write_text("raise ImportError('wrapt is broken')\n", encoding="utf-8")
    program = """
        import torch
        import deepspeed
        print(calls)
    """
    done = python(program, folder, DS_ACCELERATOR="accel_streams")
    assert output(done) == "[]"
    assert "inactive in this process" in done.stderr
    assert "wrapt is broken" in done.stderr


def test_looking_for_a_module_is_left_to_the_other_finders(folder: Path) -> None:
    program = """
        import importlib.util
        import accel_streams
        print(importlib.util.find_spec("no_such_module"), importlib.util.find_spec("json").name)
    """
    assert output(python(program, folder)) == "None json"


@needs_torch_entry_points
@pytest.mark.parametrize(("autoload", "ran"), [("1", True), ("0", False), ("true", False)])
def test_the_real_torch_calls_the_entry_point(autoload: str, ran: bool) -> None:
    program = """
        import torch
        boot = sys.modules.get("accel_streams._bootstrap")
        print(boot is not None and boot.autoload_ran, "wrapt" in sys.modules)
    """
    done = python(program, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert output(done) == f"{ran} False"
