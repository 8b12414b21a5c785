"""The command ``demo``: what it says of what it found, and a short one from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from accel_streams.cli._demo_files import write_trace_files
from accel_streams.cli._demo_verdict import Figures, judge, main_race
from accel_streams.explore import (
    BLOCKING,
    DEMO_SCRIPT,
    IN_ORDER,
    REAL_DEVICE,
    VARIANTS,
    RankResult,
    Run,
    Runner,
    RunResult,
    Schedule,
    Script,
    VariantSummary,
    compare,
    free_runs,
)
from hook_streams import ON_ONE_STREAM

DEEPSPEED, OURS = VARIANTS
OTHERS = (Schedule("fifo"), Schedule("lifo"))


def race(missing: str, count: int = 1) -> dict[str, Any]:
    place = {"operation": "copy_", "access": "read", "file": missing, "line": 1, "function": "f"}
    return {
        "kind": "write-after-read",
        "buffer": "a bucket",
        "first": place,
        "second": place,
        "missing_edge": missing,
        "count": count,
    }


def result(schedule: Schedule, digest: str = "d", **fields: Any) -> RunResult:
    values: dict[str, Any] = {
        "losses": [2.0],
        "steps": 1,
        "skipped_steps": 0,
        "races": [],
        "synchronizing_ops": {"aten::_local_scalar_dense": 3},
        "operations": 1000,
        "wall_s": 0.4,
        "cpu_s": 0.1,
        "peak_rss_bytes": 1 << 20,
    }
    return RunResult(
        Run(Script("x"), OURS, schedule), (RankResult(0, digest, **{**values, **fields}),)
    )


def summary(name: str, *others: RunResult, **in_order: Any) -> VariantSummary:
    return VariantSummary(name, [result(IN_ORDER, **in_order), *others])


def good() -> VariantSummary:
    return summary("accel_streams", *map(result, OTHERS))


def wrong() -> VariantSummary:
    edge = [race("the copy must wait")]
    fifo, lifo = (result(other, "e", races=edge) for other in OTHERS)
    return summary("deepspeed", fifo, lifo, races=edge)


def test_wrong_as_shipped_and_right_with_us_is_what_the_demo_claims() -> None:
    verdict = judge([wrong(), good()], result(IN_ORDER))
    assert verdict.holds
    text = " ".join(verdict.sentences)
    assert "2 of 2 other schedules ended with other parameters" in text
    assert "the copy must wait" in text
    assert "no run raised an error or skipped a step" in text


@pytest.mark.parametrize(
    ("deepspeed", "complaint"),
    [
        (summary("deepspeed", *map(result, OTHERS)), "0 of 2 other schedules differ and 0 races"),
        (summary("deepspeed", result(OTHERS[0], "e")), "1 of 1 other schedules differ and 0 races"),
        (summary("deepspeed", races=[race("a wait")]), "0 of 0 other schedules differ and 1 races"),
    ],
)
def test_deepspeed_has_to_be_shown_wrong(deepspeed: VariantSummary, complaint: str) -> None:
    verdict = judge([deepspeed, good()], result(IN_ORDER))
    assert not verdict.holds
    assert complaint in verdict.sentences[0]


@pytest.mark.parametrize(
    ("ours", "alone", "complaint"),
    [
        (summary("accel_streams", result(OTHERS[0], "e")), "d", "1 schedules ended with other"),
        (summary("accel_streams", races=[race("a wait")]), "d", "1 races were reported"),
        (summary("accel_streams", skipped_steps=2), "d", "2 steps were skipped"),
        (good(), "other", "on a single stream ended with other parameters"),
    ],
)
def test_every_flaw_of_ours_is_told(ours: VariantSummary, alone: str, complaint: str) -> None:
    verdict = judge([wrong(), ours], result(IN_ORDER, alone))
    assert not verdict.holds
    assert complaint in verdict.sentences[-1]


def real(name: str, digests: str) -> VariantSummary:
    runs = [result(schedule, each) for schedule, each in zip(free_runs(2), digests, strict=True)]
    return VariantSummary(name, runs)


def test_a_real_device_is_wrong_where_free_runs_differ_from_the_blocking_one() -> None:
    shipped = real("deepspeed", "dde")
    shipped.runs[0] = result(BLOCKING, "d", races=[race("the copy must wait")])
    verdict = judge([shipped, real("accel_streams", "ddd")], result(BLOCKING))
    assert verdict.holds
    text = " ".join(verdict.sentences)
    assert "1 of 2 free runs ended with other parameters than the one in which the host" in text
    assert "With accel_streams all 3 runs ended with equal parameters" in text
    for wrong_ones in (real("deepspeed", "ddd"), real("deepspeed", "dee")):
        assert "--delay" in judge([wrong_ones], None).sentences[0]  # Equal; or nobody knows why.
    ours = judge([real("accel_streams", "ded")], None)
    assert "1 runs ended with other parameters than the one in which" in ours.sentences[0]


def test_a_real_device_costs_what_it_costs_unwatched() -> None:
    figures = Figures.of(real("deepspeed", "ddd").runs, wall_s=9.0, start_s=2.0)
    assert figures.cpu_us_per_operation is None


def test_the_race_that_is_told_is_one_of_those_in_most_schedules() -> None:
    races = [
        {**race("a", 90), "schedules": ["fifo"]},
        {**race("b", 3), "schedules": ["fifo", "lifo"]},
        {**race("c", 5), "schedules": ["fifo", "lifo"]},
    ]
    told = main_race(races)
    assert told is not None
    assert told["missing_edge"] == "c"


def test_the_figures_are_those_of_the_worst_run() -> None:
    runs = [result(IN_ORDER), result(OTHERS[0], operations=1200, peak_rss_bytes=3 << 20)]
    figures = Figures.of(runs, wall_s=9.0, start_s=2.0)
    assert (figures.operations, figures.peak_rss_bytes, figures.runs) == (1200, 3 << 20, 2)
    assert figures.synchronizing_ops == {"aten::_local_scalar_dense": 3}
    assert "9 s for 2 runs" in str(figures)
    json.dumps(figures.to_json(), allow_nan=False)


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel_streams.cli", "demo", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.timeout(300)
def test_a_short_demo_shows_it_all(tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    result = demo(tmp_path, "--steps", "2", "--schedules", "lifo,priority:1", "--json", str(copy))
    if ON_ONE_STREAM:
        assert result.returncode == 1, result.stdout + result.stderr
        assert "not shown to be wrong" in result.stdout
        assert "With accel_streams all 3 schedules ended with equal parameters" in result.stdout
        return
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    folder = tmp_path / "accel-streams-demo"
    document = json.loads((folder / "demo.json").read_text())
    assert document == json.loads(copy.read_text())
    assert (document["schema"], document["backend"]) == (1, "cpu_fake")
    assert (document["ranks"], document["steps"], document["holds"]) == (2, 2, True)
    shipped, ours = document["variants"]
    assert (shipped["name"], ours["name"]) == ("deepspeed", "accel_streams")
    assert shipped["races"]
    assert shipped["agreeing"] < 3
    assert (ours["races"], ours["agreeing"]) == ([], 3)
    for schedule in ours["schedules"]:
        assert schedule["skipped_steps"] == 0
        assert schedule["digest"] == document["single_stream"]["digest"]
        assert len(schedule["loss"]) == 2
    for name in ("kind", "buffer", "first", "second", "missing_edge"):
        assert shipped["races"][0][name]
    # What synchronises the device is reading back a number, and nothing else; DeepSpeed before 0.19
    # copies it to the host first.
    synchronizing = {"aten::_local_scalar_dense"}
    if Version(document["deepspeed"]) < Version("0.19"):
        synchronizing.add("aten::copy_ (device to host)")
    assert {"aten::_local_scalar_dense"} <= {*document["figures"]["synchronizing_ops"]}
    assert {*document["figures"]["synchronizing_ops"]} <= synchronizing
    assert document["figures"]["peak_rss_bytes"] < 1 << 30
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert json.loads((folder / "trace.perfetto.json").read_text())["traceEvents"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "demo.json",
        "timeline.png",
        "trace.perfetto.json",
    ]
    assert "must wait for" in result.stdout
    for name in ("timeline.png", "trace.perfetto.json", "demo.json"):
        assert f"wrote accel-streams-demo/{name}" in result.stdout


@pytest.mark.once
@pytest.mark.timeout(200)
def test_one_rank_shows_nothing_and_says_what_it_takes(tmp_path: Path) -> None:
    result = demo(tmp_path, "--steps", "1", "--ranks", "1", "--schedules", "lifo")
    assert result.returncode == 1, result.stderr
    assert "not shown to be wrong" in result.stdout
    assert "two ranks or more" in result.stdout
    assert json.loads((tmp_path / "accel-streams-demo/demo.json").read_text())["holds"] is False


@pytest.mark.once
@pytest.mark.timeout(300)
def test_what_runs_on_a_real_device_is_watched_in_the_blocking_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The simulated device, looked at as a real one is.
    monkeypatch.setenv("DS_ACCELERATOR", "accel_streams:cpu_fake")
    script = Script(DEMO_SCRIPT, ("--steps", "2", "--two-producers", "--deterministic"))
    with Runner(ranks=1, device=REAL_DEVICE, timeout_s=120, jobs=1, fresh=True) as runner:
        (summary,) = compare(
            runner, script, (DEEPSPEED,), free_runs(1), keep_records={"deepspeed": 100_000}
        )
        blocking, free = summary.runs
        assert blocking.races
        assert blocking.operations
        assert not free.races
        assert not free.operations
        assert [path.name for path in write_trace_files(tmp_path, summary)] == [
            "timeline.png",
            "trace.perfetto.json",
        ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--backend", "mlu"], "'mlu' is not supported: the demo needs a device whose schedule"),
        (["--backend", "cuda", "--schedules", "fifo"], "say how often to try with --runs"),
        (["--runs", "2"], "choose them with --schedules"),
        (["--delay", "1"], "choose them with --schedules"),
        (["--schedules", "fast"], "unknown schedule 'fast'; expected one of in-order"),
        (["--schedules", "fifo:1"], "takes no seed"),
        (["--variants", "ours"], "unknown variant 'ours'"),
        (["--steps", "0"], "--steps"),
        (["--output", "/dev/null/demo"], "can't be made: Not a directory"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_ends_with_status_2(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    result = demo(tmp_path, *arguments)
    assert result.returncode == 2, result.stderr
    assert complaint in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_there_is_nothing_to_show_on_cuda(tmp_path: Path) -> None:
    result = demo(tmp_path, "--backend", "cuda")
    assert result.returncode == 1, result.stdout
    assert "The backend 'cuda'" in result.stderr
    assert "is not usable here" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_script_is_an_ordinary_one() -> None:
    text = Path(DEMO_SCRIPT).read_text()
    imports = [line.split()[1] for line in text.splitlines() if line.startswith(("import", "from"))]
    outside = {name.split(".")[0] for name in imports} - sys.stdlib_module_names
    assert outside == {"torch", "deepspeed"}


@pytest.mark.once
@pytest.mark.timeout(200)
def test_a_backward_of_the_demo_flushes_eight_buckets(tmp_path: Path) -> None:
    from accel_streams.races import load_trace

    reductions = []
    with Runner(ranks=2, timeout_s=100, logs=tmp_path / "logs") as runner:
        for steps in ("1", "2"):
            script = Script(DEMO_SCRIPT, ("--steps", steps))
            done = runner.run(Run(script, OURS, IN_ORDER, keep_records=10**6, check=False))
            trace = done.ranks[0].trace
            assert trace is not None
            reductions.append(
                sum(
                    record[0] == "launch"
                    and record[4] == "fccl::all_reduce"
                    and record[5][0][2] - record[5][0][1] > 1000  # bytes: not a flag or a norm
                    for record in load_trace(trace).records
                )
            )
    assert reductions[1] - reductions[0] >= 8
