"""Reports of races as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

from accel_streams.races._race import Operation, Race, short_name, where
from accel_streams.races._records import READ, WRITE

__all__ = ["render_text", "to_json"]

_VERBS: Final = {READ: "reads", WRITE: "writes", READ | WRITE: "reads and writes"}
_SCHEMA: Final = 1
_WIDTH: Final = 100


def to_json(
    races: Iterable[Race], *, operations: int, unseen: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what ``accel-streams races --json`` writes.

    ``operations`` is how many launches were analysed; ``unseen`` says what could not be seen.
    """
    return {
        "schema": _SCHEMA,
        "operations": operations,
        "unseen": list(unseen),
        "races": [race.to_json() for race in races],
    }


def render_text(
    races: Sequence[Race],
    *,
    operations: int | None = None,
    unseen: Sequence[str] = (),
    limit: int | None = None,
) -> str:
    """Return a report for people, without a final newline.

    ``operations`` is how many launches were analysed, where known; ``unseen`` says what could not
    be seen. With ``limit``, so many races are shown in full and the
    others only counted.
    """
    lines = [_summary(races, operations, complete=not unseen)]
    shown = races if limit is None else races[:limit]
    causes: dict[int, int] = {}
    for number, race in enumerate(shown, start=1):
        lines += ["", *_paragraph(number, race, causes.setdefault(race.cause, number))]
    if len(shown) < len(races):
        lines += ["", f"... and {_plural(len(races) - len(shown), 'more race')}"]
    if unseen:
        lines += ["", "Not seen:"]
        for each in unseen:
            lines += textwrap.wrap(each, _WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)


def _summary(races: Sequence[Race], operations: int | None, *, complete: bool) -> str:
    over = "" if operations is None else f" in {_plural(operations, 'operation')}"
    if not races:
        return f"No races{over}." if complete else f"No races{over} in what could be seen."
    times = sum(race.count for race in races)
    again = "" if times == len(races) else f", seen {times:,} times"
    waits = len({race.cause for race in races})
    missing = "" if waits == len(races) else f", from {_plural(waits, 'missing wait')}"
    return f"{_plural(len(races), 'race')}{over}{again}{missing}:"


def _paragraph(number: int, race: Race, root: int) -> list[str]:
    times = "" if race.count == 1 else f", {race.count:,} times"
    lines = [
        f"{number}. {race.kind} on {race.buffer}, bytes {race.lo:,} to {race.hi:,}{times}",
        *_item("first", _operation(race.first)),
        *_item("then", _operation(race.second)),
        *_item("so", race.consequence),
        *_item("missing", race.missing_edge if root == number else f"the wait that {root} lacks"),
    ]
    if race.note:
        lines += _item("note", race.note)
    others = [f"`{first}` / `{second}`" for first, second in race.streams[1:]]
    if others:
        lines += _item("also", f"between {', '.join(others)}")
    return lines


def _item(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"   {label + ':':<8} ",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _operation(operation: Operation) -> str:
    name = operation.stream_name
    if operation.name == "alloc":
        return f"its memory is handed out to `{name}` {where(operation.source, short=False)}"
    if operation.name == "reuse":
        return f"its memory, freed, may be handed to new work on `{name}`"
    issued = f" (issued from `{operation.issuer_name}`)" if operation.issuer_name else ""
    return (
        f"{short_name(operation.name)} {_VERBS[operation.mode]} it on `{name}`{issued} "
        f"{where(operation.source, short=False)}"
    )


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
