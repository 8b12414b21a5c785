"""What the subcommands share: how an app is made, the option --json, exit statuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_streams.cli._output import SCHEMA, is_replaceable, table, write_json

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
    if not os.access(folder if is_replaceable(path) else path, os.W_OK):
        raise typer.BadParameter(f"{path} can't be written: no permission")
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        callback=_check_json_file,
        help="Also write the result as JSON to FILE.",
    ),
]
"""The type of a command's parameter for ``--json FILE``; its default is None."""
