"""A race, and how it is put into words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from accel_streams.races._records import READ, WRITE, Source, StreamKey, is_backward

__all__ = [
    "Kind",
    "Operation",
    "Race",
    "StreamNames",
    "consequence",
    "early_wait",
    "missing_edge",
    "short_name",
    "size",
    "stream_label",
    "where",
]

Kind: TypeAlias = Literal[
    "read-after-write", "write-after-read", "write-after-write", "use-after-free"
]
StreamNames: TypeAlias = Mapping[StreamKey, str]

_MODES: Final = {READ: "read", WRITE: "write", READ | WRITE: "read and write"}


def stream_label(stream: StreamKey, names: StreamNames, device_type: str) -> str:
    """Return what to call a stream: its given name, else its device and number."""
    name = names.get(stream)
    if name:
        return name
    device, number = stream
    if number == 0:
        return f"default stream of {device_type}:{device}"
    return f"stream {number} of {device_type}:{device}"


def where(source: Source | None, *, short: bool = True) -> str:
    """Return where an operation comes from, with its preposition: ``at file.py:17``.

    With ``short`` only the file's name is given, else its path from the package on.
    """
    if source is None:
        return "at an unknown place"
    file, line, function = source
    if is_backward(source):
        return f"in {function} of the backward pass"
    if short:
        return f"at {os.path.basename(file)}:{line}"
    return f"at {_from_package(file)}:{line} in {function}"


def short_name(operation: str) -> str:
    """Return an operation's name as people say it: ``div`` for ``aten::div.out``."""
    if not operation.startswith("aten::"):
        return operation
    return operation.removeprefix("aten::").partition(".")[0]


def size(nbytes: int) -> str:
    """Return a number of bytes as people say it."""
    amount = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{nbytes} bytes" if unit == "bytes" else f"{amount:.4g} {unit}"


def _from_package(file: str) -> str:
    for root in ("site-packages/", "dist-packages/"):
        _, found, rest = file.rpartition(root)
        if found:
            return rest
    return file


@dataclass(frozen=True, slots=True)
class Operation:
    """One of the two operations of a race.

    ``stream`` is where it ran. ``issuer`` is the stream that issued it, where that is another one:
    a collective runs on its communicator's stream. ``mode`` is how it accesses the buffer, `READ`,
    `WRITE` or both. ``name`` is the operation, or ``alloc`` or ``reuse`` for the memory's
    being handed out.
    """

    name: str
    stream: StreamKey
    stream_name: str
    source: Source | None
    seq: int
    thread: int
    mode: int
    issuer: StreamKey | None = None
    issuer_name: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable description."""
        file, line, function = self.source or (None, None, None)
        return {
            "operation": self.name,
            "access": _MODES[self.mode],
            "stream": self.stream_name,
            "stream_id": list(self.stream),
            "issued_from": self.issuer_name,
            "file": file,
            "line": line,
            "function": function,
            "thread": self.thread,
            "seq": self.seq,
        }


@dataclass(frozen=True, slots=True)
class Race:
    """Two conflicting accesses that nothing orders.

    ``first`` was submitted before ``second``. ``lo`` and ``hi`` bound the bytes of the buffer that
    both touch. ``consequence`` says what can happen to the buffer ("it"), ``missing_edge`` which
    wait is missing, ``note`` what there is in its place (may be empty). ``count`` is how many pairs
    of operations the report stands for: they have the same places, kind and buffer; ``streams``
    lists the pairs of streams among them. ``first`` and ``second`` are the earliest of them.

    Races of one ``cause`` are mended by one wait, or by waits at one pair of places; the first of
    them in a list of reports says which.
    """

    kind: Kind
    buffer: str
    block: int
    lo: int
    hi: int
    first: Operation
    second: Operation
    consequence: str
    missing_edge: str
    note: str = ""
    count: int = 1
    streams: tuple[tuple[str, str], ...] = field(default=())
    cause: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable description."""
        return {
            "kind": self.kind,
            "buffer": self.buffer,
            "bytes": [self.lo, self.hi],
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "consequence": self.consequence,
            "missing_edge": self.missing_edge,
            "note": self.note,
            "count": self.count,
            "streams": [list(pair) for pair in self.streams],
            "cause": self.cause,
        }

    def __str__(self) -> str:
        return f"{self.kind} on {self.buffer}: {self.missing_edge}"


def consequence(kind: Kind, first: Operation, second: Operation) -> str:
    """Say what can happen to the buffer, "it", as nothing orders the two operations."""
    one = f"`{short_name(first.name)}` on `{first.stream_name}`"
    other = f"`{short_name(second.name)}` on `{second.stream_name}`"
    if kind == "use-after-free":
        return (
            f"its memory may be handed to new work on `{second.stream_name}` while {one} still "
            "uses it"
        )
    if first.name == "alloc":
        return (
            f"{other} may write it while earlier work on `{first.stream_name}` still uses the "
            "same memory"
        )
    if kind == "read-after-write":
        return f"{other} may read it before {one} has written it"
    if kind == "write-after-read":
        return f"{other} may overwrite it while {one} still reads it"
    return f"{one} and {other} write it in either order, and the later value may be lost"


def missing_edge(first: Operation, second: Operation) -> str:
    """Say which wait would have ordered the two operations.

    Where a communicator's stream is involved, the wait is said in terms of the streams that the
    program can reach: the one that issues the collective, and the one that waits for its result.
    """
    waiting = second.issuer_name or second.stream_name
    origin = where(first.source)
    if first.issuer_name is not None and first.issuer_name == waiting:
        name = short_name(first.name)
        wait = f"{_called(waiting)} must wait for the end of `{name}` {origin} (Work.wait())"
    else:
        if first.name == "alloc":
            event = (
                f"an event recorded after the allocation {origin}: its earlier work may still "
                "use that memory"
            )
        elif first.issuer_name is not None:
            event = f"an event recorded after its wait for `{short_name(first.name)}` {origin}"
        else:
            event = f"an event recorded after its `{short_name(first.name)}` {origin}"
        wait = (
            f"{_called(waiting)} must wait for `{first.issuer_name or first.stream_name}` ({event})"
        )
    if second.name == "reuse":
        edge = f"{wait} before the last reference to the buffer is dropped"
        if first.issuer_name is None:
            edge += f", or record_stream(`{first.stream_name}`) must be called on it before that"
        return edge
    return f"{wait} before `{short_name(second.name)}` {where(second.source)}"


def _called(stream: str) -> str:
    # "stream `stream 3 of fake:0`" would be one too many.
    return f"`{stream}`" if "stream" in stream.split() else f"stream `{stream}`"


def early_wait(first: Operation, second: Operation, recorded_at: Source | None) -> str:
    """Say that there is a wait, but for an event recorded before ``first``."""
    return (
        f"`{second.stream_name}` does wait for `{first.stream_name}`, but for an event recorded "
        f"before that, {where(recorded_at)}"
    )
