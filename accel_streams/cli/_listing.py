"""The list of backends, without the option parser: `accel-streams list` has to answer at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from accel_streams import _registry
from accel_streams._registry import BackendInfo
from accel_streams.cli._output import SCHEMA, table, write_json

__all__ = ["backend_rows", "backends_json", "show_backends"]


def show_backends(*, probe: bool = False, json_file: Path | None = None) -> None:
    """Print the registered backends, and write them to ``json_file``.

    ``probe``: ask each one whether it is usable here.
    """
    look = _registry.probe if probe else _registry.examine
    infos = [look(info) for info in _registry.registered()]
    if infos:
        print(table(backend_rows(infos)))
    else:
        print("No backend is registered, or ACCEL_STREAMS_PLUGINS leaves none.")
    for info in infos:
        if info.state in _registry.FAULTY:
            print(f"accel-streams: warning: {_registry.fault(info)}", file=sys.stderr)
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
