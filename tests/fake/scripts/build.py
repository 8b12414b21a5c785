"""Load the extension with a made-up compiler, and say on standard output how far it is.

Usage: build.py LOG MODE. The compiler adds a line to the file LOG and makes a library. With the
mode ``compile`` it then waits for standard input to end; with ``copy`` that is done when half of
the library is copied to its place.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

from accel_streams.fake import _build


def say(what: str) -> None:
    print(what, flush=True)


def compile_extension(name: str, directory: Path) -> Path:
    with Path(sys.argv[1]).open("a") as log:
        log.write("compiled\n")
    library = directory / f"{name}.so"
    library.write_bytes(b"half")
    pause_while("compile")
    return library


def copy_file(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes()[:2])
    pause_while("copy")
    target.write_bytes(source.read_bytes())


def pause_while(mode: str) -> None:
    if sys.argv[2] == mode:
        say(mode)
        sys.stdin.read()


def sleep(seconds: float) -> None:
    say("wait")  # for the lock
    time.sleep(seconds)


def main() -> None:
    with (
        patch.object(_build, "compile_extension", compile_extension),
        patch.object(_build, "_import", lambda library: ModuleType(library.stem)),
        patch.object(_build, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep)),
        patch.object(shutil, "copyfile", copy_file),
    ):
        _build.load_extension()
    say("loaded")


if __name__ == "__main__":
    main()
