"""What is built from the repository: all modules, the extension's sources, the entry points."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from source_tree import ROOT, copy_of_the_sources


@pytest.fixture(scope="module")
def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_every_folder_with_modules_is_a_listed_package(
    metadata: configparser.ConfigParser,
) -> None:
    listed = metadata["options"]["packages"].split()
    folders = {path.parent for path in (ROOT / "accel_streams").rglob("__init__.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert listed == sorted(packages | {"accel_streams.backends"})


def test_the_declared_deepspeed_range_is_the_one_the_code_speaks_of(
    metadata: configparser.ConfigParser,
) -> None:
    from accel_streams.deepspeed._versions import SUPPORTED

    oldest, newest = re.findall(r"\d+\.\d+\.\d+", SUPPORTED)
    extras = metadata["options.extras_require"]
    for extra in ("deepspeed", "demo"):
        assert f"deepspeed>={oldest},<={newest}" in extras[extra].split()
    assert set(extras["fake"].split()) <= set(extras["demo"].split())


def test_the_types_of_every_folder_of_tests_are_checked() -> None:
    checked = re.findall(r"mypy (tests/\w+)\n", (ROOT / "tox.ini").read_text(encoding="utf-8"))
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*/test_*.py")}
    assert set(checked) == folders


def test_the_workflow_runs_the_environments_of_the_matrix() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    label = tox["tox"]["labels"].partition("matrix =")[2]
    environments = re.findall(r"[\w-]+", label)
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    run = re.findall(r"^ {10}- ([\w-]+)$", workflow, re.MULTILINE)
    assert len(environments) > 10
    assert run == environments


def test_the_wheel_holds_everything(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path / "source")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"),
            *("--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)),
        ],
        check=True,
        timeout=110,
    )
    (wheel,) = tmp_path.glob("accel_streams-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "accel_streams").rglob("*")
        if path.suffix in {".py", ".cpp", ".h"} or path.name == "py.typed"
    }
    results = (ROOT / "accel_streams" / "hazards" / "results").glob("*.json")
    expected |= {path.relative_to(ROOT).as_posix() for path in results}
    expected |= {f"accel_streams/backends/{path.name}" for path in (ROOT / "backends").glob("*.py")}
    assert names == expected
