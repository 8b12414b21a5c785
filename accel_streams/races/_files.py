"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

__all__ = ["atomic_text", "temporary_beside"]


@contextlib.contextmanager
def temporary_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file that takes the place of ``path`` when the block ends without error."""
    target = Path(path)
    handle, name = tempfile.mkstemp(
        prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files that only their owner reads; this one is for others too.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_text(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open ``path`` for writing text; it appears, or changes, only when all is written."""
    with temporary_beside(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield file
