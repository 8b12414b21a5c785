"""The list of backends, without the option parser: `accel-streams list` has to answer at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accel_streams import _registry
from accel_streams._loading import prints_to_stderr
from accel_streams._registry import BackendInfo
from accel_streams.cli._output import SCHEMA, table, write_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PROBE_LIMIT", "backend_rows", "backends_json", "show_backends"]

LOAD_LIMIT = 10.0
"""Seconds that a backend's module may take to import, torch included, before it is given up."""

PROBE_LIMIT = 120.0
"""The same for a backend's ``probe``, which may have to start a driver."""


def show_backends(*, probe: bool = False, json_file: Path | None = None) -> None:
    """Print the registered backends, and write them to ``json_file``.

    ``probe``: ask each one whether it is usable here.
    """
    infos = _asked(probe)
    if infos:
        print(table(backend_rows(infos)))
    else:
        print("No backend is registered, or ACCEL_STREAMS_PLUGINS leaves none.")
    for info in infos:
        if info.state in _registry.FAULTY:
            print(f"accel-streams: warning: {_registry.fault(info)}", file=sys.stderr)
        elif info.state == "registered" and info.reason:
            print(
                f"accel-streams: warning: the backend {info.name!r} of {info.origin}: "
                f"{info.reason}.",
                file=sys.stderr,
            )
    if json_file is not None:
        write_json(json_file, {"schema": SCHEMA, "backends": backends_json(infos)})


def _asked(probe: bool) -> list[BackendInfo]:
    with prints_to_stderr():
        if probe:
            return [_registry.probe(info, PROBE_LIMIT) for info in _registry.registered()]
        return [_registry.examine(info, LOAD_LIMIT) for info in _registry.registered()]


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
