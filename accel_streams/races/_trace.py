"""The trace file: JSON lines, with a header, a version and an end.

The first line is an object: ``{"format": "accel_streams.trace", "version": 2, "device_type": ...,
"stream_names": [[device_index, stream_id, label], ...], "info": {...}}``. Each following line is an
array: a record as described in `_records`, except that a source is a number, introduced by a line
``["source", number, file, line, function]`` before its first use. The last line is
``{"records": n}``; a file without it was cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, TextIO

from accel_streams._errors import TraceFormatError
from accel_streams.races._files import atomic_text
from accel_streams.races._records import FIELDS, Access, Record, Source, StreamKey

__all__ = [
    "FORMAT_VERSION",
    "Trace",
    "TraceHeader",
    "TraceWriter",
    "load_trace",
    "save_trace",
]

FORMAT_VERSION: Final = 2
_FORMAT: Final = "accel_streams.trace"


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What holds for a whole trace.

    ``device_type`` is torch's name of the device. ``info`` is free: schedule, seed, versions, rank,
    anything that JSON can hold.
    """

    device_type: str = "fake"
    stream_names: Mapping[StreamKey, str] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace read from a file."""

    header: TraceHeader
    records: list[Record]


class TraceWriter:
    """Write a trace chunk by chunk. The file appears when the block ends without an error.

    ``write`` is made to be the sink of a source of records::

        with TraceWriter("run.trace", TraceHeader()) as writer:
            fake.start_trace(sink=writer.write)
            ...
            writer.write(fake.stop_trace())
    """

    def __init__(self, path: str | os.PathLike[str], header: TraceHeader) -> None:
        self._opening = atomic_text(path)
        self._header = header
        self._sources: dict[Source, int] = {}
        self._count = 0
        self._file: TextIO | None = None

    def __enter__(self) -> TraceWriter:
        self._file = self._opening.__enter__()
        names = [[*stream, label] for stream, label in sorted(self._header.stream_names.items())]
        self._line(
            {
                "format": _FORMAT,
                "version": FORMAT_VERSION,
                "device_type": self._header.device_type,
                "stream_names": names,
                "info": dict(self._header.info),
            }
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._line({"records": self._count})
        self._opening.__exit__(kind, error, traceback)
        self._file = None

    def write(self, records: Iterable[Record]) -> None:
        """Append records."""
        for record in records:
            if FIELDS[record[0]][-1] == "source":
                record = (*record[:-1], self._source(record[-1]))
            self._line(record)
            self._count += 1

    def _source(self, source: Source | None) -> int | None:
        if source is None:
            return None
        number = self._sources.get(source)
        if number is None:
            number = self._sources[source] = len(self._sources)
            self._line(("source", number, *source))
        return number

    def _line(self, value: object) -> None:
        if self._file is None:
            raise ValueError("the trace is not open; use TraceWriter in a with statement")
        self._file.write(json.dumps(value, separators=(",", ":")))
        self._file.write("\n")


def save_trace(
    path: str | os.PathLike[str], records: Iterable[Record], header: TraceHeader | None = None
) -> None:
    """Write a whole trace. ``path`` is replaced only when everything is written."""
    with TraceWriter(path, header or TraceHeader()) as writer:
        writer.write(records)


def load_trace(path: str | os.PathLike[str], *, device_type: str | None = None) -> Trace:
    """Read a trace.

    ``device_type`` is what the trace must be of; None for any device.

    Raise TraceFormatError when the file is something else, was cut off, was written in another
    version of the format, holds a malformed record, or is of another device; its ``path`` and
    ``line`` say where.
    Raise OSError when the file can't be read.
    """
    name = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        lines = _objects(file, name)
        header = _header(next(lines, (1, None))[1], name)
        if device_type is not None and header.device_type != device_type:
            raise TraceFormatError(
                f"{name} is a trace of the device {header.device_type!r}; expected one of "
                f"{device_type!r}",
                path=name,
                line=1,
            )
        records: list[Record] = []
        sources: dict[int, Source] = {}
        number = 1
        for number, value in lines:
            if isinstance(value, dict) and "records" in value:
                _check_end(value["records"], len(records), lines, name, number)
                return Trace(header, records)
            record = _record(value, sources)
            if record is None:
                raise TraceFormatError(
                    f"{name}, line {number}: {_shortened(value)} is not a record of the format "
                    f"version {FORMAT_VERSION}; expected [kind, seq, ...] with kind one of "
                    f"{', '.join(FIELDS)}. The file is damaged: record the trace again.",
                    path=name,
                    line=number,
                )
            if record:
                records.append(record)
    raise _truncated(name, number)


def _objects(file: TextIO, name: str) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        for number, line in enumerate(file, start=1):
            try:
                value = json.loads(line)
            except json.JSONDecodeError as exc:
                if number == 1:
                    raise _foreign(name) from exc
                if not line.endswith("\n"):
                    raise _truncated(name, number) from exc
                raise TraceFormatError(
                    f"{name}, line {number}: not JSON ({exc.msg}); expected one record a line. The "
                    "file is damaged: record the trace again.",
                    path=name,
                    line=number,
                ) from exc
            yield number, value
    except UnicodeDecodeError as exc:
        raise _foreign(name) from exc


def _header(value: Any, name: str) -> TraceHeader:
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise _foreign(name)
    version = value.get("version")
    if not isinstance(version, int) or version < 1:
        raise _foreign(name)
    if version < FORMAT_VERSION:
        raise TraceFormatError(
            f"{name} was written in version {version} of the trace format, which does not say how "
            "host threads hand over to each other; this accel_streams reads version "
            f"{FORMAT_VERSION}. Record the trace again.",
            path=name,
            line=1,
        )
    if version > FORMAT_VERSION:
        raise TraceFormatError(
            f"{name} was written in version {version} of the trace format, and this accel_streams "
            f"reads version {FORMAT_VERSION}. Upgrade accel_streams, or record the trace "
            "again with this one.",
            path=name,
            line=1,
        )
    try:
        names = {(int(d), int(s)): str(label) for d, s, label in value["stream_names"]}
        return TraceHeader(str(value["device_type"]), names, dict(value["info"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise TraceFormatError(
            f"{name}: the header lacks device_type, stream_names or info, or they are malformed. "
            "The file is damaged: record the trace again.",
            path=name,
            line=1,
        ) from exc


def _record(value: Any, sources: dict[int, Source]) -> Record | None:
    """Return the record, () for a line that introduces a source, None if it is malformed."""
    if not isinstance(value, list) or not value:
        return None
    kind, *rest = value
    try:
        if kind == "source":
            number, file, line, function = rest
            sources[_integer(number)] = (_text(file), _integer(line), _text(function))
            return ()
        names = FIELDS[kind]
        decoded = [
            (None if item is None else sources[item]) if name == "source" else _DECODE[name](item)
            for name, item in zip(names, rest, strict=True)
        ]
        return (kind, *decoded)
    except (KeyError, TypeError, ValueError):
        return None


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value


def _stream(value: Any) -> StreamKey:
    device, number = value
    return (_integer(device), _integer(number))


def _accesses(value: Any) -> tuple[Access, ...] | None:
    return None if value is None else tuple(_access(*access) for access in value)


def _access(block: Any, lo: Any, hi: Any, mode: Any, shape: Any = None) -> Access:
    plain = _integer(block), _integer(lo), _integer(hi), _integer(mode)
    if shape is None:
        return plain
    return (*plain, tuple(map(_integer, shape)))


_DECODE: Final[dict[str, Callable[[Any], Any]]] = {
    "stream": _stream,
    "accesses": _accesses,
    "name": _text,
    "label": _text,
    **dict.fromkeys(
        (
            "block",
            "count",
            "device_index",
            "end_ns",
            "nbytes",
            "order",
            "record_seq",
            "seq",
            "start_ns",
            "thread",
            "token",
        ),
        _integer,
    ),
}


def _check_end(
    promised: Any, found: int, lines: Iterator[tuple[int, Any]], name: str, number: int
) -> None:
    if promised != found:
        raise TraceFormatError(
            f"{name}: the end says {promised!r} records, and {found} are there. Lines were lost: "
            "record the trace again.",
            path=name,
            line=number,
        )
    if next(lines, None) is not None:
        raise TraceFormatError(
            f"{name} goes on after its end, at line {number + 1}; expected one trace in a file",
            path=name,
            line=number + 1,
        )


def _foreign(name: str) -> TraceFormatError:
    return TraceFormatError(
        f"{name} is not a trace of accel_streams: its first line is not a header with the format "
        f"{_FORMAT!r}. Traces for Perfetto are for looking at only and can't be read back.",
        path=name,
        line=1,
    )


def _truncated(name: str, number: int) -> TraceFormatError:
    return TraceFormatError(
        f"{name} ends after line {number} without its end line: the trace was cut off, and races "
        "after that point would go unseen. Record the trace again.",
        path=name,
        line=number,
    )


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."
