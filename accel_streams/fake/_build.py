"""Keep the simulated device's extension for the installed torch: build it once, and load it.

The result is cached by everything that its fitness depends on (sources, torch, Python, machine), so
that a change of any of them builds anew and never loads an extension made for another torch.
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
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from accel_streams._errors import BuildError
from accel_streams.fake._compile import CFLAGS, SOURCES, compile_extension, find_compiler

__all__ = [
    "MIN_TORCH",
    "BuildPlan",
    "cached_extension",
    "find_compiler",
    "load_extension",
    "plan_build",
]

MODULE_NAME = "_accel_streams_fake"
MIN_TORCH = (2, 6)
_LOCK_TIMEOUT_S = 900.0
# Ranks of one run wait for the one that builds, which says what it does. Longer than a build takes.
_LOCK_NOTICE_S = 60.0


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Where the extension for this torch, Python and machine is kept."""

    directory: Path

    @property
    def library(self) -> Path:
        """Path of the finished extension."""
        return self.directory / f"{MODULE_NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"


def cache_root() -> Path:
    """Return the folder under which extensions are cached.

    ``XDG_CACHE_HOME`` is honoured, as is torch's own ``TORCH_EXTENSIONS_DIR``.

    Raises:
        BuildError: Neither is set, and the user has no home folder.

    """
    if explicit := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(explicit).absolute() / "accel_streams"
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "accel_streams"
    try:
        return Path.home() / ".cache" / "accel_streams"
    except RuntimeError as exc:
        raise BuildError(
            "The fake device's extension is kept in the user's cache folder, and this user has no "
            "home folder. Set XDG_CACHE_HOME to a folder that can be written."
        ) from exc


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


def plan_build() -> BuildPlan:
    """Work out where the extension for this torch, Python and machine is kept.

    Raises:
        BuildError: It isn't there and can't be built, because there is no compiler, or it can be
            neither built nor loaded, because torch is too old.

    """
    import torch

    check_torch(torch.__version__)
    # The compiler is not among the facts: what is built already needs none, and runs as well after
    # the compiler was upgraded.
    facts = {
        "torch": torch.__version__,
        "torch_git": getattr(torch.version, "git_version", ""),
        "python": sys.version,
        "machine": platform.machine(),
        "flags": CFLAGS,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in sorted([*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h")]):
        digest.update(path.relative_to(SOURCES).as_posix().encode())
        digest.update(path.read_bytes())
    python = f"py{sys.version_info[0]}{sys.version_info[1]}"
    name = f"fake-torch{torch.__version__}-{python}-{digest.hexdigest()[:16]}"
    plan = BuildPlan(cache_root() / name)
    if not plan.library.exists():
        find_compiler()
    return plan


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
    """Let one process build.

    The lock goes with its process, so one that was killed leaves none behind.
    """
    import fcntl

    root = plan.directory.parent
    with _writing(root):
        root.mkdir(parents=True, exist_ok=True)
        handle = (root / f"{plan.directory.name}.lock").open("w")
    with handle:
        started, told = time.monotonic(), False
        while True:
            try:
                with _writing(root):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - started
                if waited > _LOCK_TIMEOUT_S:
                    raise BuildError(
                        f"Another process has been building the fake device's extension for "
                        f"{_LOCK_TIMEOUT_S:.0f} s (lock {handle.name}). Look whether it hangs, "
                        f"end it, and run this again."
                    ) from None
                if waited > _LOCK_NOTICE_S and not told:
                    told = True
                    print(
                        "accel_streams: waiting for another process that builds the fake device",
                        file=sys.stderr,
                        flush=True,
                    )
                time.sleep(0.2)
        yield


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Say of what can't be written where it lies and how to choose another place."""
    try:
        yield
    except BlockingIOError:  # of the lock, which another process has
        raise
    except OSError as exc:
        raise BuildError(
            f"The fake device's extension is kept under {root}, which can't be written: {exc}. "
            f"Make it writable, or set XDG_CACHE_HOME or TORCH_EXTENSIONS_DIR to a folder that is."
        ) from exc


def _build(plan: BuildPlan) -> None:
    """Build in a folder of its own and move the result into place when it is complete.

    The caller holds the plan's lock.
    """
    root, prefix = plan.directory.parent, f"{plan.directory.name}.build-"
    for left in root.glob(f"{prefix}*"):  # by a build that was killed
        shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        with _writing(root):
            scratch = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=root))
            )
        built = compile_extension(MODULE_NAME, scratch)
        with _writing(root):
            _install(built, plan)


def _install(built: Path, plan: BuildPlan) -> None:
    plan.directory.mkdir(parents=True, exist_ok=True)
    partial = plan.library.with_suffix(".partial")
    try:
        shutil.copyfile(built, partial)
        partial.chmod(0o755)
        partial.replace(plan.library)
    finally:
        partial.unlink(missing_ok=True)
