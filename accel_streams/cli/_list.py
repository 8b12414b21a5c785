"""``accel-streams list``: the registered backends."""

from __future__ import annotations

import typer

from accel_streams.cli._common import JsonFile, command_app
from accel_streams.cli._listing import show_backends

__all__ = ["app"]

app = command_app()


@app.command("list")
def list_backends(
    probe: bool = typer.Option(
        False, "--probe", help="Ask each backend whether it is usable here (may import torch)."
    ),
    json_file: JsonFile = None,
) -> None:
    """List the registered backends, with who registers them and their state.

    Without --probe neither torch nor a vendor's package is imported, and a backend that is in order
    is shown as "registered".

    \b
    Example:
      accel-streams list --probe
    """  # noqa: D301  (click wants the backspace itself)
    show_backends(probe=probe, json_file=json_file)
