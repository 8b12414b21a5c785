"""How results leave a command: as JSON that is whole or absent, and as plain tables.

Apart from what else the commands share, because that takes longer to import than a short answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SCHEMA", "is_replaceable", "table", "write_json"]

SCHEMA = 1
"""The version of the JSON that the commands write; it grows when a reader would have to change."""


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``document`` to ``path`` as a whole or not at all."""
    import json  # Here, as only --json needs them.
    import tempfile

    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if not is_replaceable(path):
        # A pipe or a device, such as /dev/stdout: nothing to keep whole, nothing to replace.
        path.write_text(text, encoding="utf-8")
        return
    target = path.resolve()  # A link stays a link: what it points to is replaced.
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, _mode_of(target))
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def table(rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Return ``rows`` as lines of left-aligned columns; the last column is never padded.

    Plain text, also on a terminal: it is made to be pasted into a bug report.
    """
    lines = [tuple(row) for row in rows]
    if not lines:
        return ""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        indent
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def is_replaceable(path: Path) -> bool:
    """Return whether ``path`` is, or will be, a plain file: not a pipe or a device."""
    return not path.exists() or path.is_file()


def _mode_of(target: Path) -> int:
    """Return the permissions that a plainly written file would have; mkstemp gives fewer."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
