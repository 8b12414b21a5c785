"""The command ``check``: what it prints and writes, and its exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from accel_streams.conformance import Level, Outcome, Result
from accel_streams.conformance._apart import Accelerator
from accel_streams.conformance._matrix import Matrix, Verdict, tasks_of
from accel_streams.conformance._report import Report
from accel_streams.conformance.mutants import MUTANTS

HERE = Path(__file__).parent
LIMIT = 300
pytestmark = pytest.mark.timeout(LIMIT + 20)


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel_streams.cli", "check", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def test_the_simulated_device_does_all_that_is_asked(tmp_path: Path) -> None:
    as_json, as_markdown = tmp_path / "check.json", tmp_path / "check.md"
    done = check("cpu-fake", "--json", str(as_json), "--markdown", str(as_markdown))
    document = json.loads(as_json.read_text())
    results = {each["id"]: each["result"] for each in document["properties"]}
    assert {id: result for id, result in results.items() if result != "passed"} == {}
    assert len(results) == 56
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert set(document) == {"schema", "backend", "gate", "properties", "accelerator"}
    assert (document["schema"], document["backend"], document["gate"]) == (1, "cpu_fake", "L3")
    assert set(document["properties"][0]) >= {"id", "result", "detail"}
    assert document["accelerator"]["faults"] == []
    assert "cpu_fake: 56 passed (gate L3: a stream is held until the host releases it)" in (
        done.stdout
    )
    assert "the accelerator takes every call of DeepSpeed" in done.stdout
    table = as_markdown.read_text()
    assert "| ORD-03 record_wait | passed |" in table
    assert sum(line.startswith("| ") for line in table.splitlines()) == 57


def test_mutants_are_noticed_and_those_that_are_not_are_told(tmp_path: Path) -> None:
    file = tmp_path / "mutants.json"
    done = check("cpu_fake", "--mutants", "--only", "IDN-07", "--json", str(file))
    document = json.loads(file.read_text())
    noticed = {each["name"] for each in document["mutants"] if each["noticed"]}
    expected = {name for name, mutant in MUTANTS.items() if "IDN-07" in mutant.kills}
    assert expected <= noticed
    assert len(document["mutants"]) == len(MUTANTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"cpu_fake: {len(noticed)} of {len(MUTANTS)} mutants were noticed" in done.stdout


def test_what_fails_makes_the_exit_status_1() -> None:
    done = check("refusing_backends:RefusingBackend")
    assert done.returncode == 1
    assert "it is switched off" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument"),
        (["cpu_fakes"], "Did you mean 'cpu_fake'?"),
        (["cpu_fake", "--only", "ORD-99"], "there is no property 'ORD-99'"),
        (["cpu_fake", "--gate", "L4"], "expected one of L0, L1, L2, L3"),
        (["cpu_fake", "--timeout", "0"], "--timeout"),
        (["cpu_fake", "--json", "/nowhere/check.json"], "does not exist"),
        (["cpu_fake", "--markdown", "/nowhere/check.md"], "can't be written"),
        (["refusing_backends:Missing"], "has no attribute 'Missing'"),
    ],
)
def test_wrong_usage_is_told_at_once(arguments: Sequence[str], message: str) -> None:
    done = check(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr


def test_the_help_has_an_example() -> None:
    done = check("--help")
    assert done.returncode == 0
    assert "accel-streams check cpu_fake --markdown check.md" in done.stdout


def outcomes(*results: Result) -> list[Outcome]:
    ids = ("ORD-01", "ORD-02", "ORD-03", "EVT-01")
    return [
        Outcome(id, "name", result, "it <hangs> | so")
        for id, result in zip(ids, results, strict=False)
    ]


@pytest.mark.parametrize(
    ("results", "holds"),
    [
        ([Result.PASSED, Result.PASSED], True),
        ([Result.PASSED, Result.UNVERIFIED], True),
        ([Result.PASSED, Result.DECLARED], True),
        ([Result.PASSED, Result.FAILED], False),
        ([Result.PASSED, Result.INCONCLUSIVE], False),
    ],
)
def test_a_report_holds_when_nothing_failed_or_was_left_open(
    results: list[Result], holds: bool
) -> None:
    assert Report("nova", Level.HOLD, outcomes(*results)).holds is holds


def test_an_accelerator_that_cant_be_called_is_a_failure() -> None:
    accelerator = Accelerator("0.19.8", "nova.Accelerator", ("range_push is missing",))
    report = Report("nova", Level.DELAY, outcomes(Result.PASSED), accelerator)
    assert not report.holds
    told = "\n".join(report.lines())
    assert "can't take calls of DeepSpeed 0.19.8:\n  range_push is missing" in told
    assert "range_push is missing" in report.markdown()
    document: Any = report.to_json()
    assert document["accelerator"]["faults"] == ["range_push is missing"]


def test_a_report_says_how_much_came_out_how() -> None:
    report = Report("nova", Level.NONE, outcomes(*[Result.PASSED] * 2, *[Result.UNVERIFIED] * 2))
    assert report.summary == "2 passed, 2 unverified"
    assert report.lines() == [
        "nova: 2 passed, 2 unverified (gate L0: a stream can't be held)",
        "nova: no DeepSpeed to compare the accelerator with",
    ]
    document: Any = report.to_json()
    assert document["accelerator"] is None


def test_a_detail_does_not_break_the_markdown_table() -> None:
    rows = Report("nova", Level.HOLD, outcomes(Result.FAILED)).markdown().splitlines()
    assert "| ORD-01 name | failed | it &lt;hangs> \\| so |" in rows


def printed(table: Any) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_a_table_says_the_detail_else_the_property() -> None:
    found = [*outcomes(Result.FAILED), Outcome("EVT-01", "query_unrecorded", Result.PASSED)]
    told = printed(Report("nova", Level.HOLD, found).table(plain=True))
    assert "it <hangs> | so" in told
    assert "An event that was never recorded is complete" in told


def verdict(*results: Result) -> Verdict:
    mutant = MUTANTS["wait_does_nothing"]
    assert {"ORD-03"} <= set(mutant.kills)
    return Verdict(mutant, outcomes(*results))


@pytest.mark.parametrize(
    ("result", "holds"),
    [
        (Result.FAILED, True),
        (Result.UNVERIFIED, True),  # The device lacks what it takes.
        (Result.DECLARED, True),  # It may be the deviation that was declared.
        (Result.PASSED, False),
        (Result.INCONCLUSIVE, False),
    ],
)
def test_a_mutant_that_could_be_noticed_and_was_not_is_a_failure(
    result: Result, holds: bool
) -> None:
    matrix = Matrix("nova", [verdict(Result.PASSED, Result.PASSED, result)])
    assert matrix.holds is holds
    (shown,) = matrix.verdicts
    assert shown.noticed == (["ORD-03"] if result is Result.FAILED else [])
    assert shown.missed == ([] if holds else ["ORD-03"])
    told = "\n".join(matrix.lines())
    assert ("wait_does_nothing: ORD-03" in told) is not holds
    assert ("1 of 1 mutants were noticed" in told) is (result is Result.FAILED)
    assert "wait_does_nothing" in printed(matrix.table(plain=True))
    assert "| wait_does_nothing |" in matrix.markdown()


def test_each_mutant_is_checked_by_those_that_have_to_notice_or_by_those_named() -> None:
    by_default = tasks_of("nova")
    assert {task.subject.mutant for task in by_default} == set(MUTANTS)
    for task in by_default:
        assert task.property_id in MUTANTS[task.subject.mutant].kills
    named = tasks_of("nova", ["ORD-03", "EVT-01"])
    assert len(named) == 2 * len(MUTANTS)
