"""Which subcommands there are.

Each lives in a module of its own, which is imported only when it runs or its help is shown.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from accel_streams.cli._common import command_app

__all__ = ["COMMANDS", "command"]

COMMANDS = {
    "demo": "accel_streams.cli._demo",
    "explore": "accel_streams.cli._explore",
    "races": "accel_streams.cli._races",
    "check": "accel_streams.cli._check",
    "bench": "accel_streams.cli._bench",
    "list": "accel_streams.cli._list",
    "doctor": "accel_streams.cli._doctor",
}
"""Where each subcommand lives, in the order of the help page.

The module has an ``app`` made by ``command_app`` with that one command registered in it.
"""


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


command: Any = typer.main.get_command(_app)
"""The whole command line, as an object of click's."""
