"""Build the simulated device's extension for the installed torch, once, and load it.

The result is cached by everything it depends on (sources, torch, Python, compiler), so that a
change of any of them builds anew and never loads an extension made for another torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from accel_streams._errors import BuildError

__all__ = ["MIN_TORCH", "BuildPlan", "cached_extension", "load_extension", "plan_build"]

MODULE_NAME = "_accel_streams_fake"
MIN_TORCH = (2, 6)
_SOURCES = Path(__file__).parent / "csrc"
_BUILD_TIMEOUT_S = 900.0
_PROGRESS = re.compile(r"^\[(\d+)/(\d+)\]")
# -O1: the extension only queues work; what takes time runs in torch's own kernels.
_CFLAGS = ("-O1", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden")


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What would be built and where it is kept."""

    directory: Path
    compiler: str
    key: str

    @property
    def library(self) -> Path:
        """Path of the finished extension."""
        return self.directory / f"{MODULE_NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"


def cache_root() -> Path:
    """Return the folder under which extensions are cached.

    ``XDG_CACHE_HOME`` is honoured, as is torch's own ``TORCH_EXTENSIONS_DIR``.
    """
    if explicit := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(explicit) / "accel_streams"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "accel_streams"


def find_compiler() -> str:
    """Return the C++ compiler torch would use.

    Raises:
        BuildError: There is none.

    """
    wanted = os.environ.get("CXX", "c++")
    found = shutil.which(wanted.split()[0])
    if found is None:
        raise BuildError(
            f"The fake device is a C++ extension that is built on first use, and no C++ compiler "
            f"was found (looked for {wanted!r}). Install one (Debian and Ubuntu: apt-get install "
            f"g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install) or set CXX to its "
            f"path, then run this again."
        )
    return found


def check_torch(version: str) -> None:
    """Check that the fake device can be built against this torch.

    Raises:
        BuildError: It is too old.

    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < MIN_TORCH:
        raise BuildError(
            f"The fake device needs torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or later, and torch "
            f"{version} is installed. Install a newer torch; the other backends work with torch "
            f"2.1 and later."
        )


def write_units(directory: Path) -> list[Path]:
    """Write one file for each folder of sources that includes them all, and return the files.

    torch's headers take most of the time: to read them once a folder makes the build three times
    faster.
    """
    units = []
    for folder in sorted(path for path in _SOURCES.iterdir() if path.is_dir()):
        lines = [f'#include "{path}"' for path in sorted(folder.glob("*.cpp"))]
        unit = directory / f"{folder.name}.cpp"
        unit.write_text("\n".join(lines) + "\n")
        units.append(unit)
    return units


def plan_build() -> BuildPlan:
    """Work out where the extension for this torch, Python and compiler is kept.

    Raises:
        BuildError: There is no compiler, or torch is too old.

    """
    import torch

    check_torch(torch.__version__)
    compiler = find_compiler()
    digest = hashlib.sha256()
    for path in sorted([*_SOURCES.rglob("*.cpp"), *_SOURCES.rglob("*.h")]):
        digest.update(path.relative_to(_SOURCES).as_posix().encode())
        digest.update(path.read_bytes())
    facts = {
        "torch": torch.__version__,
        "torch_git": getattr(torch.version, "git_version", ""),
        "python": sys.version,
        "machine": platform.machine(),
        "compiler": _compiler_version(compiler),
        "flags": _CFLAGS,
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    key = digest.hexdigest()[:16]
    name = f"fake-torch{torch.__version__}-py{sys.version_info[0]}{sys.version_info[1]}-{key}"
    return BuildPlan(cache_root() / name, compiler, key)


def _compiler_version(compiler: str) -> str:
    try:
        done = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise BuildError(
            f"The C++ compiler {compiler!r} does not run: {exc}. Set CXX to one that does."
        ) from exc
    return done.stdout.splitlines()[0] if done.stdout else ""


def cached_extension() -> Path | None:
    """Return the path of the extension for this torch if it is built already."""
    plan = plan_build()
    return plan.library if plan.library.exists() else None


def load_extension() -> ModuleType:
    """Return the extension, building it if this torch has none yet.

    Raises:
        BuildError: It can't be built or loaded; the text says why and what to do.

    """
    plan = plan_build()
    if not plan.library.exists():
        with _locked(plan):
            if not plan.library.exists():  # another process may have built it meanwhile
                _build(plan)
    return _import(plan.library)


def _import(library: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(MODULE_NAME, str(library))
    spec = importlib.util.spec_from_file_location(MODULE_NAME, library, loader=loader)
    if spec is None:  # pragma: no cover - can't happen for an extension loader
        raise BuildError(f"{library} is not an extension module")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as exc:
        raise BuildError(
            f"The fake device's extension at {library} does not load: {exc}. It was probably "
            f"built for another torch or is damaged: delete the folder {library.parent} and run "
            f"this again."
        ) from exc
    return module


@contextlib.contextmanager
def _locked(plan: BuildPlan) -> Iterator[None]:
    """Let one process build. The lock goes with its process, so a killed build leaves none behind."""
    import fcntl

    root = plan.directory.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = (root / f"{plan.directory.name}.lock").open("w")
    except OSError as exc:
        raise BuildError(
            f"The fake device's extension is kept under {root}, which can't be written: {exc}. "
            f"Make it writable, or set XDG_CACHE_HOME or TORCH_EXTENSIONS_DIR to a folder that "
            f"is."
        ) from exc
    with handle:
        deadline = time.monotonic() + _BUILD_TIMEOUT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"Another process has been building the fake device's extension for "
                        f"{_BUILD_TIMEOUT_S:.0f} s (lock {handle.name}). Look whether it hangs, "
                        f"end it, and run this again."
                    ) from None
                time.sleep(0.2)
        yield


_BUILD_SCRIPT = """
import json, sys
import torch.utils.cpp_extension as ext
args = json.load(sys.stdin)
ext.load(name=args["name"], sources=args["sources"], extra_cflags=args["cflags"],
         build_directory=args["directory"], verbose=True, is_python_module=True)
"""


def _build(plan: BuildPlan) -> None:
    """Build in a folder of its own and move the result into place when it is complete."""
    started = time.monotonic()
    progress = _Progress()
    with tempfile.TemporaryDirectory(prefix="build-", dir=plan.directory.parent) as scratch:
        arguments = {
            "name": MODULE_NAME,
            "sources": [str(path) for path in write_units(Path(scratch))],
            "cflags": list(_CFLAGS),
            "directory": scratch,
        }
        environment = dict(os.environ, CXX=plan.compiler, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        environment.pop("DS_ACCELERATOR", None)
        process = subprocess.Popen(
            [sys.executable, "-c", _BUILD_SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(arguments))
        process.stdin.close()
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line)
                progress.line(line)
            code = process.wait(timeout=_BUILD_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdout.close()
        built = Path(scratch) / f"{MODULE_NAME}.so"
        if code != 0 or not built.exists():
            progress.end("failed")
            raise BuildError(_failure_text(lines))
        _install(built, plan)
    progress.end(f"done in {time.monotonic() - started:.0f} s")


def _install(built: Path, plan: BuildPlan) -> None:
    plan.directory.mkdir(parents=True, exist_ok=True)
    partial = plan.library.with_suffix(".partial")
    try:
        shutil.copyfile(built, partial)
        os.chmod(partial, 0o755)
        os.replace(partial, plan.library)
    finally:
        partial.unlink(missing_ok=True)


def _failure_text(lines: list[str]) -> str:
    errors = [line.rstrip() for line in lines if "error" in line.lower()]
    shown = "\n  ".join((errors or [line.rstrip() for line in lines])[:12])
    if any("ninja" in line.lower() and "required" in line.lower() for line in lines):
        return (
            "The fake device is built with ninja, which is not installed: pip install ninja "
            "(or pip install 'accel-streams[fake]'), then run this again."
        )
    if any("Python.h" in line for line in lines):
        return (
            "The fake device's extension needs Python's headers, which are not installed: install "
            "them (Debian and Ubuntu: apt-get install python3-dev), then run this again."
        )
    return f"The fake device's extension did not build:\n  {shown}"


class _Progress:
    """A line on standard error that says what takes so long."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._write("building the fake device for this torch (once; about half a minute) ...")

    def _write(self, text: str) -> None:
        end = "" if self._terminal else "\n"
        start = "\r\x1b[K" if self._terminal else ""
        print(f"{start}accel_streams: {text}", end=end, file=sys.stderr, flush=True)

    def line(self, line: str) -> None:
        match = _PROGRESS.match(line)
        if match and self._terminal:
            self._write(
                f"building the fake device for this torch (once): {match[1]} of {match[2]} files"
            )

    def end(self, how: str) -> None:
        self._write(f"building the fake device: {how}")
        if self._terminal:
            print(file=sys.stderr, flush=True)
