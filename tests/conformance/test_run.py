"""What becomes of a property that holds, fails, hangs, or finds nothing out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.conformance import (
    Bench,
    Broken,
    Inconclusive,
    Level,
    Outcome,
    Property,
    Result,
    Unverified,
    check_backend,
    needs,
    premise,
    require,
)
from accel_streams.conformance import _run as running
from accel_streams.conformance._results import Doubtful, Serial
from accel_streams.conformance._run import ATTEMPTS, Checker
from odd_backends import SleepingBackend

pytestmark = pytest.mark.usefixtures("device")

LIMIT_S = 1.0


def made_up(
    check: Callable[[Bench], None],
    *,
    id: str = "ORD-03",
    gate: Level = Level.NONE,
    devices: int = 1,
) -> Property:
    return Property(id, "made_up", "Something holds.", gate, devices, check)


def outcome_of(checked: Property, backend: Any = None, **options: Any) -> Outcome:
    checker = Checker(backend or CpuFakeBackend(), timeout_s=LIMIT_S, **options)
    return checker.check(checked)


def declaring(**declared: str) -> Any:
    backend: Any = CpuFakeBackend()
    backend.declared = {id.replace("_", "-"): reason for id, reason in declared.items()}
    return backend


def fails(bench: Bench) -> None:
    require(False, "a stream\n  went on")


def passes(bench: Bench) -> None:
    pass


def raises(error: Exception) -> Callable[[Bench], None]:
    def check(bench: Bench) -> None:
        raise error

    return check


@pytest.mark.parametrize(
    ("check", "result", "detail"),
    [
        (passes, Result.PASSED, ""),
        (fails, Result.FAILED, "a stream went on"),
        (raises(Broken("no")), Result.FAILED, "no"),
        (raises(Doubtful("no")), Result.FAILED, "no"),
        (raises(Inconclusive("early")), Result.INCONCLUSIVE, "early"),
        (raises(Serial("one by one")), Result.INCONCLUSIVE, "one by one"),
        (raises(Unverified("no gate")), Result.UNVERIFIED, "no gate"),
        (raises(ZeroDivisionError("x / 0")), Result.FAILED, "raised ZeroDivisionError: x / 0"),
        (raises(KeyError()), Result.FAILED, "raised KeyError"),
    ],
)
def test_what_a_check_raises_is_its_result(
    check: Callable[[Bench], None], result: Result, detail: str
) -> None:
    outcome = outcome_of(made_up(check))
    assert (outcome.id, outcome.name) == ("ORD-03", "made_up")
    assert (outcome.result, outcome.detail) == (result, detail)


def test_even_an_exit_is_a_failure() -> None:
    def leave(bench: Bench) -> None:
        raise SystemExit(0)

    assert outcome_of(made_up(leave)).detail == "raised SystemExit: 0"


@pytest.mark.parametrize(
    ("function", "error"), [(require, Broken), (premise, Inconclusive), (needs, Unverified)]
)
def test_the_three_ways_to_say_so(
    function: Callable[[bool, str], None], error: type[Exception]
) -> None:
    function(True, "fine")
    with pytest.raises(error, match="not fine"):
        function(False, "not fine")


def test_a_check_that_waits_for_a_gate_has_failed_and_is_let_go() -> None:
    def wait_for_the_gate(bench: Bench) -> None:
        (a,) = bench.streams(1)
        with bench.gate(a):
            a.synchronize()

    checker = Checker(CpuFakeBackend(), timeout_s=LIMIT_S)
    outcome = checker.check(made_up(wait_for_the_gate))
    assert outcome.result is Result.FAILED
    assert outcome.detail == "did not return within 1 s"
    assert not checker.stuck
    assert checker.check(made_up(passes)).result is Result.PASSED


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_check_that_is_stuck_ends_the_checks_of_this_process(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_GRACE_S", 0.1)

    def hang(bench: Bench) -> None:
        released.wait()

    checked = [made_up(hang, id="ORD-01"), made_up(passes, id="ORD-02")]
    monkeypatch.setattr(running, "select", lambda only: checked)
    seen: list[Outcome] = []
    first, second = check_backend(CpuFakeBackend(), timeout_s=LIMIT_S, finished=seen.append)
    assert (first.result, second.result) == (Result.FAILED, Result.INCONCLUSIVE)
    assert second.detail == "not checked: ORD-01 did not come back"
    assert seen == [first, second]


def test_gates_are_open_after_a_check_whatever_it_does() -> None:
    events = []

    def leave_it_closed(bench: Bench) -> None:
        (a,) = bench.streams(1)
        bench.gate(a).__enter__()
        events.append(bench.marker(a))
        raise Broken("left")

    backend = CpuFakeBackend()
    assert outcome_of(made_up(leave_it_closed), backend).detail == "left"
    assert backend.query(events[0])


def test_a_deviation_that_is_declared_is_told_as_such() -> None:
    backend = declaring(ORD_03="it waits for everything")
    outcome = outcome_of(made_up(fails), backend)
    assert outcome.result is Result.DECLARED
    assert outcome.detail == "it waits for everything (seen: a stream went on)"


def test_a_declared_deviation_may_be_a_hang() -> None:
    def wait_for_the_gate(bench: Bench) -> None:
        (a,) = bench.streams(1)
        with bench.gate(a):
            a.synchronize()

    outcome = outcome_of(made_up(wait_for_the_gate), declaring(ORD_03="it blocks"))
    assert outcome.result is Result.DECLARED


def test_a_declared_deviation_that_does_not_show_is_told() -> None:
    outcome = outcome_of(made_up(passes), declaring(ORD_03="it waits for everything"))
    assert outcome.result is Result.PASSED
    assert "the backend declares that it does not: it waits for everything" in outcome.detail


@pytest.mark.parametrize("result", [Inconclusive, Unverified])
def test_a_declaration_says_nothing_about_what_was_not_found_out(result: type[Exception]) -> None:
    outcome = outcome_of(made_up(raises(result("no"))), declaring(ORD_03="it waits"))
    assert outcome.result not in (Result.DECLARED, Result.PASSED)


def test_who_declares_serial_streams_need_not_declare_what_follows() -> None:
    backend = declaring(ORD_02="one stream at a time")
    outcome = outcome_of(made_up(raises(Serial("one by one")), id="ORD-04"), backend)
    assert (outcome.result, outcome.detail) == (Result.DECLARED, "one stream at a time")


@pytest.mark.parametrize("declared", [{"ORD-99": "so"}, {"ord-03": "so"}, {"record_wait": "so"}])
def test_a_deviation_from_nothing_known_is_an_error(declared: Mapping[str, str]) -> None:
    backend: Any = CpuFakeBackend()
    backend.declared = declared
    with pytest.raises(ValueError, match="which are no properties"):
        Checker(backend)


def test_what_needs_a_gate_is_unverified_without_one() -> None:
    outcome = outcome_of(made_up(fails, gate=Level.LOAD), at_most=Level.NONE)
    assert outcome.result is Result.UNVERIFIED


def test_what_needs_more_devices_than_there_are_is_unverified() -> None:
    outcome = outcome_of(made_up(fails, devices=99))
    assert (outcome.result, outcome.detail) == (
        Result.UNVERIFIED,
        "needs 99 devices, there is 8",
    )


@pytest.mark.parametrize("error", [Inconclusive("no"), Doubtful("no")])
def test_a_timed_gate_is_tried_again_for_longer(error: Exception) -> None:
    durations = []
    checker = Checker(SleepingBackend(), timeout_s=LIMIT_S)

    def note(bench: Bench) -> None:
        durations.append(checker.gates.duration_s)
        raise error

    usual = checker.gates.duration_s
    outcome = checker.check(made_up(note))
    assert durations == [usual * 2**attempt for attempt in range(ATTEMPTS)]
    assert outcome.result in (Result.FAILED, Result.INCONCLUSIVE)
    assert checker.gates.duration_s == usual


def test_the_last_attempt_with_a_timed_gate_counts() -> None:
    errors: list[Exception] = [Doubtful("late"), Inconclusive("early")]

    def check(bench: Bench) -> None:
        if errors:
            raise errors.pop()

    assert outcome_of(made_up(check), SleepingBackend()).result is Result.PASSED


def test_what_is_certain_is_tried_once() -> None:
    calls = []

    def count(bench: Bench) -> None:
        calls.append(1)
        raise Broken("no")

    outcome_of(made_up(count), SleepingBackend())
    outcome_of(made_up(raises(Inconclusive("no"))))  # With a gate that is held: nothing to gain.
    assert len(calls) == 1


class _Ask:
    """What a bench's questions come out as, with one stream held and another free."""

    def __init__(self, ask: Callable[[Bench, Any, Any, Any], object]) -> None:
        self.ask = ask

    def __call__(self, bench: Bench) -> None:
        held, free = bench.streams(2)
        with bench.gate(held) as gate:
            self.ask(bench, held, free, gate)


def asked(ask: Callable[[Bench, Any, Any, Any], object]) -> Outcome:
    checker = Checker(CpuFakeBackend(), timeout_s=10.0)
    return checker.check(made_up(_Ask(ask)))


def test_stays_pending_tells_a_held_stream_from_a_free_one() -> None:
    assert asked(
        lambda bench, held, free, gate: bench.stays_pending(bench.marker(held), gate, "it")
    ).result is (Result.PASSED)
    found = asked(lambda bench, held, free, gate: bench.stays_pending(free.query, gate, "it"))
    assert found.detail == "it did not wait: it was done while the gate was closed"


def test_completes_tells_a_free_stream_from_a_held_one() -> None:
    assert asked(
        lambda bench, held, free, gate: bench.completes(bench.marker(free), gate, "it")
    ).result is (Result.PASSED)
    found = asked(lambda bench, held, free, gate: bench.completes(held.query, gate, "it"))
    assert found.detail == "it waited for the gate, which it must not"


def test_returns_tells_a_call_that_comes_back_from_one_that_does_not() -> None:
    assert asked(
        lambda bench, held, free, gate: bench.returns(free.synchronize, gate, "it")
    ).result is (Result.PASSED)
    found = asked(lambda bench, held, free, gate: bench.returns(held.synchronize, gate, "it"))
    assert found.detail == "it blocked the host until the gate opened"


def test_what_a_call_raises_is_raised_by_returns() -> None:
    def fail() -> None:
        raise LookupError("nothing there")

    found = asked(lambda bench, held, free, gate: bench.returns(fail, gate, "it"))
    assert found.detail == "raised LookupError: nothing there"


def test_blocks_tells_a_call_that_waits_from_one_that_does_not() -> None:
    def waits(bench: Bench, held: Any, free: Any, gate: Any) -> None:
        call = bench.blocks(held.synchronize, gate, "it")
        gate.release()
        bench.returns(call, None, "it")

    assert asked(waits).result is Result.PASSED
    found = asked(lambda bench, held, free, gate: bench.blocks(free.synchronize, gate, "it"))
    assert found.detail == "it returned while the gate was closed, expected it to wait"


def test_nothing_is_asked_of_a_gate_that_is_open() -> None:
    def late(bench: Bench, held: Any, free: Any, gate: Any) -> None:
        gate.release()
        bench.completes(bench.marker(free), gate, "it")

    assert asked(late).result is Result.INCONCLUSIVE

    def later(bench: Bench, held: Any, free: Any, gate: Any) -> None:
        event = bench.marker(held)
        gate.release()
        bench.stays_pending(event, gate, "it")

    assert asked(later).result is Result.INCONCLUSIVE


def test_a_cell_shows_what_was_written_and_nothing_half_written() -> None:
    def check(bench: Bench) -> None:
        a, b = bench.streams(2)
        cell, other = bench.cell(3.0), bench.cell()
        bench.copy(a, cell, other)
        assert bench.read(a, other) == 3.0
        bench.write(b, cell, 4.0)
        assert bench.read(b, cell) == 4.0
        cell[:7] = 5.0
        bench.read(bench.backend.default_stream(), cell)

    assert outcome_of(made_up(check)).detail == (
        "a cell that is written as a whole holds [4.0, 5.0]"
    )


def test_a_device_whose_streams_are_one_gives_no_two() -> None:
    class OneStream(CpuFakeBackend):
        def new_stream(self, device: Any = None, /, *, priority: int = 0) -> Any:
            return self.default_stream(device)

    def check(bench: Bench) -> None:
        bench.streams(1)

    outcome = outcome_of(made_up(check), OneStream())
    assert "gave 0 distinct streams" in outcome.detail


def test_a_check_has_a_thread_with_nothing_current() -> None:
    backend = CpuFakeBackend()
    found = []

    def check(bench: Bench) -> None:
        found.append(backend.stream_id(backend.current_stream()))
        bench.module.set_device(1)
        bench.module.set_stream(bench.streams(1, 1)[0])

    for _ in range(2):
        assert outcome_of(made_up(check), backend).result is Result.PASSED
    assert found == [backend.stream_id(backend.default_stream(0))] * 2
