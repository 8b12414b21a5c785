from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from accel_streams.explore import IN_ORDER, Run, RunResult, Schedule, Script, VariantSummary
from accel_streams.explore._plan import VARIANTS
from accel_streams.explore._results import RankResult, merge_races

RACE: dict[str, Any] = {
    "kind": "read-after-write",
    "buffer": "allocation 7",
    "first": {"operation": "copy_", "file": "a.py", "line": 1, "function": "f", "seq": 10},
    "second": {"operation": "mul_", "file": "a.py", "line": 2, "function": "g", "seq": 20},
    "missing_edge": "this waits for that",
    "count": 3,
}
ELSEWHERE = {**RACE, "second": {**RACE["second"], "line": 5}}
ELSEWHEN = {**RACE, "buffer": "allocation 9", "first": {**RACE["first"], "seq": 400}, "count": 1}


def rank(number: int, digest: str = "d", **fields: Any) -> RankResult:
    values: dict[str, Any] = {
        "losses": [2.0, 1.0],
        "steps": 2,
        "skipped_steps": 0,
        "races": [],
        "synchronizing_ops": {},
        "operations": 10,
        "wall_s": 1.0,
        "cpu_s": 1.0,
        "peak_rss_bytes": 100,
    }
    return RankResult(number, digest, **{**values, **fields})


def run(*ranks: RankResult, schedule: Schedule = IN_ORDER) -> RunResult:
    return RunResult(Run(Script("train.py"), VARIANTS[1], schedule), ranks)


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    result = rank(1, losses=[math.inf, 0.1], races=[RACE], trace="t.jsonl")
    result.save(tmp_path / "rank1.json")
    assert RankResult.load(tmp_path / "rank1.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["rank1.json"]


def test_a_result_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    broken = rank(0, races=[{"kind": object()}])
    try:
        broken.save(tmp_path / "rank0.json")
    except TypeError:
        pass
    else:
        raise AssertionError("an object is no JSON")
    assert list(tmp_path.iterdir()) == []


def test_one_rank_that_differs_changes_the_digest_of_the_run() -> None:
    assert run(rank(0), rank(1)).digest == run(rank(0), rank(1)).digest
    assert run(rank(0), rank(1)).digest != run(rank(0), rank(1, "e")).digest
    assert run(rank(0, "d"), rank(1, "e")).digest != run(rank(0, "e"), rank(1, "d")).digest


def test_a_run_is_as_slow_large_and_bad_as_its_worst_rank() -> None:
    result = run(
        rank(0, wall_s=2.0, skipped_steps=1, losses=[1.0, 3.0]),
        rank(1, peak_rss_bytes=300, operations=11, losses=[2.0, math.nan]),
    )
    assert (result.wall_s, result.peak_rss_bytes, result.operations) == (2.0, 300, 11)
    assert result.skipped_steps == 1
    assert result.losses[0] == 1.5
    assert result.to_json()["loss"] == [1.5, None]
    json.dumps(result.to_json(), allow_nan=False)


def test_equal_races_are_told_once_with_where_they_were_seen() -> None:
    merged = merge_races(
        [
            {**RACE, "schedules": ["fifo"]},
            {**ELSEWHERE, "schedules": ["fifo"]},
            {**ELSEWHEN, "schedules": ["lifo"]},
            {**RACE, "schedules": ["fifo"]},
        ]
    )
    assert [(race["count"], race["schedules"]) for race in merged] == [
        (3 + 1 + 3, ["fifo", "lifo"]),
        (3, ["fifo"]),
    ]
    assert merged[0]["buffer"] == RACE["buffer"]


def test_a_variant_is_clean_if_nothing_differs_and_nothing_is_reported() -> None:
    fifo = Schedule("fifo")
    good = VariantSummary("v", [run(rank(0)), run(rank(0), schedule=fifo)])
    assert (good.agreeing, good.clean) == (2, True)
    different = VariantSummary("v", [run(rank(0)), run(rank(0, "e"), schedule=fifo)])
    assert (different.agreeing, different.clean) == (1, False)
    racy = VariantSummary("v", [run(rank(0)), run(rank(0, races=[RACE]), schedule=fifo)])
    assert (racy.agreeing, racy.clean) == (2, False)
    assert racy.to_json()["races"][0]["schedules"] == ["fifo"]
