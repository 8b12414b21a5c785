"""What the subcommands share: how an app is made, the option --json, plain tables."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

__all__ = [
    "EXIT_FAILED",
    "EXIT_USAGE",
    "SCHEMA",
    "JsonFile",
    "command_app",
    "table",
    "write_json",
]

EXIT_FAILED = 1
EXIT_USAGE = 2

SCHEMA = 1
"""The version of the JSON that the commands write; it grows when a reader would have to change."""


def command_app(**settings: Any) -> typer.Typer:
    """Return a typer app with the settings that all our commands share.

    Plain help and plain errors: what the command prints ends up in bug reports, and the decorated
    kind imports rich for every call.
    """
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        **settings,
    )


def _check_json_file(path: Path | None) -> Path | None:
    """Refuse a file that can't be written before the work begins, not after it."""
    if path is None:
        return None
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"the folder {folder} does not exist; make it first")
    if not os.access(folder if _is_replaceable(path) else path, os.W_OK):
        raise typer.BadParameter(f"{path} can't be written: no permission")
    return path


# Optional, since typer looks at the annotation at run time and its older releases know no "| None".
JsonFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--json",
        metavar="FILE",
        callback=_check_json_file,
        help="Also write the result as JSON to FILE.",
    ),
]
"""The type of a command's parameter for ``--json FILE``; its default is None."""


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``document`` to ``path`` as a whole or not at all."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if not _is_replaceable(path):
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


def _is_replaceable(path: Path) -> bool:
    return not path.exists() or path.is_file()


def _mode_of(target: Path) -> int:
    """Return the permissions that a plainly written file would have; mkstemp gives fewer."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
