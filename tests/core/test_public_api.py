"""What is public is in ``__all__``, and loads when it is first used."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import accel_streams
from accel_streams import _errors

ROOT = Path(accel_streams.__file__).parent


def test_each_public_name_has_one_home() -> None:
    homes = [name for names in accel_streams._HOMES.values() for name in names]
    assert sorted(homes) == sorted(accel_streams.__all__)
    assert accel_streams.__all__ == sorted(set(accel_streams.__all__))


@pytest.mark.parametrize("name", [name for name in accel_streams.__all__ if name != "install"])
def test_public_name_is_there(name: str) -> None:
    assert getattr(accel_streams, name) is not None
    assert name in dir(accel_streams)


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        accel_streams.no_such_name  # noqa: B018


def _assigned_all(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
        for node in tree.body
    )


def test_every_module_of_the_core_says_what_it_offers() -> None:
    modules = [*ROOT.glob("_*.py"), *(ROOT / "cli").glob("_*.py")]
    without = [
        str(path.relative_to(ROOT))
        for path in modules
        if path.name != "__main__.py" and not _assigned_all(path)
    ]
    assert without == []


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = (
        "import sys, accel_streams\n"
        "heavy = {'torch', 'deepspeed', 'wrapt', 'numpy', 'rich', 'typer', 'dataclasses'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    # -S: an editable install's own finder must not count. -I would hide the working tree.
    path = [str(ROOT.parent)]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {path!r}\n{program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "error",
    [
        _errors.UnavailableBackendError("m", name="n", distributions=["d 1"], reason="r"),
        _errors.IncompatibleBackendError("m", name="n", api_version=7),
        _errors.UnknownBackendError("m", name="n", known=["k"]),
        _errors.SettingError("m", variable="v", value="x", allowed=["a"]),
        _errors.UnsupportedDeepSpeedError("m", version="1", supported="2", missing=["s"]),
        _errors.BuildError("m", log="l"),
        _errors.TraceFormatError("m", path="p", line=3),
    ],
)
def test_errors_keep_their_fields_between_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == "m"
    assert vars(copy) == vars(error)
    assert isinstance(copy, accel_streams.AccelStreamsError)
