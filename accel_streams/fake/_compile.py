"""Compile the simulated device's extension with torch's own builder."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from accel_streams._errors import BuildError

__all__ = ["CFLAGS", "SOURCES", "compile_extension", "find_compiler"]

SOURCES = Path(__file__).parent / "csrc"
# -O1: the extension only queues work; what takes time runs in torch's own kernels.
CFLAGS = ("-O1", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden")
_TIMEOUT_S = 900.0
_SHOWN_LINES = 12
_PROGRESS = re.compile(r"^\[(\d+)/(\d+)\]")


def find_compiler() -> str:
    """Return the command of the C++ compiler that torch would use.

    Raises:
        BuildError: There is none.

    """
    # More than one word where a cache such as ccache stands before the compiler.
    words = os.environ.get("CXX", "").split() or ["c++"]
    found = shutil.which(words[0])
    if found is None:
        raise BuildError(
            f"The fake device is a C++ extension that is built on first use, and no C++ compiler "
            f"was found (looked for {words[0]!r}). Install one (Debian and Ubuntu: apt-get install "
            f"g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install) or set CXX to its "
            f"path, then run this again."
        )
    return " ".join([shlex.quote(found), *words[1:]])


def compile_extension(name: str, directory: Path) -> Path:
    """Compile the extension as the module ``name`` and return the library's path.

    Everything is written to ``directory``. A line on standard error says what takes so long.

    Raises:
        BuildError: It can't be compiled; the text says why and what to do.

    """
    environment = _environment(find_compiler())
    try:
        sources = _write_units(directory)
    except OSError as exc:
        raise BuildError(
            f"The folder {directory}, in which the fake device's extension is built, can't be "
            f"written: {exc}. Make room there, or set XDG_CACHE_HOME or TORCH_EXTENSIONS_DIR to "
            f"another folder."
        ) from exc
    arguments = {
        "name": name,
        "sources": [str(path) for path in sources],
        "extra_cflags": list(CFLAGS),
        "build_directory": str(directory),
    }
    library = directory / f"{name}.so"
    with _Progress() as progress:
        code, lines = _run(json.dumps(arguments), directory, environment, progress)
        if code != 0 or not library.exists():
            raise BuildError(_failure_text(lines), log="".join(lines))
    return library


def _write_units(directory: Path) -> list[Path]:
    """Write one file for each folder of sources that includes them all, and return the files.

    torch's headers take most of the time: to read them once a folder makes the build three times
    faster.
    """
    units = []
    for folder in sorted(path for path in SOURCES.iterdir() if path.is_dir()):
        lines = [f'#include "{path}"' for path in sorted(folder.glob("*.cpp"))]
        unit = directory / f"{folder.name}.cpp"
        unit.write_text("\n".join(lines) + "\n")
        units.append(unit)
    return units


def _environment(compiler: str) -> dict[str, str]:
    """Return the environment to build in.

    Raises:
        BuildError: ninja is not installed.

    """
    environment = dict(os.environ, CXX=compiler, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    environment.pop("DS_ACCELERATOR", None)
    folders = [environment.get("PATH", os.defpath)]
    # Where pip puts ninja, which is on nobody's path who runs a virtual environment's Python
    # without activating it.
    with contextlib.suppress(ImportError):
        folders.append(str(importlib.import_module("ninja").BIN_DIR))
    environment["PATH"] = os.pathsep.join(folder for folder in folders if folder)
    if shutil.which("ninja", path=environment["PATH"]) is None:
        raise BuildError(
            "The fake device is built with ninja, which is not installed: pip install ninja (or "
            "pip install 'accel-streams[fake]'), then run this again."
        )
    return environment


_SCRIPT = """
import json, sys
import torch.utils.cpp_extension as ext
ext.load(**json.loads(sys.argv[1]), verbose=True)
"""


def _run(
    arguments: str, directory: Path, environment: dict[str, str], progress: _Progress
) -> tuple[int, list[str]]:
    """Run torch's builder in a process of its own; return its exit status and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        # Not where the user is: a file there may have the name of a module.
        cwd=directory,
        # A group of its own, so that the compilers can be ended with it.
        start_new_session=True,
    )
    assert process.stdout is not None
    late = threading.Event()

    def end() -> None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    def give_up() -> None:
        late.set()
        end()

    watchdog = threading.Timer(_TIMEOUT_S, give_up)
    watchdog.daemon = True
    watchdog.start()
    lines: list[str] = []
    try:
        with process.stdout:
            for line in process.stdout:
                lines.append(line)
                progress.line(line)
        code = process.wait()
    finally:
        watchdog.cancel()
        if process.returncode is None:  # the user interrupted it
            end()
            process.wait()
    if late.is_set():
        raise BuildError(
            f"Building the fake device's extension took more than {_TIMEOUT_S:.0f} s and was "
            f"ended. Look whether the C++ compiler {environment['CXX']} hangs, or set CXX to "
            f"another, then run this again.",
            log="".join(lines),
        )
    return code, lines


def _failure_text(lines: list[str]) -> str:
    output = "".join(lines)
    if "Python.h: No such file" in output or "'Python.h' file not found" in output:
        return (
            "The fake device's extension needs Python's headers, which are not installed: install "
            "them (Debian and Ubuntu: apt-get install python3-dev), then run this again."
        )
    text = "The fake device's extension did not build."
    printed = [line.rstrip() for line in lines if line.strip()]
    # The compiler's diagnostics, each once. Without any, the end says what went wrong.
    errors = list(dict.fromkeys(line for line in printed if re.search(r"\berror: ", line)))
    if "Killed signal" in output:
        text += " Memory ran out: MAX_JOBS=1 in the environment has one compiler run at a time."
    elif errors:
        text += " torch's headers need a recent compiler: CXX in the environment chooses another."
    shown = errors[:_SHOWN_LINES] or printed[-_SHOWN_LINES:] or ["(nothing)"]
    return "\n  ".join([f"{text} The build said:", *shown])


class _Progress:
    """A line on standard error that says what takes so long."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._started = time.monotonic()

    def __enter__(self) -> _Progress:
        self._write("building the fake device for this torch (once; about half a minute) ...")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        took = time.monotonic() - self._started
        how = f"done in {took:.0f} s" if kind is None else "failed"
        self._write(f"building the fake device: {how}")
        if self._terminal:
            print(file=sys.stderr, flush=True)

    def line(self, line: str) -> None:
        """Show how far the build is, if ``line`` of its output says it and somebody looks on."""
        match = _PROGRESS.match(line)
        if match and self._terminal:
            self._write(
                f"building the fake device for this torch (once): {match[1]} of {match[2]} files"
            )

    def _write(self, text: str) -> None:
        end = "" if self._terminal else "\n"
        start = "\r\x1b[K" if self._terminal else ""
        print(f"{start}accel_streams: {text}", end=end, file=sys.stderr, flush=True)
