"""The command line's entry: which subcommands there are, and how errors leave the process.

Each subcommand lives in a module of its own, which is imported only when that subcommand runs or
its help is shown. Exit status: 0 fine, 1 the thing checked does not hold or the work failed, 2 wrong
usage, which includes settings that mean nothing and backends that don't exist.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from accel_streams._errors import AccelStreamsError, SettingError, UnknownBackendError
from accel_streams.cli._common import EXIT_FAILED, EXIT_USAGE, command_app

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "accel_streams.cli._demo",
    "explore": "accel_streams.cli._explore",
    "list": "accel_streams.cli._list",
    "doctor": "accel_streams.cli._doctor",
}
"""Where each subcommand lives, in the order of the help page.

The module has an ``app`` made by ``command_app`` with that one command registered in it.
"""

_USAGE_ERRORS = (SettingError, UnknownBackendError)


class _LazyGroup(TyperGroup):
    """A group that imports a subcommand's module when the subcommand is asked for."""

    # Any stands for click's Context and Command, which typer took over in its later releases.
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name, None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        return typer.main.get_command(import_module(COMMANDS[cmd_name]).app)


_app = command_app(cls=_LazyGroup, no_args_is_help=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        from accel_streams._version import __version__

        typer.echo(f"accel-streams {__version__}")
        raise typer.Exit


@_app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Correct stream ordering for DeepSpeed's ZeRO, and a simulated device that proves it.

    Example: accel-streams demo
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command with ``args`` (None: the process's own) and exit with its status."""
    command = typer.main.get_command(_app)
    try:
        command.main(args=None if args is None else list(args), prog_name="accel-streams")
    except AccelStreamsError as exc:
        typer.echo(f"accel-streams: error: {exc}", err=True)
        sys.exit(EXIT_USAGE if isinstance(exc, _USAGE_ERRORS) else EXIT_FAILED)
    except BrokenPipeError:
        # Whoever read our output has stopped, as in `| head`. Nothing is wrong, and Python must
        # not try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
