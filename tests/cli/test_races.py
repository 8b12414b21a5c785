"""The command ``races``: real scripts on the simulated device, and saved traces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel_streams.races import READ, WRITE, TraceHeader, load_trace, save_trace

SCRIPTS = Path(__file__).parent / "scripts"
TRAIN = str(SCRIPTS / "train_under_stream.py")
STREAMS = str(SCRIPTS / "streams.py")
LIMIT = 300
pytestmark = pytest.mark.timeout(LIMIT + 20)


def races(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel_streams.cli", "races", *arguments],
        env={**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def words(text: str) -> str:
    return " ".join(text.split())


def test_training_under_a_user_stream_as_deepspeed_ships(tmp_path: Path) -> None:
    file, picture, perfetto = (tmp_path / name for name in ("r.json", "r.png", "p.json"))
    done = races(
        *("--json", str(file), "--picture", str(picture), "--perfetto", str(perfetto)),
        *("--", TRAIN),
        ACCEL_STREAMS_ZERO="off",
    )
    assert done.returncode == 1, done.stderr
    told = words(done.stdout)
    assert re.search(r"\d+ races in [\d,]+ operations", told)
    # The edge that is missing, and where, in DeepSpeed's own code.
    assert re.search(
        r"missing: `stream 3 \(train_under_stream\.py:18\)` must wait for `reduction_stream` "
        r"\(an event recorded after its `copy_` at stage_1_and_2\.py:\d+\) before `copy_` at "
        r"stage_1_and_2\.py:\d+",
        told,
    )
    assert re.search(r"deepspeed/runtime/zero/stage_1_and_2\.py:\d+ in copy_grads_in_part", told)
    assert "Not seen:" in done.stdout
    document = json.loads(file.read_text())
    assert set(document) == {"schema", "operations", "unseen", "races"}
    assert document["schema"] == 1
    assert document["operations"] > 1000
    assert all(isinstance(each, str) for each in document["unseen"])
    kinds = {race["kind"] for race in document["races"]}
    assert "write-after-read" in kinds
    for race in document["races"]:
        assert race["missing_edge"]
        assert race["ranks"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(perfetto.read_text())["traceEvents"]


def test_the_same_training_in_this_package_s_order(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    done = races("--json", str(file), "--", TRAIN, ACCEL_STREAMS_RACES="raise")
    assert done.returncode == 0, done.stderr
    assert re.search(r"No races in [\d,]+ operations\.", done.stdout)
    assert "Not seen:\n- " in done.stdout
    document = json.loads(file.read_text())
    assert document["races"] == []
    assert document["operations"] > 1000
    assert f"{document['operations']:,} operations" in done.stdout


def test_a_script_that_does_nothing_on_the_device_is_not_called_clean() -> None:
    done = races("--ranks", "1", STREAMS, "nothing")
    assert done.returncode == 2
    assert "No races" not in done.stdout
    assert "no operation on the device was seen, so nothing was checked" in done.stderr


def test_a_rank_that_does_nothing_is_told_of() -> None:
    done = races("--ranks", "2", STREAMS, "idle-rank")
    assert done.returncode == 0
    assert "warning: rank 1 did nothing on the device" in done.stderr


def test_a_race_in_a_thread_of_the_script_s_own() -> None:
    done = races("--ranks", "1", STREAMS, "thread")
    assert done.returncode == 1
    assert "1 race in 2 operations" in done.stdout
    assert "in use_two_streams" in words(done.stdout)


def test_running_out_of_memory_tells_what_had_been_seen() -> None:
    done = races("--ranks", "1", STREAMS, "memory")
    assert done.returncode == 1
    assert "accel-streams: error: rank 0 exited with status 1" in done.stderr
    assert "bad_alloc" in done.stderr
    assert "Before the script ended early, 1 race had been seen in 2 operations." in done.stderr
    assert "must wait for `default stream`" in done.stderr
    assert "No races" not in done.stdout


def test_a_saved_trace_is_analysed_again(tmp_path: Path) -> None:
    trace, file = tmp_path / "run.trace", tmp_path / "r.json"
    done = races("--ranks", "1", "--save", str(trace), STREAMS, "race")
    assert done.returncode == 1, done.stderr
    again = races("--trace", str(trace), "--json", str(file))
    assert again.returncode == 1, again.stderr
    assert "must wait for `default stream`" in words(again.stdout)
    assert len(json.loads(file.read_text())["races"]) == 1
    # Its head alone: never "no races".
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join(lines[:4]))
    cut = races("--trace", str(trace))
    assert cut.returncode == 1
    assert "the trace was cut off" in cut.stderr
    assert "No races" not in cut.stdout


def records() -> list[tuple[Any, ...]]:
    write = ("launch", 1, 0, (0, 0), "aten::fill_", ((1, 0, 8, WRITE),), ("a.py", 1, "f"))
    read = ("launch", 2, 0, (0, 1), "aten::sum", ((1, 0, 8, READ),), ("a.py", 2, "f"))
    return [write, read]


def test_a_trace_of_another_device(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace"
    save_trace(trace, records(), TraceHeader("made_up"))
    done = races("--trace", str(trace))
    assert done.returncode == 1
    assert "of the device 'made_up'" in done.stdout
    assert "stream 1 of made_up:0" in words(done.stdout)
    refused = races("--trace", str(trace), "--backend", "cuda")
    assert refused.returncode == 1
    assert "is a trace of the device 'made_up'; expected one of 'cuda'" in refused.stderr
    assert load_trace(trace).header.device_type == "made_up"


def test_a_trace_of_a_newer_version(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace"
    save_trace(trace, records())
    header, *rest = trace.read_text().splitlines(keepends=True)
    newer = json.dumps({**json.loads(header), "version": 99}) + "\n"
    trace.write_text("".join([newer, *rest]))
    done = races("--trace", str(trace))
    assert done.returncode == 1
    assert "version 99" in done.stderr


def test_a_launch_with_unknown_accesses_is_listed_as_not_seen(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace"
    unknown = ("launch", 3, 0, (0, 1), "mystery::kernel", None, ("a.py", 3, "f"))
    save_trace(trace, [records()[0], unknown])
    done = races("--trace", str(trace))
    assert done.returncode == 0
    assert "mystery::kernel" in done.stdout.partition("Not seen:")[2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "name either a script or a saved trace"),
        (("--trace", "gone.trace"), "there is no file gone.trace"),
        (("--trace", "gone.trace", STREAMS), "name either a script or a saved trace"),
        (("gone.py",), "there is no file gone.py"),
        (("--backend", "nonesuch", STREAMS), "nonesuch"),
        (("--ranks", "0", STREAMS), "--ranks"),
        (("--save", "no/such/folder/x", STREAMS), "can't be written"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments: tuple[str, ...], complaint: str) -> None:
    done = races(*arguments)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr


def test_a_backend_that_cannot_be_used_is_told_before_anything_runs() -> None:
    done = races("--backend", "mlu", STREAMS, "race")
    assert done.returncode == 1
    assert "mlu" in done.stderr
    assert "torch_mlu" in done.stderr
