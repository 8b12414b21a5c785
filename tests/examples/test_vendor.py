"""The vendor's example: the page that makes it can be followed, and its own tests hold."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from source_tree import ROOT, copy_of_the_sources

EXAMPLE = ROOT / "examples" / "vendor"
PAGE = (ROOT / "docs" / "vendors.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", PAGE, re.DOTALL))
STEPS = {
    name: [line.removeprefix("$ ") for line in block.splitlines()]
    for name, block in re.findall(r"<!-- steps: (\w+) -->\n```console\n(.*?)```\n", PAGE, re.DOTALL)
}
# What pip needs to work on its own, from what is installed already.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
LIMIT = 400  # seconds: the simulated device may have to be built first

pytestmark = [
    pytest.mark.timeout(LIMIT + 60),
    pytest.mark.skipif(shutil.which("c++") is None, reason="the stand-in needs a C++ compiler"),
]


def run(command: str, folder: Path, **variables: str) -> str:
    """Run a command as it stands on the page; return what it printed."""
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_of_the_example(folder: Path) -> Path:
    """Return a copy to build from: a build leaves files behind."""
    ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    return shutil.copytree(EXAMPLE, folder / "vendor", ignore=ignore)


@pytest.fixture(scope="module")
def on_the_path(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the example into a folder, and give the variables that put that on the path."""
    folder = tmp_path_factory.mktemp("vendor")
    source = copy_of_the_example(folder)
    pip = f"'{sys.executable}' -m pip install --quiet --no-deps --target '{folder / 'site'}' ."
    run(pip, source, **OFFLINE)
    return {"PYTHONPATH": str(folder / "site")}


def test_the_page_has_the_files_of_the_example() -> None:
    names = {path.name for path in EXAMPLE.iterdir() if path.is_file()}
    assert names == {*FILES, "README.md"}
    for name, text in FILES.items():
        assert (EXAMPLE / name).read_text(encoding="utf-8") == text, name


def test_its_own_tests_hold(on_the_path: dict[str, str]) -> None:
    """Listed, usable, short; and ZeRO-2 trains on two ranks under DeepSpeed's launcher."""
    pytest.importorskip("deepspeed")
    tests = f"'{sys.executable}' -m pytest -q -p no:cacheprovider '{EXAMPLE}'"
    assert "3 passed" in run(tests, ROOT, **on_the_path)


def test_the_check_is_green(on_the_path: dict[str, str]) -> None:
    pytest.importorskip("deepspeed")
    (step,) = STEPS["check"]
    printed = run(f"'{sys.executable}' -m {words(step)}", ROOT, **on_the_path)
    # What can't be found out with the installed torch is told behind it; a failure is a status.
    assert re.search(r"^nova: \d+ passed\b", printed, re.MULTILINE), printed


def words(step: str) -> str:
    """Return what to run of a step that begins with our command, as a module's arguments."""
    assert step.startswith("accel-streams ")
    return step.replace("accel-streams", "accel_streams.cli", 1)


def test_a_place_that_is_taken_is_said(on_the_path: dict[str, str], tmp_path: Path) -> None:
    """Torch has one place for a device from outside; a second one gets the reason, not a crash."""
    program = tmp_path / "taken.py"
    program.write_text(
        "from accel_streams import _registry, fake\n"
        "fake.enable()\n"
        "(info,) = [info for info in _registry.registered() if info.name == 'nova']\n"
        "info = _registry.probe(info)\n"
        "print(info.state, '|', info.reason)\n"
    )
    printed = run(f"'{sys.executable}' '{program}'", tmp_path, **on_the_path)
    assert printed.startswith("unavailable | torch has one place for a device from outside")
    assert "'fake'" in printed


@pytest.mark.slow
@pytest.mark.timeout(4 * LIMIT)
def test_the_page_can_be_followed_in_an_empty_folder(tmp_path: Path) -> None:
    """Every file and every command of docs/vendors.md, in a fresh environment.

    torch, DeepSpeed and what they need are taken from this one's, which is where a user would have
    them too; this package and the example are installed, not editable, from their sources.
    """
    pytest.importorskip("deepspeed")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    # Its setuptools may be too old for torch's taste, and would hide the one that is not.
    run(f"'{python}' -m pip uninstall --quiet --yes setuptools", tmp_path, **OFFLINE)
    # DeepSpeed's launcher as its own distribution would install it, for this Python.
    launcher = python.with_name("deepspeed")
    launcher.write_text(f"#!{python}\nfrom deepspeed.launcher.runner import main\nmain()\n")
    launcher.chmod(0o755)
    source = copy_of_the_sources(tmp_path / "accel_streams")
    environment = {**OFFLINE, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    run("python -m pip install --quiet --no-deps --ignore-installed .", source, **environment)

    folder = tmp_path / "nova"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    install, listing = STEPS["install"]
    run(install, folder, **environment)
    row = re.search(r"^nova +(\w+)", run(listing, folder, **environment), re.MULTILINE)
    assert row is not None
    assert row[1] == "usable"
    (check,) = STEPS["check"]
    assert " passed" in run(check, folder, **environment)
    (train,) = STEPS["train"]
    printed = run(train, folder, **environment)
    for rank in range(2):
        assert f"rank {rank} on nova:{rank}: loss fell True" in printed
