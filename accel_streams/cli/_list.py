"""``accel-streams list``: the registered backends."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from accel_streams import _registry
from accel_streams._registry import BackendInfo
from accel_streams.cli._common import SCHEMA, JsonFile, command_app, table, write_json

__all__ = ["app", "backend_rows", "backends_json"]

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
    """
    look = _registry.probe if probe else _registry.examine
    infos = [look(info) for info in _registry.registered()]
    if infos:
        typer.echo(table(backend_rows(infos)))
    else:
        typer.echo("No backend is registered, or ACCEL_STREAMS_PLUGINS leaves none.")
    if json_file is not None:
        write_json(json_file, {"schema": SCHEMA, "backends": backends_json(infos)})


def backend_rows(infos: Sequence[BackendInfo]) -> list[tuple[str, ...]]:
    """Return the rows of the table of backends, its head first."""
    rows = [
        (info.name, info.state, info.origin or "(unknown)", info.reason or info.value)
        for info in infos
    ]
    return [("BACKEND", "STATE", "DISTRIBUTION", "REASON, OR WHERE IT IS"), *rows]


def backends_json(infos: Sequence[BackendInfo]) -> list[dict[str, str | None]]:
    """Return the value of ``backends`` in the JSON of ``list`` and ``doctor``."""
    return [info.to_json() for info in infos]
