"""``accel-streams list`` and what every subcommand has in common: help, --json, exit status."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from accel_streams import _registry
from accel_streams.cli import main
from accel_streams.cli._commands import COMMANDS
from accel_streams.cli._output import table, write_json
from made_up_plugins import Plugins

KEYS = {"name", "distribution", "version", "value", "state", "reason"}


def run(*words: str) -> int:
    """Run the command in this process and return its exit status."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def only(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """Have no other backends than the made-up ones."""
    monkeypatch.setattr(_registry, "installed_entry_points", plugins.entry_points)
    return plugins


class TestList:
    def test_shows_each_backend_and_who_registers_it(
        self, only: Plugins, backend_source: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        module = only.add("good", backend_source("good"), version="3.2")
        assert run("list") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split()[:3] == ["BACKEND", "STATE", "DISTRIBUTION"]
        assert lines[1].split() == ["good", "registered", "dist-good", "3.2", f"{module}:Backend"]

    def test_probe_tells_usable_from_unavailable(
        self, only: Plugins, backend_source: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        only.add("good", backend_source("good"))
        only.add("absent", backend_source("absent", probe="return 'no chip'"))
        assert run("list", "--probe") == 0
        captured = capsys.readouterr()
        rows = {line.split()[0]: line for line in captured.out.splitlines()}
        assert rows["good"].split()[1] == "usable"
        assert rows["absent"].split()[1] == "unavailable"
        assert rows["absent"].endswith("no chip")
        assert captured.err == ""

    def test_a_broken_backend_is_listed_with_one_warning(
        self, only: Plugins, backend_source: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        only.add("good", backend_source("good"))
        only.add("bad", "raise OSError('libvendor.so')")
        assert run("list") == 0
        captured = capsys.readouterr()
        assert "broken" in captured.out
        assert "libvendor.so" in captured.out
        assert "registered" in captured.out
        (warning,) = captured.err.splitlines()
        assert "'bad' of dist-bad 1.0" in warning

    def test_json(self, only: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        only.add("same", "", distribution="first")
        only.add("same", "", distribution="second")
        only.add("bad", "raise OSError('libvendor.so')")
        file = tmp_path / "list.json"
        assert run("list", "--json", str(file)) == 0
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["schema"] == 1
        assert all(set(entry) == KEYS for entry in document["backends"])
        assert [(entry["name"], entry["state"]) for entry in document["backends"]] == [
            ("bad", "broken"),
            ("same", "conflict"),
            ("same", "conflict"),
        ]
        assert "BACKEND" in capsys.readouterr().out

    def test_nothing_registered(self, only: Plugins, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("list") == 0
        assert "No backend is registered" in capsys.readouterr().out

    def test_unknown_plugin_name_is_wrong_usage(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("ACCEL_STREAMS_PLUGINS", "cuda,nonsense")
        assert run("list") == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "'nonsense'" in captured.err
        assert "Traceback" not in captured.err

    @pytest.mark.parametrize(
        ("words", "heavy"),
        [
            # Each of these costs as much as the whole answer may.
            (["list"], {"typer", "dataclasses", "inspect", "importlib.metadata", "json"}),
            (["list", "--json", os.devnull], set()),
        ],
    )
    def test_imports_neither_torch_nor_deepspeed_nor_rich(
        self, words: list[str], heavy: set[str]
    ) -> None:
        heavy = heavy | {"torch", "deepspeed", "numpy", "rich", "wrapt"}
        program = (
            "import sys\n"
            # What an environment itself imports when Python starts is not ours.
            f"heavy = {heavy!r} - set(sys.modules)\n"
            "from accel_streams.cli import main\n"
            "try:\n"
            f"    main({words!r})\n"
            "except SystemExit as exc:\n"
            "    assert exc.code == 0, exc.code\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        )
        done = python(program)
        assert done.returncode == 0, done.stderr
        assert "cpu_fake" in done.stdout

    def test_the_short_way_and_the_parsed_way_say_the_same(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("list") == 0
        short = capsys.readouterr()
        assert run("list", "--no-such-option") == 2
        capsys.readouterr()
        assert run("list", "--json", os.devnull) == 0
        assert capsys.readouterr() == short

    def test_a_reader_that_stops_is_no_error(self) -> None:
        done = subprocess.run(
            f"'{sys.executable}' -m accel_streams.cli list | true; exit ${{PIPESTATUS[0]}}",
            shell=True,
            executable="/bin/bash",
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


class TestEverySubcommand:
    @pytest.mark.parametrize("name", COMMANDS)
    def test_help_has_an_example_and_json(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(name, "--help") == 0
        text = capsys.readouterr().out
        assert "Example:" in text
        assert f"accel-streams {name}" in text.partition("Example:")[2]
        assert "--json FILE" in text

    def test_the_main_help_names_each(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--help") == 0
        text = capsys.readouterr().out
        assert all(f"\n  {name} " in text for name in COMMANDS)
        assert "Example:" in text

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        from accel_streams import __version__

        assert run("--version") == 0
        assert capsys.readouterr().out == f"accel-streams {__version__}\n"

    @pytest.mark.parametrize(
        "words", [["no-such-command"], ["--no-such-option"], ["doctor", "extra"], ["list", "x"]]
    )
    def test_wrong_usage(self, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(*words) == 2
        assert "Usage:" in capsys.readouterr().err

    @pytest.mark.parametrize("name", ["list", "doctor"])
    def test_json_that_cannot_be_written_is_refused_before_the_work(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for path in (tmp_path, tmp_path / "missing" / "file.json"):
            assert run(name, "--json", str(path)) == 2
            captured = capsys.readouterr()
            assert captured.out == ""
            assert str(path.parent if path.parent != tmp_path else path) in captured.err


DOCUMENT: dict[str, Any] = {"schema": 1, "text": "ä"}


class TestWriteJson:
    def test_leaves_the_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        path.write_text("old", encoding="utf-8")
        path.chmod(0o640)
        write_json(path, DOCUMENT)
        assert json.loads(path.read_text(encoding="utf-8")) == DOCUMENT
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert list(tmp_path.iterdir()) == [path]

    def test_a_new_file_has_the_usual_permissions(self, tmp_path: Path) -> None:
        plain, path = tmp_path / "plain", tmp_path / "out.json"
        plain.touch()
        write_json(path, DOCUMENT)
        assert path.stat().st_mode == plain.stat().st_mode

    @pytest.mark.parametrize("failing", ["replace", "fsync"])
    def test_a_failure_keeps_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
    ) -> None:
        path = tmp_path / "out.json"
        path.write_text("old", encoding="utf-8")

        def fail(*args: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="disk full"):
            write_json(path, DOCUMENT)
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_what_json_does_not_know_keeps_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        path.write_text("old", encoding="utf-8")
        with pytest.raises(TypeError):
            write_json(path, {"value": object()})
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_link_stays_a_link(self, tmp_path: Path) -> None:
        target, link = tmp_path / "target.json", tmp_path / "link.json"
        link.symlink_to(target)
        write_json(link, DOCUMENT)
        assert link.is_symlink()
        assert json.loads(target.read_text(encoding="utf-8")) == DOCUMENT

    def test_a_device_is_written_to_and_not_replaced(self, tmp_path: Path) -> None:
        device = tmp_path / "device"
        device.symlink_to(os.devnull)
        write_json(device, DOCUMENT)
        assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_table_aligns_columns_and_leaves_no_trailing_space() -> None:
    rows = [("a", "state", "x"), ("longer", "s", ""), ("", "", "last")]
    assert table(rows, indent="  ") == "\n".join(
        ["  a       state  x", "  longer  s", "                 last"]
    )
    assert table([]) == ""
