"""Building and caching the extension: whatever goes wrong is one clear error, and leaves nothing.

Nothing here builds the real extension. Most tests put a short program in the place of torch's
builder.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest
import torch

from accel_streams._errors import BuildError
from accel_streams.fake import _build, _compile

SCRIPT = Path(__file__).parent / "scripts" / "build.py"

# What torch's builder does, as seen from outside.
BUILDER = """
import json, pathlib, sys
arguments = json.loads(sys.argv[1])
assert len(arguments["sources"]) > 1
print("[1/2] c++ core.cpp")
print("core.cpp:1:1: warning: something", file=sys.stderr)
print("[2/2] c++ -shared")
library = pathlib.Path(arguments["build_directory"], arguments["name"] + ".so")
library.write_bytes(b"library")
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, and return its folder."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "accel_streams"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a program in the place of torch's builder; what it makes is not loaded."""

    def use(program: str) -> None:
        monkeypatch.setattr(_compile, "_SCRIPT", program)

    monkeypatch.setattr(_build, "_import", lambda library: ModuleType(library.stem))
    use(BUILDER)
    return use


def file_names(folder: Path) -> list[str]:
    """Return what is below a folder: files, and empty folders."""
    found = (path for path in folder.rglob("*") if path.is_file() or not any(path.iterdir()))
    return sorted(str(path.relative_to(folder)) for path in found)


def expected_files() -> list[str]:
    """Return what a build that succeeded leaves in the cache."""
    plan = _build.plan_build()
    return sorted([f"{plan.directory.name}.lock", f"{plan.directory.name}/{plan.library.name}"])


def is_one_paragraph(text: str) -> bool:
    return "\n" not in text and text.endswith(".")


class TestCompiler:
    @pytest.mark.parametrize("cxx", ["/nowhere/c++", None])
    def test_without_one_the_error_says_what_to_install(
        self, cxx: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
        if cxx is not None:
            monkeypatch.setenv("CXX", cxx)
        with pytest.raises(BuildError, match=re.escape(f"(looked for {cxx or 'c++'!r})")) as caught:
            _build.load_extension()
        assert "apt-get install g++" in str(caught.value)
        assert is_one_paragraph(str(caught.value))

    def test_what_is_built_already_needs_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        library = _build.plan_build().library
        library.parent.mkdir(parents=True)
        library.touch()
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
        assert _build.cached_extension() == library

    def test_may_be_a_command_of_several_words(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "a folder" / "cache"
        program.parent.mkdir()
        program.touch(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        monkeypatch.setenv("CXX", "cache c++ -m64")
        assert _compile.find_compiler() == f"'{program}' c++ -m64"

    def test_one_that_fails_is_quoted(
        self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The one test that runs torch's builder.
        compiler = tmp_path / "c++"
        compiler.write_text(
            "#!/bin/sh\n"
            'case "$*" in *version*|-v) echo "c++ (made up) 13.0.0"; exit;; esac\n'
            "echo 'x.cpp:1:1: fatal error: made up' >&2\n"
            "exit 1\n"
        )
        compiler.chmod(0o755)
        monkeypatch.setenv("CXX", str(compiler))
        with pytest.raises(BuildError, match=r"did not build\..*CXX") as caught:
            _build.load_extension()
        assert str(caught.value).count("fatal error: made up") == 1
        assert "Traceback" not in str(caught.value)
        assert "ninja: build stopped" in caught.value.log
        assert file_names(cache) == [f"{_build.plan_build().directory.name}.lock"]

    def test_one_that_hangs_is_ended_with_all_it_started(
        self,
        tmp_path: Path,
        cache: Path,
        builder: Callable[[str], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        held = tmp_path / "held"
        held.touch()
        builder(
            "import fcntl, subprocess\n"
            f"held = open({str(held)!r})\n"
            "fcntl.flock(held, fcntl.LOCK_EX)\n"
            "subprocess.run(['sleep', '100'], pass_fds=[held.fileno()])\n"
        )
        with monkeypatch.context() as patch:
            patch.setattr(_compile, "_TIMEOUT_S", 2.0)
            with pytest.raises(BuildError, match="took more than 2 s and was ended"):
                _build.load_extension()
        with held.open() as file:
            assert wait_for(lambda: can_lock(file)), "something still runs"
        assert file_names(cache) == [f"{_build.plan_build().directory.name}.lock"]


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def can_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class TestWhatIsMissing:
    def test_ninja(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", _compile.find_compiler())
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setitem(sys.modules, "ninja", None)
        with pytest.raises(BuildError, match="pip install ninja") as caught:
            _build.load_extension()
        assert is_one_paragraph(str(caught.value))

    def test_ninja_beside_a_python_that_is_not_on_the_path_is_found(
        self, builder: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("ninja", reason="it is installed in another way")
        builder("import shutil\nassert shutil.which('ninja')\n" + BUILDER)
        monkeypatch.setenv("CXX", _compile.find_compiler())
        monkeypatch.setenv("PATH", "/nowhere")
        _build.load_extension()

    @pytest.mark.parametrize(
        ("printed", "said"),
        [
            ("torch.cpp:9:10: fatal error: Python.h: No such file or directory", "python3-dev"),
            ("c++: fatal error: Killed signal terminated program cc1plus", "MAX_JOBS=1"),
            ("the last thing that was printed", "The build said:\n  the last thing"),
            ("", "The build said:\n  (nothing)"),
        ],
    )
    def test_what_the_build_needs(
        self, printed: str, said: str, builder: Callable[[str], None]
    ) -> None:
        builder(f"print({printed!r})\nraise SystemExit(1)")
        with pytest.raises(BuildError, match=re.escape(said)):
            _build.load_extension()

    def test_a_build_that_makes_nothing_is_an_error(self, builder: Callable[[str], None]) -> None:
        builder("print('done')")
        with pytest.raises(BuildError, match="did not build"):
            _build.load_extension()

    @pytest.mark.parametrize("version", ["1.13.1", "2.5.1", "2.5.1+cu118", "of my own"])
    def test_a_new_enough_torch(self, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "__version__", version)
        said = f"needs torch 2.6 or later, and torch {version} is installed"
        with pytest.raises(BuildError, match=re.escape(said)) as caught:
            _build.load_extension()
        assert is_one_paragraph(str(caught.value))

    @pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "2.14.0a0+git1234", "3.0"])
    def test_newer_ones_are_tried(self, version: str) -> None:
        _build.check_torch(version)


class TestCacheThatCanNotBeWritten:
    """A file in the place of a folder, or the other way round, stops the superuser too."""

    @pytest.mark.parametrize("place", ["", "{name}.lock/folder", "{name}"])
    def test_says_where_and_how_to_choose_another(
        self, place: str, cache: Path, builder: Callable[[str], None]
    ) -> None:
        obstacle = cache / place.format(name=_build.plan_build().directory.name)
        obstacle.parent.mkdir(parents=True, exist_ok=True)
        obstacle.touch()
        with pytest.raises(BuildError, match="can't be written") as caught:
            _build.load_extension()
        assert str(cache) in str(caught.value)
        assert "XDG_CACHE_HOME or TORCH_EXTENSIONS_DIR" in str(caught.value)
        assert is_one_paragraph(str(caught.value))

    def test_a_full_disk_leaves_no_part_of_the_library(
        self, cache: Path, builder: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def copy_half(source: Path, target: Path) -> None:
            target.write_bytes(source.read_bytes()[:3])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfile", copy_half)
            with pytest.raises(BuildError, match="No space left on device"):
                _build.load_extension()
        assert not any(".so" in name or "partial" in name for name in file_names(cache))
        _build.load_extension()
        assert file_names(cache) == expected_files()

    def test_a_user_without_a_home_is_told_to_choose_a_folder(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        with pytest.raises(BuildError, match="Set XDG_CACHE_HOME"):
            _build.load_extension()


class TestWhatIsCached:
    def test_is_loaded_and_not_built_again(
        self, builder: Callable[[str], None], cache: Path
    ) -> None:
        _build.load_extension()
        assert _build.plan_build().library.read_bytes() == b"library"
        assert file_names(cache) == expected_files()
        builder("raise SystemExit('built again')")
        _build.load_extension()

    @pytest.mark.parametrize(
        "change",
        [
            lambda patch: patch.setattr(torch, "__version__", "2.12.1"),
            lambda patch: patch.setattr(torch.version, "git_version", "0123"),
            lambda patch: patch.setattr(sys, "version", "3.11.99"),
            lambda patch: patch.setattr(platform, "machine", lambda: "riscv64"),
            lambda patch: patch.setattr(_build, "CFLAGS", ("-O0",)),
        ],
        ids=["torch", "torch's commit", "Python", "machine", "flags"],
    )
    def test_is_for_one(
        self, change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = _build.plan_build().library
        assert _build.plan_build().library == before
        change(monkeypatch)
        assert _build.plan_build().library.parent != before.parent

    def test_is_for_one_version_of_the_sources(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = _build.plan_build()
        sources = tmp_path / "csrc"
        shutil.copytree(_compile.SOURCES, sources)
        monkeypatch.setattr(_build, "SOURCES", sources)
        assert _build.plan_build() == before
        for kind in ("cpp", "h"):
            changed = min(sources.rglob(f"*.{kind}"))
            text = changed.read_text()
            changed.write_text(text + "\n")
            assert _build.plan_build() != before
            changed.write_text(text)
            renamed = changed.rename(changed.with_name(f"other.{kind}"))
            assert _build.plan_build() != before
            renamed.rename(changed)
        assert _build.plan_build() == before

    @pytest.mark.parametrize("kind", ["damaged", "of another torch"])
    def test_but_does_not_load_names_the_folder_to_delete(self, kind: str, tmp_path: Path) -> None:
        library = _build.plan_build().library
        library.parent.mkdir(parents=True)
        library.write_bytes(b"not a library")
        if kind == "of another torch":
            source = tmp_path / "other.cpp"
            source.write_text("void gone_from_torch(); void* used = (void*)&gone_from_torch;")
            subprocess.run(
                [_compile.find_compiler(), "-shared", "-fPIC", source, "-o", library],
                check=True,
                timeout=60,
            )
        with pytest.raises(BuildError, match="does not load") as caught:
            _build.load_extension()
        assert isinstance(caught.value.__cause__, ImportError)
        assert f"delete the folder {library.parent} and run this again" in str(caught.value)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress:
    def test_is_two_lines_on_standard_error(
        self, builder: Callable[[str], None], capfd: pytest.CaptureFixture[str]
    ) -> None:
        _build.load_extension()
        out, err = capfd.readouterr()
        assert out == ""
        first, second = err.splitlines()
        assert first.startswith("accel_streams: building the fake device for this torch (once;")
        assert re.fullmatch(r"accel_streams: building the fake device: done in \d+ s", second)
        _build.load_extension()
        assert capfd.readouterr() == ("", "")

    def test_ends_with_the_failure(
        self, builder: Callable[[str], None], capfd: pytest.CaptureFixture[str]
    ) -> None:
        builder("raise SystemExit(1)")
        with pytest.raises(BuildError):
            _build.load_extension()
        out, err = capfd.readouterr()
        assert out == ""
        assert err.splitlines()[1:] == ["accel_streams: building the fake device: failed"]

    def test_counts_files_on_a_terminal(
        self, builder: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        _build.load_extension()
        shown = terminal.getvalue()
        assert "1 of 2 files" in shown
        assert "2 of 2 files" in shown
        assert shown.endswith(" s\n")
        assert shown.count("\n") == 1


def test_the_users_folder_is_not_on_the_builders_path(
    tmp_path: Path, builder: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    _build.load_extension()


@contextlib.contextmanager
def building(log: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, SCRIPT, log, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class TestSeveralProcesses:
    def test_build_once(self, tmp_path: Path, cache: Path) -> None:
        log = tmp_path / "log"
        with building(log, "work") as first, building(log, "work") as second:
            with _build._locked(_build.plan_build()):
                assert [next_line(first), next_line(second)] == ["wait", "wait"]
            for process in (first, second):
                output, _ = process.communicate(timeout=60)
                assert set(output.split()) <= {"wait", "loaded"}
                assert process.returncode == 0
        assert log.read_text() == "compiled\n"
        assert file_names(cache) == expected_files()

    def test_that_wait_too_long_say_for_what(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_build, "_LOCK_TIMEOUT_S", 0.3)
        plan = _build.plan_build()
        with (
            _build._locked(plan),
            pytest.raises(BuildError, match=r"has been building .* \(lock /.*\.lock\)"),
        ):
            _build.load_extension()

    def test_one_that_is_killed_leaves_nothing_in_the_way(
        self, tmp_path: Path, cache: Path, builder: Callable[[str], None]
    ) -> None:
        with building(tmp_path / "log", "compile") as process:
            assert next_line(process) == "compile"
            process.kill()
            process.wait(timeout=30)
        assert any(".build-" in name for name in file_names(cache)), "nothing was begun"
        assert _build.cached_extension() is None
        _build.load_extension()
        assert file_names(cache) == expected_files()

    def test_one_that_is_killed_while_it_copies_leaves_no_library(
        self, tmp_path: Path, cache: Path, builder: Callable[[str], None]
    ) -> None:
        with building(tmp_path / "log", "copy") as process:
            assert next_line(process) == "copy"
            process.kill()
            process.wait(timeout=30)
        assert any(".partial" in name for name in file_names(cache)), "nothing was begun"
        assert _build.cached_extension() is None
        _build.load_extension()
        assert _build.plan_build().library.read_bytes() == b"library"
        assert file_names(cache) == expected_files()
