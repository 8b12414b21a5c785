from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accel_streams.explore._digest import digest


def items() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(3, 4, generator=generator),
        "half": torch.randn(5, generator=generator).to(torch.bfloat16),
        "empty": torch.empty(0),
        "scalar": torch.tensor(2.0),
        "state": {"step": 3, "exp_avg": torch.randn(2, generator=generator), "nested": [1, "a"]},
    }


def of(values: dict[str, Any]) -> str:
    return digest(iter(values.items()))


def _flip_one_bit(values: dict[str, Any]) -> None:
    values["half"].view(torch.int16)[4] ^= 1


def _change_nested_tensor(values: dict[str, Any]) -> None:
    values["state"]["exp_avg"][1] += 1e-6


def _negate_zero(values: dict[str, Any]) -> None:
    values["scalar"].fill_(-0.0)


def _change_number(values: dict[str, Any]) -> None:
    values["state"]["step"] = 4


def _change_shape(values: dict[str, Any]) -> None:
    values["weight"] = values["weight"].reshape(4, 3)


def _change_type(values: dict[str, Any]) -> None:
    values["half"] = values["half"].view(torch.float16)


def _rename(values: dict[str, Any]) -> None:
    values["bias"] = values.pop("weight")


@pytest.mark.parametrize(
    "change",
    [
        _flip_one_bit,
        _change_nested_tensor,
        _negate_zero,
        _change_number,
        _change_shape,
        _change_type,
        _rename,
    ],
)
def test_every_difference_changes_the_digest(change: Callable[[dict[str, Any]], None]) -> None:
    before = items()
    before["scalar"].fill_(0.0)
    after = copy.deepcopy(before)
    change(after)
    assert of(after) != of(before)


def test_equal_values_have_equal_digests_however_they_are_stored() -> None:
    values = items()
    transposed = {**items(), "weight": items()["weight"].t().contiguous().t()}
    assert not transposed["weight"].is_contiguous()
    assert of(transposed) == of(values)
    shuffled = {**items(), "state": dict(reversed(items()["state"].items()))}
    assert of(shuffled) == of(values)


def test_a_nan_equals_itself() -> None:
    assert of({"x": torch.tensor([float("nan")])}) == of({"x": torch.tensor([float("nan")])})


def test_objects_without_a_value_do_not_make_runs_differ() -> None:
    assert of({"x": object()}) == of({"x": object()})


def test_a_loss_is_kept_without_an_operation_and_not_when_it_was_overwritten() -> None:
    from accel_streams.explore._digest import Collector

    collector = Collector()
    kept, overwritten = torch.tensor(2.0), torch.tensor(3.0)
    with torch.profiler.profile() as profile:
        collector._keep_loss(kept)
        collector._keep_loss(overwritten)
    # detach is a view: nothing that a device would run.
    assert {event.key for event in profile.key_averages()} <= {"aten::detach", "detach"}
    overwritten.add_(1)
    first, second = collector.losses()
    assert first == 2.0
    assert math.isnan(second)
