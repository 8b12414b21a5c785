"""Reports: what a person, a program, Perfetto and a picture show of a race."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel_streams._errors import AccelStreamsError
from accel_streams.races import (
    READ,
    WRITE,
    Analyser,
    Race,
    Record,
    draw_timeline,
    render_text,
    to_json,
    write_perfetto,
)
from accel_streams.races._scene import Scene, choose_scene
from accel_streams.races._timeline import read_timeline
from race_programs import (
    REDUCTION,
    SIDE,
    STREAM_NAMES,
    DoubleBuffer,
    Recorder,
    with_times,
)


def analysed(records: list[Record]) -> list[Race]:
    analyser = Analyser()
    analyser.feed(records)
    return analyser.races(STREAM_NAMES)


def without(*waits: str) -> list[Record]:
    return with_times(DoubleBuffer(DoubleBuffer.ALL - set(waits)).records)


def freed_too_early() -> list[Record]:
    program = Recorder()
    block = program.alloc(SIDE, 1024)
    program.launch(SIDE, (block, 0, 1024, WRITE), name="aten::mm")
    program.edge(SIDE, REDUCTION)
    program.launch(REDUCTION, (block, 0, 1024, READ), name="aten::sum")
    program.free(block)
    program.reuse(block)
    again = program.alloc(SIDE, 1024)
    program.launch(SIDE, (again, 0, 1024, WRITE), name="aten::mm")
    return with_times(program.records)


def far_apart() -> list[Record]:
    program = DoubleBuffer(fills=2)
    block = program.buckets[0]
    program.at(99, "late").alloc(SIDE)
    for _ in range(40):
        program.launch(REDUCTION, (block, 0, 1024, READ), name="aten::mul")
    program.launch(SIDE, (block, 0, 1024, WRITE), name="aten::copy_")
    return with_times(program.records)


class TestText:
    def test_it_says_what_where_and_which_wait(self) -> None:
        text = render_text(analysed(without("producers")), operations=92)
        for words in (
            "6 races in 92 operations, seen 24 times, from 1 missing wait:",
            "1. read-after-write on ipg_buckets[bf16].buffer[0], bytes",
            "first:   copy_ writes it on `side1` at deepspeed/runtime/zero/stage_1_and_2.py:1456",
            "then:    div_ reads and writes it on `reduction_stream` at",
            "fccl::all_reduce reads and writes it on `fccl` (issued from `reduction_stream`)",
            "missing: stream `reduction_stream` must wait for `side1` (an event recorded after its",
        ):
            assert words in text
        assert max(map(len, text.splitlines())) <= 130
        assert not text.endswith("\n")

    def test_no_races_is_said_with_what_was_looked_at(self) -> None:
        assert render_text([], operations=12_345) == "No races in 12,345 operations."
        text = render_text([], operations=2, unseen=["triton::f"])

        assert text == "No races in 2 operations in what could be seen.\n\nNot seen:\n- triton::f"

    def test_a_long_list_can_be_cut(self) -> None:
        text = render_text(analysed(without("producers")), limit=2)
        assert "\n3. " not in text
        assert text.endswith("... and 4 more races")

    def test_a_lifetime_fault(self) -> None:
        text = render_text(analysed(freed_too_early()))
        assert "use-after-free on 1 KiB allocated at program.py:1 in main" in text
        assert "may be handed to new work on `side1`" in text


def test_json_is_serialisable_and_complete() -> None:
    races = analysed(without("producers"))
    document = json.loads(json.dumps(to_json(races, operations=92, unseen=["x"])))
    assert {key: document[key] for key in ("schema", "operations", "unseen")} == {
        "schema": 1,
        "operations": 92,
        "unseen": ["x"],
    }
    first = document["races"][0]
    assert first["kind"] == "read-after-write"
    assert first["buffer"] == "ipg_buckets[bf16].buffer[0]"
    assert first["missing_edge"] == races[0].missing_edge
    assert first["first"]["operation"] == "aten::copy_"
    assert first["first"]["stream"] == "side1"
    assert first["first"]["line"] == 1456
    assert first["first"]["access"] == "write"
    assert first["second"]["access"] == "read and write"


class TestPerfetto:
    @staticmethod
    def events(tmp_path: Path, records: list[Record], races: list[Race]) -> list[dict[str, Any]]:
        path = tmp_path / "trace.json"
        write_perfetto(path, records, races, STREAM_NAMES)
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
        assert list(tmp_path.iterdir()) == [path]
        return events

    def test_streams_are_threads_and_launches_are_slices(self, tmp_path: Path) -> None:
        records = without("producers")
        events = self.events(tmp_path, records, [])
        names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        assert names == {stream: label for (_, stream), label in STREAM_NAMES.items()}
        slices = [event for event in events if event["ph"] == "X"]
        assert len(slices) == sum(record[0] == "launch" for record in records)
        assert all(event["dur"] > 0 for event in slices)
        ran = {record[1]: record[3:] for record in records if record[0] == "ran"}
        for event in slices:
            start, end = ran[event["args"]["seq"]]
            assert (event["ts"], event["ts"] + event["dur"]) == pytest.approx(
                (start / 1000, end / 1000)
            )

    def test_slices_of_a_stream_do_not_overlap(self, tmp_path: Path) -> None:
        events = self.events(tmp_path, without(), [])
        for stream in {event["tid"] for event in events if event["ph"] == "X"}:
            own = [e for e in events if e["ph"] == "X" and e["tid"] == stream]
            own.sort(key=lambda event: event["ts"])
            for before, after in itertools.pairwise(own):
                assert before["ts"] + before["dur"] <= after["ts"] + 1e-6

    def test_events_are_instants(self, tmp_path: Path) -> None:
        records = without()
        instants = [e for e in self.events(tmp_path, records, []) if e["ph"] == "i"]
        assert len(instants) == sum(record[0] in ("record", "wait") for record in records)

    def test_each_race_is_an_arrow_between_its_operations(self, tmp_path: Path) -> None:
        records = without("release")
        races = analysed(records)
        events = self.events(tmp_path, records, races)
        slices = {e["args"]["seq"]: e for e in events if e["ph"] == "X"}
        for number, race in enumerate(races):
            begin, end = (
                next(e for e in events if e["ph"] == phase and e.get("id") == number)
                for phase in "sf"
            )
            assert begin["ts"] <= end["ts"]
            assert begin["name"] == race.missing_edge
            touched = set()
            for event in (begin, end):
                touched |= {
                    seq
                    for seq, each in slices.items()
                    if each["tid"] == event["tid"]
                    and each["ts"] <= event["ts"] < each["ts"] + each["dur"]
                }
            assert touched == {race.first.seq, race.second.seq}
        tracks = [e for e in events if e["ph"] == "b"]
        assert [track["args"]["missing_edge"] for track in tracks] == [
            race.missing_edge for race in races
        ]

    def test_a_trace_without_times_is_drawn_in_order_of_submission(self, tmp_path: Path) -> None:
        records = DoubleBuffer().records
        slices = [e for e in self.events(tmp_path, records, []) if e["ph"] == "X"]
        assert [each["args"]["seq"] for each in sorted(slices, key=lambda e: e["ts"])] == sorted(
            each["args"]["seq"] for each in slices
        )


def scene_of(records: list[Record], race: Race) -> Scene:
    timeline = read_timeline(records, (race.first.seq, race.second.seq))
    scene = choose_scene(timeline, race.block, race)
    assert scene is not None
    return scene


@pytest.mark.parametrize(
    "records",
    [
        without("producers"),
        without("release"),
        without("allocation"),
        freed_too_early(),
        far_apart(),
    ],
    ids=["producers", "release", "allocation", "freed", "far"],
)
class TestScene:
    def test_the_pair_is_shown_among_few_others(self, records: list[Record]) -> None:
        for race in analysed(records):
            scene = scene_of(records, race)
            assert scene.first is not None
            assert scene.second is not None
            assert {scene.first.seq, scene.second.seq} <= {each.seq for each in scene.shown}
            assert len(scene.shown) <= 24
            for each in (scene.first, scene.second):
                assert each.stream in scene.lanes

    def test_operations_are_wide_enough_to_read_and_apart(self, records: list[Record]) -> None:
        for race in analysed(records):
            scene = scene_of(records, race)
            for lane in scene.lanes:
                spans = sorted(scene.axis.span(each) for each in scene.shown if each.stream == lane)
                assert all(right - left >= 1.99 for left, right in spans)
                for before, after in itertools.pairwise(spans):
                    assert before[1] <= after[0] + 1e-9

    def test_overlap_in_time_is_overlap_in_the_picture(self, records: list[Record]) -> None:
        for race in analysed(records):
            scene = scene_of(records, race)
            shown = [each for each in scene.shown if each.start < each.end]
            for one in shown:
                for other in shown:
                    left, right = scene.axis.span(one), scene.axis.span(other)
                    in_time = one.start < other.end and other.start < one.end
                    assert (left[0] < right[1] and right[0] < left[1]) == in_time


def test_what_lies_between_a_far_pair_is_left_out_and_counted() -> None:
    records = far_apart()
    race = analysed(records)[0]
    scene = scene_of(records, race)
    assert scene.cut is not None
    between = [
        each
        for each in read_timeline(records).slices
        if any(access[0] == race.block for access in each.accesses)
    ]
    hidden = [each for each in between if scene.cut[0] <= each.start and each.end <= scene.cut[1]]
    assert scene.cut[2] >= 20
    assert not {each.seq for each in hidden} & {each.seq for each in scene.shown}


class TestPicture:
    @pytest.mark.parametrize(
        "records",
        [without("producers"), without("release"), without("allocation"), freed_too_early()],
        ids=["producers", "release", "allocation", "freed"],
    )
    def test_it_is_drawn_with_the_pair_in_red(self, tmp_path: Path, records: list[Record]) -> None:
        path = tmp_path / "timeline.png"
        draw_timeline(path, records, analysed(records), STREAM_NAMES)
        assert list(tmp_path.iterdir()) == [path]
        assert red_share(path) > 0.002

    def test_without_a_race_nothing_is_red(self, tmp_path: Path) -> None:
        path = tmp_path / "timeline.png"
        draw_timeline(path, without(), [], STREAM_NAMES)
        assert red_share(path) == 0

    def test_a_buffer_can_be_chosen(self, tmp_path: Path) -> None:
        records = without("producers")
        races = analysed(records)
        draw_timeline(tmp_path / "a.png", records, races, STREAM_NAMES)
        for buffer in ("ipg_buckets[bf16].buffer[0]", "ipg_buckets[bf16].buffer[1]"):
            draw_timeline(tmp_path / "b.png", records, races, STREAM_NAMES, buffer=buffer)
            same = (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
            assert same == (buffer == races[0].buffer)

    def test_a_window_can_be_chosen(self, tmp_path: Path) -> None:
        records = without("release")
        race = analysed(records)[0]
        window = (race.first.seq, race.second.seq)
        draw_timeline(tmp_path / "a.png", records, [race], STREAM_NAMES, window=window)
        assert red_share(tmp_path / "a.png") > 0

    def test_the_same_trace_gives_the_same_picture(self, tmp_path: Path) -> None:
        for name in "ab":
            draw_timeline(tmp_path / name, without("release"), analysed(without("release")))
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_nothing_to_draw_is_an_error_and_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(AccelStreamsError, match="no operation in the trace touches"):
            draw_timeline(tmp_path / "a.png", [])
        with pytest.raises(AccelStreamsError, match="touches weights"):
            draw_timeline(tmp_path / "a.png", without(), buffer="weights")
        assert list(tmp_path.iterdir()) == []

    def test_without_matplotlib_the_error_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(AccelStreamsError, match="pip install matplotlib"):
            draw_timeline(tmp_path / "a.png", without())


def red_share(path: Path) -> float:
    import matplotlib.image
    import numpy

    pixels = numpy.asarray(matplotlib.image.imread(path))[..., :3]
    red = numpy.all(numpy.abs(pixels - numpy.array([0xD6, 0x27, 0x28]) / 255) < 0.02, axis=-1)
    return float(red.mean())


def test_importing_the_package_loads_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, accel_streams.races\n"
        "print(sorted({'torch', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
