"""Trace files: what is written is read back, and what is damaged is said to be."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from accel_streams._errors import TraceFormatError
from accel_streams.races import (
    FORMAT_VERSION,
    Analyser,
    Record,
    TraceHeader,
    TraceWriter,
    load_trace,
    save_trace,
)
from accel_streams.races._records import FIELDS
from race_programs import STREAM_NAMES, DoubleBuffer, random_program, with_times

HEADER = TraceHeader("fake", STREAM_NAMES, {"schedule": "in-order", "seed": 3})


@pytest.fixture
def records() -> list[Record]:
    return with_times(DoubleBuffer(frozenset()).records)


@pytest.fixture
def saved(tmp_path: Path, records: list[Record]) -> Path:
    path = tmp_path / "run.trace"
    save_trace(path, records, HEADER)
    return path


def test_what_is_saved_is_loaded(saved: Path, records: list[Record]) -> None:
    trace = load_trace(saved)
    assert trace.records == records
    assert trace.header == HEADER


def test_every_kind_of_record_survives(tmp_path: Path) -> None:
    written: list[Record] = []
    for seed in range(40):
        written += random_program(random.Random(seed))
    written = [(*record[:-1], None) if record[0] == "wait" else record for record in written]
    written += [("ran", 3, 0, 10, 20), ("name", 9, 1, 4, "a \u2192 label"), ("left_out", 9, 0, 7)]
    written += [("launch", 9, 0, (0, 1), "custom", None, None)]
    assert {record[0] for record in written} == set(FIELDS)
    save_trace(tmp_path / "t", written)
    assert load_trace(tmp_path / "t").records == written


def test_a_loaded_trace_has_the_races_of_the_run(saved: Path, records: list[Record]) -> None:
    reports = []
    for each in (records, load_trace(saved).records):
        analyser = Analyser()
        analyser.feed(each)
        reports.append(analyser.races(STREAM_NAMES))
    assert reports[0] == reports[1] != []


def test_equal_sources_are_written_once_and_shared(saved: Path) -> None:
    lines = [json.loads(line) for line in saved.read_text().splitlines()[1:-1]]
    sources = [line for line in lines if line[0] == "source"]
    assert len(sources) == len({tuple(line[2:]) for line in sources})
    loaded = [record[-1] for record in load_trace(saved).records if record[0] == "launch"]
    assert len({id(source) for source in loaded}) == len(set(loaded))


def test_a_writer_takes_chunks(tmp_path: Path, records: list[Record]) -> None:
    with TraceWriter(tmp_path / "t", HEADER) as writer:
        for start in range(0, len(records), 10):
            writer.write(records[start : start + 10])
        assert not (tmp_path / "t").exists(), "half a trace can be seen"
    assert load_trace(tmp_path / "t").records == records


def test_a_failure_leaves_the_old_file_and_nothing_else(saved: Path, records: list[Record]) -> None:
    before = saved.read_bytes()

    def fail_half_way() -> None:
        with TraceWriter(saved, HEADER) as writer:
            writer.write(records[:5])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="with statement"):
        TraceWriter(tmp_path / "t", HEADER).write([("free", 1, 0, (0, 0), 1)])


def test_a_trace_can_be_read_by_others(saved: Path) -> None:
    assert saved.stat().st_mode & 0o044


def fails(path: Path, **options: Any) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as raised:
        load_trace(path, **options)
    assert raised.value.path == str(path)
    assert str(path) in str(raised.value)
    return raised.value


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    assert "cut off" in str(fails(saved))


def test_a_file_without_its_last_line(saved: Path) -> None:
    saved.write_text("".join(saved.read_text().splitlines(keepends=True)[:-1]))
    assert "cut off" in str(fails(saved))


def test_a_file_that_lost_a_line(saved: Path) -> None:
    lines = saved.read_text().splitlines(keepends=True)
    del lines[-2]
    saved.write_text("".join(lines))
    assert "Lines were lost" in str(fails(saved))


def test_two_traces_in_one_file(saved: Path) -> None:
    saved.write_text(saved.read_text() * 2)
    assert "goes on after its end" in str(fails(saved))


def test_a_newer_version(saved: Path) -> None:
    lines = saved.read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    header["version"] = FORMAT_VERSION + 1
    saved.write_text(json.dumps(header) + "\n" + "".join(lines[1:]))
    error = fails(saved)
    assert f"version {FORMAT_VERSION + 1}" in str(error)
    assert "Upgrade accel_streams" in str(error)


def test_an_older_version(saved: Path) -> None:
    # It holds too little to tell threads apart, and a guess would be a wrong result.
    saved.write_text(saved.read_text().replace(f'"version":{FORMAT_VERSION}', '"version":1', 1))
    assert "version 1" in str(fails(saved))
    assert "Record the trace again" in str(fails(saved))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\n",
        b"[1, 2]\n",
        b'{"traceEvents": []}\n',
        b'{"format": "accel_streams.trace"}\n',
        b'{"format": "accel_streams.trace", "version": "1"}\n',
        b"\x89PNG\r\n\x1a\n\xff\xfe",
        b'{"format": "accel_streams.trace"',
    ],
)
def test_a_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert "not a trace of accel_streams" in str(fails(path))


def test_a_header_without_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text('{"format": "accel_streams.trace", "version": 2}\n{"records": 0}\n')
    assert "header lacks" in str(fails(path))


@pytest.mark.parametrize(
    "line",
    [
        '["launch", 1, 0, [0, 1], "op", [[1, 0, 16]], null]',
        '["launch", 1, 0, [0, 1], "op", [[1, 0, 16, 1.5]], null]',
        '["launch", 1, 0, [0, 1], "op", [[1, 0, 16, 1, [4, 2.5, 8]]], null]',
        '["launch", 1, 0, [0, 1], "op", [[1, 0, 16, 1, [4, 2, 8], 0]], null]',
        '["launch", 1, 0, [0, 1], "op", 5, null]',
        '["acquire", 1, 0, "1"]',
        '["launch", 1, 0, [0, 1], "op", [], 99]',
        '["launch", 1, 0, [0], "op", [], null]',
        '["free", 1, 0, [0, 1], true]',
        '["free", 1, 0, [0, 1]]',
        '["free", "1", 0, [0, 1], 4]',
        '["teleport", 1, 0]',
        '["source", 0, "file"]',
        "[]",
        "[[]]",
        "17",
        '{"record": 1}',
    ],
)
def test_a_malformed_record_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t"
    save_trace(path, [("free", 1, 0, (0, 0), 1)])
    header, record, end = path.read_text().splitlines()
    path.write_text("\n".join((header, record, line, end)) + "\n")
    error = fails(path)
    assert error.line == 3
    assert "line 3" in str(error)
    assert "damaged" in str(error)


def test_a_line_that_is_not_json(saved: Path) -> None:
    lines = saved.read_text().splitlines(keepends=True)
    lines[4] = "oops\n"
    saved.write_text("".join(lines))
    assert fails(saved).line == 5


def test_a_trace_of_another_device(saved: Path) -> None:
    assert "'fake'" in str(fails(saved, device_type="cuda"))
    assert load_trace(saved, device_type="fake").records


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_trace(tmp_path / "none")
