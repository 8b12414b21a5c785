from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_streams import _settings
from accel_streams.explore import (
    BLOCKING,
    IN_ORDER,
    Schedule,
    Script,
    free_runs,
    plan_schedules,
    variants_named,
)
from accel_streams.explore._plan import (
    DETERMINISTIC_SCHEDULES,
    SEEDED_SCHEDULES,
    parse_schedules,
)

schedules = st.one_of(
    st.builds(Schedule, st.sampled_from(DETERMINISTIC_SCHEDULES)),
    st.builds(Schedule, st.sampled_from(SEEDED_SCHEDULES), st.integers(0, 2**64 - 1)),
)


def test_every_schedule_of_the_device_can_be_explored() -> None:
    assert set(DETERMINISTIC_SCHEDULES + SEEDED_SCHEDULES) == set(_settings.SCHEDULES)


@given(schedules)
def test_a_schedule_is_read_back_from_what_is_printed(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule


@given(schedules)
def test_a_schedule_can_be_replayed_through_the_environment(schedule: Schedule) -> None:
    assignments = dict(word.split("=") for word in schedule.replay.split())
    assert assignments.items() <= schedule.environment.items()
    assert ("ACCEL_STREAMS_SEED" in assignments) == (schedule.name in SEEDED_SCHEDULES)


@pytest.mark.parametrize("text", ["", "fast", "fifo:1", "random:", "random:-1", "random:x", "7"])
def test_anything_else_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"in-order, fifo|takes no seed"):
        Schedule.parse(text)


@given(st.integers(1, 300), st.integers(0, 1000))
def test_planned_schedules_are_different_ones_in_order_first(count: int, seed: int) -> None:
    planned = plan_schedules(count, seed)
    assert planned[0] == IN_ORDER
    assert len(set(planned)) == len(planned) == count
    assert planned == plan_schedules(count, seed)
    assert planned[: count - 1] == plan_schedules(count, seed)[: count - 1]


def test_another_seed_gives_other_seeded_schedules() -> None:
    deterministic = len(DETERMINISTIC_SCHEDULES)
    assert plan_schedules(20, 0)[:deterministic] == plan_schedules(20, 100)[:deterministic]
    assert not set(plan_schedules(20, 0)[deterministic:]) & set(
        plan_schedules(20, 100)[deterministic:]
    )


def test_no_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        plan_schedules(0)


def test_in_order_runs_first_and_once_whether_named_or_not() -> None:
    expected = (IN_ORDER, Schedule("lifo"), Schedule("random", 3))
    assert parse_schedules(["lifo", "random:3"]) == expected
    assert parse_schedules(["lifo", "in-order", "random:3", "lifo"]) == expected


def test_variants_are_found_by_name_in_the_order_given() -> None:
    assert [v.name for v in variants_named(["accel-streams", "deepspeed"])] == [
        "accel_streams",
        "deepspeed",
    ]
    with pytest.raises(ValueError, match="unknown variant 'cuda'; expected one of deepspeed"):
        variants_named(["cuda"])
    with pytest.raises(ValueError, match="no variant given"):
        variants_named([])


def test_a_script_is_a_file_or_a_module() -> None:
    assert Script.parse(["train.py", "--lr", "1"]) == Script("train.py", ("--lr", "1"))
    assert Script.parse(["-m", "pack.train", "-m"]) == Script("pack.train", ("-m",), module=True)
    for words in ([], ["-m"]):
        with pytest.raises(ValueError, match=r"script|module"):
            Script.parse(words)


def test_a_real_device_runs_once_with_the_host_waiting_and_then_as_it_likes() -> None:
    blocking, *others = free_runs(2)
    assert blocking == BLOCKING
    assert [str(each) for each in (blocking, *others)] == ["blocking", "free:1", "free:2"]
    assert blocking.replay == "CUDA_LAUNCH_BLOCKING=1"
    assert {each.replay for each in others} == {"CUDA_LAUNCH_BLOCKING=0"}
    assert blocking.checked
    assert not any(each.checked for each in others)
    with pytest.raises(ValueError, match="unknown schedule 'blocking'"):
        Schedule.parse("blocking")
