"""Checks in another process: what it takes with it, and what goes on without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_streams import (
    AccelStreamsError,
    BrokenBackendError,
    UnavailableBackendError,
    UnknownBackendError,
)
from accel_streams.conformance import Level, Outcome, Result
from accel_streams.conformance import _apart as apart
from accel_streams.conformance._apart import Findings, check_apart
from accel_streams.conformance._messages import Options, Subject, Task, outcome_from_json

HERE = Path(__file__).parent
FAKE = Subject("cpu_fake")
QUICK = Options(timeout_s=0.5)


@pytest.fixture(autouse=True)
def _odd_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def odd(name: str, mutant: str = "") -> Subject:
    return Subject(f"odd_backends:{name}", mutant)


def tasks(subject: Subject, *ids: str) -> list[Task]:
    return [Task(subject, id) for id in ids]


def test_outcomes_and_level_and_accelerator_come_back() -> None:
    seen: list[tuple[Task, Outcome]] = []
    subject = odd("FaultyBackend")
    asked = tasks(subject, "EVT-03", "ORD-03")
    findings = Findings()
    found = check_apart(
        asked, accelerator=True, finished=lambda *both: seen.append(both), findings=findings
    )
    assert found is findings
    assert [each.id for each in found.outcomes[subject]] == ["EVT-03", "ORD-03"]
    assert {each.result for each in found.outcomes[subject]} == {Result.PASSED}
    assert [task for task, _ in seen] == asked
    assert [outcome for _, outcome in seen] == found.outcomes[subject]
    assert found.levels == {subject: Level.HOLD}
    assert found.accelerator is not None
    assert found.accelerator.faults == ("device_name does not take 'device_index'",)
    assert found.accelerator.cls.endswith("Faulty")


def test_several_subjects_share_a_process() -> None:
    subjects = [FAKE, Subject("cpu_fake", "wait_does_nothing"), odd("NothingBackend")]
    found = check_apart(
        [Task(subject, "ORD-03") for subject in subjects], Options(at_most=Level.NONE)
    )
    assert [found.outcomes[subject][0].result for subject in subjects] == [Result.UNVERIFIED] * 3
    assert list(found.levels) == subjects


def test_what_ends_the_process_or_is_stuck_has_failed_and_the_rest_goes_on() -> None:
    subjects = [odd("DyingBackend"), odd("StuckBackend"), FAKE]
    found = check_apart([Task(subject, "EVT-01") for subject in subjects], QUICK)
    died, stuck, other = (found.outcomes[subject][0] for subject in subjects)
    assert (died.name, died.result) == ("query_unrecorded", Result.FAILED)
    assert died.detail == "ended with signal SIGKILL"
    assert (stuck.result, stuck.detail) == (Result.FAILED, "did not return within 0.5 s")
    assert other.result is Result.PASSED


def test_a_process_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # As when a vendor's code hangs with the interpreter's lock held.
    monkeypatch.setattr(apart, "_limit", lambda options: 1.0)
    found = check_apart(tasks(odd("StuckBackend"), "EVT-01"), Options(timeout_s=60.0))
    (outcome,) = found.outcomes[odd("StuckBackend")]
    assert (outcome.result, outcome.detail) == (Result.FAILED, "did not answer within 1 s")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("cpu_fakes", UnknownBackendError, "no backend called 'cpu_fakes'"),
        ("refusing_backends:Missing", UnknownBackendError, "has no attribute 'Missing'"),
        ("no_such_module:Backend", UnknownBackendError, "No module named 'no_such_module'"),
        ("refusing_backends:RefusingBackend", UnavailableBackendError, "it is switched off"),
        ("refusing_backends:ThrowingBackend", BrokenBackendError, "out of order"),
        (
            "refusing_backends:DeclaringBackend",
            AccelStreamsError,
            "ORD-99, which are no properties",
        ),
    ],
)
def test_a_backend_that_cant_be_had_is_an_error(
    name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_apart(tasks(Subject(name), "EVT-03"))


def test_a_process_that_ends_before_it_checks_anything_is_an_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(AccelStreamsError, match="ended with exit status 7 before it could check"):
        check_apart(tasks(Subject("refusing_backends:LeavingBackend"), "EVT-03"))


def test_an_accelerator_that_ends_the_process_is_at_fault() -> None:
    found = check_apart(tasks(odd("LeavingAccelerator"), "EVT-03"), accelerator=True)
    assert [each.result for each in found.outcomes[odd("LeavingAccelerator")]] == [Result.PASSED]
    assert found.accelerator is not None
    assert found.accelerator.faults == ("the process that asked for it ended with exit status 7",)


@pytest.mark.parametrize("result", list(Result))
def test_an_outcome_survives_its_way_as_json(result: Result) -> None:
    outcome = Outcome("ORD-03", "record_wait", result, "why | not", 1.25)
    assert outcome_from_json(outcome.to_json()) == outcome
