"""Gates: which level a device gets, how its delays are measured, and what is believed of them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.conformance import Level, Result, check_backend
from accel_streams.conformance._gates import Gate, Gates, device_module
from accel_streams.conformance.mutants import MUTANTS
from odd_backends import NothingBackend, SleepingBackend, hold_for

pytestmark = pytest.mark.usefixtures("device")


def test_a_backend_that_can_hold_a_stream_has_the_best_gates() -> None:
    backend = CpuFakeBackend()
    gates = Gates(backend)
    assert gates.level is Level.HOLD
    stream = backend.new_stream()
    gate: Gate = gates.close(stream)
    event = backend.new_event()
    backend.record(event, stream)
    assert _is_closed(gate)
    assert not backend.query(event)
    gate.release()
    gate.release()
    assert not _is_closed(gate)
    backend.synchronize(event)


def test_a_sleep_is_measured_without_what_its_start_costs() -> None:
    gates = Gates(SleepingBackend())
    assert gates.level is Level.DELAY
    # A nanosecond is a unit, and starting a timer takes a hundred thousand.
    assert gates._units_a_second == pytest.approx(1e9, rel=0.5)


def test_a_timed_gate_lasts_longer_than_it_promises() -> None:
    backend = SleepingBackend()
    gates = Gates(backend)
    stream = backend.new_stream()
    begun = time.perf_counter()
    gate = gates.close(stream, part=0.5)
    assert _is_closed(gate)
    backend.synchronize()
    took = time.perf_counter() - begun
    assert not _is_closed(gate)
    assert took > gates.duration_s * 0.5


def test_giving_up_a_timed_gate_makes_nothing_certain() -> None:
    backend = SleepingBackend()
    gate = Gates(backend).close(backend.new_stream())
    gate.release()
    assert not gate.closed
    backend.synchronize()


def test_a_device_without_sleep_is_kept_busy_with_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gates, "_multiply", _millisecond)
    assert Gates(NothingBackend()).level is Level.LOAD


def test_products_keep_the_device_busy_for_as_long_as_measured() -> None:
    backend = NothingBackend()
    gates = Gates(backend)
    assert gates.level is Level.LOAD
    begun = time.perf_counter()
    gates.close(backend.new_stream(), part=0.3)
    backend.synchronize()
    assert time.perf_counter() - begun > gates.duration_s * 0.3


def test_work_that_takes_no_time_is_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gates, "_multiply", lambda *_: None)
    gates = Gates(NothingBackend())
    assert gates.level is Level.NONE
    assert not gates.delay(NothingBackend().new_stream(), 0.01)
    with pytest.raises(RuntimeError, match="can't be held"):
        gates.close(NothingBackend().new_stream())


def test_work_that_fails_is_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Gates, "_multiply", fail)
    assert Gates(NothingBackend()).level is Level.NONE


@pytest.mark.parametrize("level", list(Level))
def test_a_lower_level_can_be_asked_for(level: Level) -> None:
    gates = Gates(SleepingBackend(), at_most=level)
    assert gates.level is min(level, Level.DELAY)


def test_the_module_is_the_backends_own_or_torchs() -> None:
    class Plain:
        device_type = "cpu"

    backend: Any = Plain()
    assert device_module(backend) is torch.cpu
    assert device_module(SleepingBackend())._sleep is not torch.fake._sleep  # type: ignore[attr-defined]


SOME = ["ORD-02", "ORD-04", "ORD-06", "ORD-09", "EVT-06", "EVT-07", "SYN-01", "SYN-02"]


def test_properties_hold_with_gates_that_open_by_themselves() -> None:
    _expect(check_backend(SleepingBackend(), only=SOME), Result.PASSED)


def test_properties_hold_with_products_for_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gates, "_multiply", _millisecond)
    _expect(check_backend(NothingBackend(), only=SOME), Result.PASSED)


@pytest.mark.slow
def test_all_properties_hold_with_gates_that_open_by_themselves() -> None:
    outcomes = check_backend(SleepingBackend(), only=["ORD", "EVT", "SYN"])
    _expect(outcomes, Result.PASSED)


def test_without_a_gate_what_needs_one_is_unverified() -> None:
    backend = NothingBackend()
    outcomes = check_backend(backend, only=["ORD", "EVT", "SYN"], at_most=Level.NONE)
    for outcome in outcomes:
        gated = outcome.id not in _UNGATED
        expected = Result.UNVERIFIED if gated else Result.PASSED
        assert outcome.result is expected, outcome
        assert bool(outcome.detail) is gated


_UNGATED = {"ORD-01", "ORD-11", "ORD-12", "ORD-16", "EVT-01", "EVT-03", "EVT-09", "EVT-10"}


def test_with_timed_gates_a_missing_wait_fails() -> None:
    backend = MUTANTS["wait_does_nothing"].make(SleepingBackend())
    (outcome,) = check_backend(backend, only=["ORD-03"])
    assert outcome.result is Result.FAILED
    assert "was done while the gate was closed" in outcome.detail


@pytest.mark.parametrize("name", ["wait_blocks_the_host", "record_blocks_the_host"])
def test_with_timed_gates_what_blocks_the_host_fails(name: str) -> None:
    backend = MUTANTS[name].make(SleepingBackend())
    (outcome,) = check_backend(backend, only=["ORD-14"])
    assert outcome.result is Result.FAILED
    assert "blocked the host" in outcome.detail


def test_where_streams_are_serial_what_needs_two_of_them_is_not_found_out() -> None:
    serial = MUTANTS["streams_are_serial"]
    independence, prefix = check_backend(
        serial.make(SleepingBackend()), only=["ORD-02", "ORD-04"], timeout_s=5.0
    )
    assert independence.result is Result.FAILED
    assert prefix.result is Result.INCONCLUSIVE
    assert "(ORD-02)" in prefix.detail


def _is_closed(gate: Gate) -> bool:
    return gate.closed  # A call, as mypy takes a property for constant.


def _millisecond(_: Gates, stream: Any, times: int) -> None:
    hold_for(stream, times * 1e-3)


def _expect(outcomes: list[Any], result: Result) -> None:
    assert [each for each in outcomes if each.result is not result] == []
