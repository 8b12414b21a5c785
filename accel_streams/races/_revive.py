"""Races that another process has reported as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from accel_streams.races._race import Operation, Race
from accel_streams.races._records import READ, WRITE

__all__ = ["race_of"]

_MODES = {"read": READ, "write": WRITE, "read and write": READ | WRITE}


def race_of(document: Mapping[str, Any]) -> Race:
    """Return the race that ``Race.to_json`` has described."""
    lo, hi = document["bytes"]
    known = {field.name for field in dataclasses.fields(Race)}
    plain = {name: value for name, value in document.items() if name in known}
    return Race(
        **{
            **plain,
            "block": -1,  # A number of the other process, of no meaning here.
            "lo": lo,
            "hi": hi,
            "first": _operation(document["first"]),
            "second": _operation(document["second"]),
            "streams": tuple((first, second) for first, second in document["streams"]),
        }
    )


def _operation(document: Mapping[str, Any]) -> Operation:
    device, stream = document["stream_id"]
    file = document["file"]
    return Operation(
        name=document["operation"],
        stream=(device, stream),
        stream_name=document["stream"],
        source=None if file is None else (file, document["line"], document["function"]),
        seq=document["seq"],
        thread=document["thread"],
        mode=_MODES[document["access"]],
        issuer_name=document["issued_from"],
    )
