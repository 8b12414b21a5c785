# mypy: disable-error-code="attr-defined, no-untyped-call, call-overload"
# torch.fake comes into being at run time; some of torch's methods have no types or too narrow ones.
"""Memory: poison, reuse, record_stream, pinned memory."""

from __future__ import annotations

import pytest
import torch

from accel_streams import fake
from accel_streams.fake._extension import extension


def read_behind_a_gate(*, record: bool, allocate: bool) -> list[float]:
    """Free a tensor while another stream's read of it is held, and return what that read finds."""
    side = torch.fake.Stream()
    data = torch.ones(256, device="fake")
    torch.fake.synchronize()
    with fake.hold(side):
        with torch.fake.stream(side):
            copy = torch.zeros(256, device="fake")
            copy.copy_(data)
        if record:
            data.record_stream(side)
        del data
        if allocate:
            other = torch.zeros(256, device="fake")  # on the owner's stream
            torch.fake.default_stream().synchronize()
            del other
    side.synchronize()
    values: list[float] = copy.cpu().unique().tolist()
    return values


def is_poison(values: list[float]) -> bool:
    return all(value != value for value in values)


def test_new_memory_is_poisoned() -> None:
    assert torch.empty(8, device="fake").isnan().all().item()
    assert torch.empty(8, device="fake", dtype=torch.bfloat16).isnan().all().item()
    assert torch.empty(8, device="fake", dtype=torch.int64).cpu().tolist() == [-1] * 8


def test_a_free_alone_takes_nothing_from_work_that_is_queued() -> None:
    assert read_behind_a_gate(record=False, allocate=False) == [1.0]


def test_the_next_allocation_on_the_stream_may_take_the_memory() -> None:
    # It finds the poison, or what the new owner wrote.
    found = read_behind_a_gate(record=False, allocate=True)
    assert is_poison(found) or found == [0.0]


def test_record_stream_keeps_the_memory() -> None:
    assert read_behind_a_gate(record=True, allocate=True) == [1.0]


def test_record_stream_through_a_view_keeps_the_whole_memory() -> None:
    side = torch.fake.Stream()
    data = torch.ones(256, device="fake")
    torch.fake.synchronize()
    with fake.hold(side):
        with torch.fake.stream(side):
            copy = torch.zeros(256, device="fake")
            copy.copy_(data)
        data[200:].record_stream(side)
        del data
        torch.zeros(256, device="fake")
        torch.fake.default_stream().synchronize()
    side.synchronize()
    assert copy.cpu().unique().tolist() == [1.0]


def test_all_recorded_streams_are_waited_for() -> None:
    first, second = torch.fake.Stream(), torch.fake.Stream()
    for held, free in ((first, second), (second, first)):
        data = torch.ones(256, device="fake")
        torch.fake.synchronize()
        with fake.hold(held):
            with torch.fake.stream(held):
                copy = torch.zeros(256, device="fake")
                copy.copy_(data)
            data.record_stream(first)
            data.record_stream(second)
            del data
            free.synchronize()
            torch.zeros(256, device="fake")
            torch.fake.default_stream().synchronize()
        held.synchronize()
        assert copy.cpu().unique().tolist() == [1.0]


def test_memory_comes_back_when_the_recorded_stream_is_through() -> None:
    side = torch.fake.Stream()
    before = torch.fake.memory_reserved()
    for _ in range(50):
        data = torch.ones(1 << 16, device="fake")
        data.record_stream(side)
        del data
        torch.fake.synchronize()
    assert torch.fake.memory_reserved() - before <= 4 * (1 << 18)


def test_memory_of_another_stream_is_not_taken() -> None:
    side = torch.fake.Stream()
    data = torch.ones(256, device="fake")
    torch.fake.synchronize()
    with fake.hold(side), torch.fake.stream(side):
        copy = torch.zeros(256, device="fake")
        copy.copy_(data)
        del data
        torch.zeros(256, device="fake")  # allocated on the side stream, not on the owner's
    side.synchronize()
    assert copy.cpu().unique().tolist() == [1.0]


def test_counters_follow_what_is_in_use() -> None:
    base = torch.fake.memory_allocated()
    data = torch.zeros(1 << 18, device="fake")
    assert torch.fake.memory_allocated() - base == 1 << 20
    if hasattr(torch.accelerator, "memory_allocated"):  # from torch 2.9 on
        assert torch.accelerator.memory_allocated() == torch.fake.memory_allocated()
    del data
    assert torch.fake.memory_allocated() == base
    assert torch.fake.max_memory_allocated() >= base + (1 << 20)
    torch.fake.reset_peak_memory_stats()
    assert torch.fake.max_memory_allocated() == base


def test_empty_cache_gives_memory_back() -> None:
    data = torch.zeros(1 << 18, device="fake")
    del data
    torch.zeros(1, device="fake")
    torch.fake.synchronize()
    before = torch.fake.memory_reserved()
    torch.fake.empty_cache()
    assert torch.fake.memory_reserved() < before


def test_resize_queues_its_copy() -> None:
    side = torch.fake.Stream()
    with torch.fake.stream(side):
        data = torch.zeros(4, device="fake")
        with fake.hold(side):
            data.fill_(3)
            data.resize_(8)
            assert not side.query()
        side.synchronize()
        assert data[:4].tolist() == [3.0] * 4
    assert fake.synchronizing_ops() == {"aten::copy_ (device to host)": 1}


def test_pageable_memory_is_read_at_the_call_and_pinned_memory_when_the_copy_runs() -> None:
    pageable, pinned = torch.ones(4), torch.ones(4).pin_memory()
    assert pinned.is_pinned()
    assert not pageable.is_pinned()
    from_pageable, from_pinned = (torch.empty(4, device="fake") for _ in range(2))
    with fake.hold(torch.fake.current_stream()):
        from_pageable.copy_(pageable, non_blocking=True)
        from_pinned.copy_(pinned, non_blocking=True)
        pageable.fill_(5)
        pinned.fill_(5)
    assert from_pageable.tolist() == [1.0] * 4
    assert from_pinned.tolist() == [5.0] * 4


def test_a_copy_to_pinned_memory_does_not_wait() -> None:
    pinned = torch.zeros(4).pin_memory()
    data = torch.ones(4, device="fake")
    torch.fake.synchronize()
    with fake.hold(torch.fake.current_stream()):
        pinned.copy_(data, non_blocking=True)
        assert pinned.tolist() == [0.0] * 4
    torch.fake.synchronize()
    assert pinned.tolist() == [1.0] * 4
    assert fake.synchronizing_ops() == {}


def test_a_copy_to_pageable_memory_waits() -> None:
    host = torch.zeros(4)
    host.copy_(torch.ones(4, device="fake"), non_blocking=True)
    assert host.tolist() == [1.0] * 4
    assert fake.synchronizing_ops() == {"aten::copy_ (device to host)": 1}


def test_storages_resize_and_rebind() -> None:
    data = torch.arange(4.0, device="fake")
    data.untyped_storage().resize_(0)
    assert data.untyped_storage().size() == 0
    other = torch.empty(0, device="fake")
    other.set_(torch.arange(6.0, device="fake"))
    assert other.tolist() == [0, 1, 2, 3, 4, 5]
    other.set_()
    assert other.numel() == 0


@pytest.mark.parametrize("devices", [("fake:0", "fake:1"), ("fake:1", "fake:0")])
def test_copies_between_devices_are_ordered_on_both(
    devices: tuple[str, str], schedule: str
) -> None:
    source = torch.ones(16, device=devices[0]) + 1
    copy = source.to(devices[1]) * 3
    source.fill_(0)
    assert copy.tolist() == [6.0] * 16


def test_each_allocation_has_its_own_number() -> None:
    first = torch.ones(4, device="fake")
    number = extension().block_id(first)
    del first
    assert extension().block_id(torch.ones(4, device="fake")) != number
