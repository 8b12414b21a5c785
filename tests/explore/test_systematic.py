# mypy: disable-error-code="attr-defined"
# torch.fake comes into being at run time.
"""The systematic search on the simulated device: what it finds, what it claims, what it prints."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import device_programs as programs
from accel_streams import fake
from accel_streams.explore import ExploreError, explore_all, replay
from accel_streams.explore._delays import delays_of, schedule_name


def test_a_program_with_all_its_waits_ends_in_one_way() -> None:
    found = explore_all(programs.handover)
    assert found.complete
    assert found.agrees
    assert found.failing is None
    assert found.outcomes[0].text == "[10.0, 10.0, 20.0, 20.0]"
    assert found.told().startswith("no difference in all orders of ")


@pytest.mark.parametrize("missing", ["produced", "released"])
def test_one_missing_wait_is_found_and_shrunk_to_one_delay(missing: str) -> None:
    program = partial(programs.handover, **{missing: False})
    found = explore_all(program)
    assert found.complete
    failing = found.failing
    assert failing is not None
    assert len(failing.delays) == 1
    assert str(replay(program, failing.schedule).tolist()) == failing.text
    assert failing.text != found.outcomes[0].text


def test_every_result_of_two_unordered_streams_is_found() -> None:
    """Worked out by hand: (1 + 1 + 2) * 15 and so on, for the six merges of two and two."""
    values = set()
    for merge in ("++**", "+*+*", "+**+", "*++*", "*+*+", "**++"):
        value, adds, factors = 1, iter((1, 2)), iter((3, 5))
        for operation in merge:
            value = value + next(adds) if operation == "+" else value * next(factors)
        values.add(f"[{float(value)}]")
    found = explore_all(programs.both_ways)
    assert {outcome.text for outcome in found.outcomes} == values
    assert found.complete
    for outcome in found.outcomes:
        assert str(replay(programs.both_ways, outcome.schedule).tolist()) == outcome.text


def test_streams_that_share_nothing_need_one_schedule() -> None:
    found = explore_all(programs.independent)
    assert (found.complete, found.schedules) == (True, 1)
    program = partial(programs.independent, streams=2)
    everything = explore_all(program, max_schedules=100, reduction=False)
    assert (everything.complete, everything.schedules) == (False, 100)
    assert {o.outcome for o in everything.outcomes} == {
        o.outcome for o in explore_all(program).outcomes
    }


def test_memory_that_is_handed_out_too_early_is_found() -> None:
    found = explore_all(partial(programs.early_free, recorded=False))
    assert found.complete
    assert found.failing is not None
    assert "nan" in found.failing.text
    # The allocator's own operation is named after the one of the program that it follows.
    (delay,) = found.failing.delays
    assert "." in delay.early


def test_where_the_allocator_polls_nothing_is_called_complete() -> None:
    found = explore_all(partial(programs.early_free, recorded=True))
    assert found.agrees
    assert not found.complete
    assert "record_stream" in found.reason
    assert "which are not all" in found.told()


def test_a_program_that_polls_is_not_called_complete() -> None:
    def program() -> bool:
        side = torch.fake.Stream()
        with torch.fake.stream(side):
            torch.ones(1, device="fake")
        return bool(side.query())

    found = explore_all(program)
    assert not found.complete
    assert "query" in found.reason


def test_both_branches_of_a_program_that_looks_at_a_value_are_explored() -> None:
    found = explore_all(programs.branching)
    # 0, or 1 * 7 and 100 before or after it; or 0 read, and the addition of 10 and 1.
    assert {outcome.text for outcome in found.outcomes} == {"[107.0]", "[707.0]", "[11.0]"}
    assert found.complete
    for outcome in found.outcomes:
        assert str(replay(programs.branching, outcome.schedule)) == outcome.text


def test_what_the_host_waits_for_is_an_order() -> None:
    found = explore_all(programs.reads_in_between)
    assert (found.complete, found.schedules) == (True, 1)
    assert found.outcomes[0].text == "[2.0, 8.0]"


def test_an_assertion_in_the_program_is_an_outcome() -> None:
    def program() -> None:
        total = programs.handover(produced=False)
        assert total.tolist() == [10.0, 10.0, 20.0, 20.0], "wrong sum"

    found = explore_all(program)
    assert found.outcomes[0].text == "None"
    assert found.failing is not None
    assert found.failing.text.startswith("raised AssertionError: wrong sum")
    with pytest.raises(AssertionError, match="wrong sum"):
        replay(program, found.failing.schedule)


def test_a_bound_that_is_hit_is_told_and_never_called_all() -> None:
    found = explore_all(programs.both_ways, max_schedules=3)
    assert (found.complete, found.schedules) == (False, 3)
    assert "max_schedules=3" in found.told()
    assert "all orders" not in found.told()


def test_the_bound_of_deviations_leaves_out_what_lies_further() -> None:
    whole = explore_all(programs.both_ways)
    seen = {outcome.text for outcome in whole.outcomes}
    for bound, expected in ((0, 1), (1, 2), (2, 4), (3, 5)):
        found = explore_all(programs.both_ways, max_deviations=bound)
        assert not found.complete
        assert f"max_deviations={bound}" in found.told()
        assert found.schedules == expected
        assert {outcome.text for outcome in found.outcomes} <= seen
    assert explore_all(programs.both_ways, max_deviations=4).complete


def test_earlier_runs_and_searches_leave_nothing_behind() -> None:
    before = fake.schedule()
    one = explore_all(partial(programs.early_free, recorded=False))
    assert fake.schedule() == before
    other = explore_all(programs.both_ways)
    assert explore_all(partial(programs.early_free, recorded=False)) == one
    assert explore_all(programs.both_ways) == other


def test_what_cannot_be_searched_is_refused_with_the_reason() -> None:
    def holds() -> None:
        with fake.hold(torch.fake.Stream()):
            torch.ones(1, device="fake")

    def large() -> None:
        number = torch.ones(1, device="fake")
        for _ in range(1001):
            number.add_(1)

    with pytest.raises(ExploreError, match=r"fake\.hold"):
        explore_all(holds)
    with pytest.raises(ExploreError, match="at most 1000"):
        explore_all(large)
    with pytest.raises(ExploreError, match="returned a set, which can't be compared"):
        explore_all(lambda: {1})
    with pytest.raises(ValueError, match="at least one schedule"):
        explore_all(programs.both_ways, max_schedules=0)
    with pytest.raises(ValueError, match="can't be negative"):
        explore_all(programs.both_ways, max_deviations=-1)


@pytest.mark.parametrize("name", ["in-order", "delay:1-2", "delay:5-9,12e-7.1,3.2-4e"])
def test_a_name_is_read_back(name: str) -> None:
    assert schedule_name(delays_of(name)) == name


@pytest.mark.parametrize("name", ["", "delay:", "delay:1", "delay:1-2,", "fifo", "delay:1-x"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"delay:A-B"):
        delays_of(name)
