"""What is said of the hazards is what runs have shown, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deepspeed_releases import MATRIX

from accel_streams.explore import VARIANTS, RankResult, Run, RunResult, Schedule, Script
from accel_streams.hazards import (
    HAZARDS,
    STATES,
    Finding,
    ReleaseResults,
    document,
    load_results,
    results_for,
)
from accel_streams.hazards._measure import judge

ROOT = Path(__file__).resolve().parents[2]

OWN = {
    "kind": "write-after-write",
    "buffer": "ipg_buffer[0, bfloat16]",
    "missing_edge": "stream `B` must wait for `A`",
    "first": {"file": "/x/stage_1_and_2.py", "function": "setup_buckets", "operation": "alloc"},
    "second": {"file": "/x/stage_1_and_2.py", "function": "hook", "operation": "aten::copy_"},
}
OTHER = {**OWN, "kind": "read-after-write"}


def run(digest: str, races: list[dict[str, Any]], schedule: str = "in-order") -> RunResult:
    rank = RankResult(0, digest, [], 3, 0, races, {}, 100, 1.0, 1.0, 1)
    return RunResult(Run(Script("x.py"), VARIANTS[0], Schedule(schedule)), (rank,))


@pytest.mark.parametrize(
    ("races", "other_digest", "state"),
    [
        ([OWN], "a", "present"),
        ([OWN, OTHER], "b", "present"),
        ([OTHER], "b", "other"),
        ([OTHER], "a", "other"),
        ([], "b", "differs"),
        ([], "a", "not seen"),
    ],
)
def test_a_finding_says_what_the_runs_show(
    races: list[dict[str, Any]], other_digest: str, state: str
) -> None:
    finding = judge(HAZARDS["H7"], [run("a", races), run(other_digest, races, "lifo")])
    assert finding.state == state
    assert finding.clean is (state == "not seen")
    assert finding.agree is (other_digest == "a")
    assert finding.others == races.count(OTHER)
    assert finding.schedules == ("in-order", "lifo")
    assert len(finding.reports) == races.count(OWN)


def results(release: str, **states: str) -> ReleaseResults:
    findings = {
        hazard: {
            variant.name: Finding(state, ("in-order",))  # type: ignore[arg-type]
            for variant, state in zip(VARIANTS, words.split("/"), strict=True)
        }
        for hazard, words in states.items()
    }
    return ReleaseResults(release, "2.13", "3.11", "0.1", "abc", findings)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = results("0.18.9", H1="present/not seen", H2="other/differs")
    path = written.save(tmp_path)
    assert ReleaseResults.from_json(json.loads(path.read_text())) == written
    with pytest.raises(ValueError, match="schema 2"):
        ReleaseResults.from_json({**written.to_json(), "schema": 2})


def test_the_table_has_a_cell_for_each_hazard_and_release() -> None:
    page = document(
        {
            "0.18.9": results("0.18.9", H1="present/not seen", H2="other/differs"),
            "0.19.0": results("0.19.0", H1="not seen/present"),
        }
    )
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| H1 ")]
    assert [cell.strip(" |") for cell in rows[0][2:]] == [
        "present → not seen",
        "not seen → present",
    ]
    (row,) = [line for line in page.splitlines() if line.startswith("| H2 ") and "→" in line]
    assert row.endswith("| other → differs | not measured |")
    for state in ("present", "differs", "other", "not seen"):
        assert f"*{state}*: {STATES[state]}" in page


def test_what_cannot_run_is_given_with_its_reason() -> None:
    finding = Finding("can't run", reason="it needs a compiler")
    page = document(
        {
            "0.18.9": ReleaseResults(
                "0.18.9", "2.13", "3.11", "0.1", "abc",
                {"H3": {variant.name: finding for variant in VARIANTS}},
            )
        }
    )  # fmt: skip
    assert "can't run (1)" in page
    assert "1. it needs a compiler" in page


class TestCommitted:
    """The files in this tree."""

    def test_the_page_is_made_from_them(self) -> None:
        """If not, run `python benchmarks/hazard_table.py --write-docs`."""
        page = (ROOT / "docs" / "hazards.md").read_text(encoding="utf-8")
        assert page == document(load_results())

    def test_every_release_of_the_matrix_has_every_hazard(self) -> None:
        known = load_results()
        assert tuple(known) == MATRIX
        for release, measured in known.items():
            assert set(measured.hazards) == set(HAZARDS), release

    def test_with_this_package_none_is_left(self) -> None:
        left = {
            (release, hazard): variants["accel_streams"].state
            for release, measured in load_results().items()
            for hazard, variants in measured.hazards.items()
            if not variants["accel_streams"].clean
            and variants["accel_streams"].state != "can't run"
        }
        assert left == {}

    def test_what_runs_as_shipped_runs_with_this_package(self) -> None:
        for measured in load_results().values():
            for hazard, variants in measured.hazards.items():
                if variants["deepspeed"].state != "can't run":
                    finding = variants["accel_streams"]
                    assert finding.state != "can't run", (measured.deepspeed, hazard)

    def test_each_hazard_shows_somewhere(self) -> None:
        shown = {
            hazard
            for measured in load_results().values()
            for hazard, variants in measured.hazards.items()
            if variants["deepspeed"].state in ("present", "differs")
        }
        assert shown == set(HAZARDS)

    def test_the_installed_release_has_results_or_the_nearest(self) -> None:
        assert results_for("0.19.8") == load_results()["0.19.8"]
        assert results_for("0.1") is None
