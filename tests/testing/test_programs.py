"""Programs as data: printed they run, and every device runs them alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from accel_streams import fake
from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.explore import explore_all
from accel_streams.testing import (
    Add,
    Allocate,
    Collective,
    Copy,
    Fill,
    Finish,
    Free,
    Multiply,
    Program,
    ReadBack,
    Record,
    RecordStream,
    SyncDevice,
    SyncEvent,
    SyncStream,
    Wait,
    all_outcomes,
    as_function,
    explore_model,
    ordered,
    programs,
    run,
)

EVERYTHING = Program(
    (
        Fill(1, 0, 0, 2, 5),
        Record(1, 0),
        Wait(2, 0, thread=1),
        Copy(2, 1, 0, 4, 0, thread=1),
        Record(1, 0),
        SyncEvent(0),
        ReadBack(1, 0),
        Add(1, 0, 1, 3, 2),
        Collective(1, 0, 0, 4, 0),
        Finish(0, 0),
        Multiply(0, 0, 0, 1, 3),
        RecordStream(0, 1),
        SyncStream(2),
        Free(0),
        Add(0, 0, 0, 4, 1),
        Allocate(2, 0),
        Fill(2, 0, 0, 3, 8),
        SyncDevice(),
    )
)
# By hand: 5 5 1 1, then + 2 in the middle, and doubled; buffer 1 has a copy of the first.
RESULT = ([[5, 5, 1, 1]], [[8, 8, 8, -1], [5, 5, 1, 1]])


@pytest.fixture(scope="session")
def backend() -> CpuFakeBackend:
    fake.enable()
    return CpuFakeBackend()


@pytest.fixture(autouse=True)
def _in_order() -> Iterator[None]:
    fake.enable()
    fake.set_schedule("in-order")
    yield
    fake.set_schedule("in-order")


def outcomes(found: object) -> set[str]:
    return {outcome.text for outcome in found.outcomes}  # type: ignore[attr-defined]


def test_every_operation_does_what_it_says(backend: CpuFakeBackend) -> None:
    assert run(EVERYTHING, backend) == RESULT
    assert explore_model(EVERYTHING).outcomes[0].text == str(RESULT)


def test_what_is_printed_runs_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", str(EVERYTHING)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == str(RESULT)


def test_a_repr_gives_the_program_back() -> None:
    from accel_streams import testing

    assert eval(repr(EVERYTHING), vars(testing).copy()) == EVERYTHING


@settings(max_examples=100, deadline=None)
@given(programs(threads=2), st.sampled_from(fake.SCHEDULES), st.integers(0, 100))
def test_an_ordered_program_ends_alike_on_the_device_and_in_the_model(
    backend: CpuFakeBackend, program: Program, schedule: str, seed: int
) -> None:
    program = ordered(program)
    fake.set_schedule(schedule, seed)
    (expected,) = explore_model(program, max_schedules=1).outcomes
    assert str(run(program, backend)) == expected.text


@settings(max_examples=150, deadline=None)
@given(programs(max_operations=10))
def test_the_device_in_order_is_the_model_in_order(
    backend: CpuFakeBackend, program: Program
) -> None:
    assert str(run(program, backend)) == explore_model(program, max_schedules=1).outcomes[0].text


# Programs without any wait have millions of orders.
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


@few
@given(programs(max_operations=8))
def test_the_search_finds_the_same_on_the_device_as_in_the_model(
    backend: CpuFakeBackend, program: Program
) -> None:
    model = explore_model(program, max_schedules=60)
    device = explore_all(as_function(program, backend), max_schedules=60)
    assert (device.schedules, device.complete) == (model.schedules, model.complete)
    if model.schedules < 60:
        written = {text.replace("(", "[").replace(")", "]") for text in outcomes(model)}
        assert {outcome.text for outcome in device.outcomes} == written


@settings(max_examples=300, deadline=None)
@given(programs(ordered=True, max_operations=8))
def test_an_ordered_program_ends_in_one_way(program: Program) -> None:
    found = explore_model(program, max_schedules=200)
    assert found.agrees, found.told()


@pytest.mark.parametrize("hazard", ["read-after-write", "write-after-read", "write-after-write"])
def test_a_planted_missing_wait_shrinks_to_a_handful_of_operations(hazard: str) -> None:
    def goes_wrong(program: Program) -> bool:
        faulty = ordered(program, skip={hazard})  # type: ignore[arg-type]
        return not explore_model(faulty, max_schedules=50).agrees

    smallest = find(
        programs(), goes_wrong, settings=settings(max_examples=2000, deadline=None, database=None)
    )
    assert len(smallest.operations) <= 5
    assert len(ordered(smallest, skip={hazard}).operations) <= 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        Fill(3, 0, 0, 4, 1),
        Fill(0, 2, 0, 4, 1),
        Fill(0, 0, 2, 2, 1),
        Fill(0, 0, 0, 5, 1),
        Copy(0, 1, 0, 4, 1),
        Copy(0, 1, 0, 4, 7),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(wrong: Fill | Copy) -> None:
    with pytest.raises(ValueError, match=r"there are|not within|copies"):
        Program((wrong,))


def test_too_many_orders_are_refused_rather_than_sampled() -> None:
    program = Program(tuple(Add(stream, 0, 0, 4, 1) for stream in (0, 1, 2) for _ in range(4)))
    with pytest.raises(ValueError, match="more than 100 orders"):
        all_outcomes(program, most=100)


def test_without_hypothesis_the_strategies_say_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from accel_streams import testing\n"
        "try:\n    testing.programs()\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "AccelStreamsError" in done.stdout
    assert "pip install 'accel-streams[testing]'" in done.stdout
    assert done.stdout.endswith("False\n"), "drawing programs needs no torch"
