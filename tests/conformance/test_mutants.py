"""The properties can fail: each notices a backend that is broken in the way that it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accel_streams import fake
from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.conformance import Bench, Outcome, Result, _bench, autograd, properties
from accel_streams.conformance._matrix import Matrix, Verdict
from accel_streams.conformance._run import Checker
from accel_streams.conformance.mutants import MUTANTS, Mutant, Wrapped
from accel_streams.conformance.mutants._mutant import killed_by

IDS = [each.id for each in properties()]
CHECKED = {each.id: each for each in properties()}
# Older releases of torch don't tell a stream's handle.
UNVERIFIED = set() if hasattr(torch.Stream, "native_handle") else {"IDN-12"}

# Those that the suite's design asks for, by what they do wrong.
DESIGN = {
    "wait does nothing": "wait_does_nothing",
    "wait has tail semantics": "wait_is_for_the_tail",
    "wait binds the event late": "wait_binds_late",
    "re-record ignored": "second_record_ignored",
    "wait blocks the host": "wait_blocks_the_host",
    "query always true": "query_always_true",
    "query on unrecorded false": "unrecorded_is_pending",
    "default_stream is the current stream": "default_is_current",
    "current stream not thread-local": "current_is_process_wide",
    "fresh wrapper with identity hash": "hash_of_the_object",
    "stream.synchronize syncs the device": "stream_sync_is_device_sync",
    "context not restored on an exception": "context_lost_on_exception",
    "record_stream does nothing": "keep_alive_does_nothing",
    "record_stream keeps only the last consumer": "keep_alive_for_the_last",
    "every new stream is the same stream": "new_is_the_same",
}


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a mutant blocks for ever is noticed as surely after a quarter of the time.
    monkeypatch.setattr(_bench, "_PATIENCE_S", 0.5)


@pytest.fixture(autouse=True)
def _schedule() -> Any:
    fake.enable()
    fake.set_schedule("in-order")
    yield
    fake.set_schedule("in-order")


def check(backend: Any, *ids: str) -> list[Outcome]:
    checker = Checker(backend)
    outcomes = [checker.check(CHECKED[each]) for each in ids]
    assert not checker.stuck
    return outcomes


def results(backend: Any, *ids: str) -> list[Result]:
    return [outcome.result for outcome in check(backend, *ids)]


@pytest.mark.parametrize("name", MUTANTS)
def test_those_that_have_to_notice_do(name: str) -> None:
    mutant = MUTANTS[name]
    outcomes = check(mutant.make(CpuFakeBackend()), *mutant.kills)
    assert [outcome.result for outcome in outcomes] == [Result.FAILED] * len(mutant.kills), outcomes
    assert all(outcome.detail for outcome in outcomes)


def test_every_property_has_something_to_notice() -> None:
    assert len(IDS) == 56
    assert {each for mutant in MUTANTS.values() for each in mutant.kills} == set(IDS)


def test_the_mutants_that_the_design_asks_for_are_there() -> None:
    assert set(DESIGN.values()) <= set(MUTANTS)
    assert len(set(DESIGN.values())) == 15


def test_each_says_what_is_wrong_in_a_line() -> None:
    summaries = [mutant.summary for mutant in MUTANTS.values()]
    assert len(set(summaries)) == len(summaries)
    assert all(summary and "\n" not in summary for summary in summaries)


def test_the_wrapper_alone_breaks_nothing() -> None:
    """Or it would be the wrapper that the properties notice."""
    found = dict(zip(IDS, check(Wrapped(CpuFakeBackend()), *IDS), strict=True))
    not_passed = {each: outcome for each, outcome in found.items() if outcome.result != "passed"}
    assert {each: outcome.result for each, outcome in not_passed.items()} == dict.fromkeys(
        UNVERIFIED, Result.UNVERIFIED
    ), not_passed


@pytest.mark.parametrize("name", fake.SCHEDULES)
def test_a_reduction_that_forgets_a_producer_is_seen_to_fail(name: str) -> None:
    """The negative control of AGD-04, under every schedule."""
    fake.set_schedule(name, 1)
    bench = Bench(CpuFakeBackend(), Checker(CpuFakeBackend()).gates)
    try:
        values, stale = autograd._reduce(bench, wait_for_all=False)
        assert stale
        assert values[0] != 3.0
        assert autograd._reduce(bench, wait_for_all=True) == ([3.0, 5.0], False)
    finally:
        bench.close()


def test_where_the_negative_control_cant_fail_agd_04_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = autograd._reduce

    def reduce(bench: Bench, *, wait_for_all: bool) -> tuple[list[float], bool]:
        return real(bench, wait_for_all=True)

    monkeypatch.setattr(autograd, "_reduce", reduce)
    (outcome,) = check(CpuFakeBackend(), "AGD-04")
    assert outcome.result is Result.INCONCLUSIVE
    assert "not seen to go wrong" in outcome.detail


@pytest.mark.parametrize("name", ["lifo", "random"])
def test_no_schedule_makes_a_property_fail(name: str) -> None:
    fake.set_schedule(name, 3)
    ids = [each for each in IDS if each not in UNVERIFIED]
    outcomes = check(CpuFakeBackend(), *ids)
    assert [each for each in outcomes if each.result is not Result.PASSED] == []


def test_a_survivor_is_told() -> None:
    survivor = Mutant("harmless", "It changes nothing", ("ORD-03",), Wrapped)
    verdict = Verdict(survivor, check(survivor.make(CpuFakeBackend()), "ORD-03"))
    matrix = Matrix("cpu_fake", [verdict])
    assert verdict.missed == ["ORD-03"]
    assert not matrix.holds
    told = "\n".join(matrix.lines())
    assert "0 of 1 mutants were noticed" in told
    assert "harmless: ORD-03 passed" in told


def test_two_mutants_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="two mutants called wait_does_nothing"):
        killed_by("ORD-03")(type("WaitDoesNothing", (Wrapped,), {}))


class TestTheWrapper:
    """Each of the ways in which people use streams leads to one method."""

    def test_waits_and_records_of_all_kinds_are_noticed(self) -> None:
        calls: list[str] = []

        class Noting(Wrapped):
            def record(self, event: Any, stream: Any) -> None:
                calls.append("record")
                super().record(event, stream)

            def wait(self, stream: Any, event: Any) -> None:
                calls.append("wait")
                super().wait(stream, event)

        backend = Noting(CpuFakeBackend())
        a, b = backend.new_stream(), backend.new_stream()
        event = backend.new_event()
        ways: list[Callable[[], object]] = [
            lambda: event.record(a),
            lambda: a.record_event(event),
            a.record_event,
            lambda: backend.record(event, a),
            lambda: event.wait(b),
            lambda: b.wait_event(event),
            lambda: backend.wait(b, event),
        ]
        for way in ways:
            way()
        assert calls == ["record"] * 4 + ["wait"] * 3

    def test_a_backend_without_gates_has_none_in_the_wrapper(self) -> None:
        class Bare(CpuFakeBackend):
            hold = None  # type: ignore[assignment]
            delay = None  # type: ignore[assignment]

        wrapped = Wrapped(Bare())
        assert wrapped.hold is None
        assert wrapped.delay is None
        assert wrapped.name == "cpu_fake"
