# mypy: disable-error-code="attr-defined"
# torch.fake comes into being at run time.
"""Streams and events of the simulated device, as a program sees them."""

from __future__ import annotations

import threading

import pytest
import torch

from accel_streams import fake
from accel_streams._errors import FakeDeviceError
from accel_streams.fake._extension import extension
from torch_release import TORCH


def produced_and_consumed(*, wait: bool) -> torch.Tensor:
    """Write ones on one stream and double them on another, with or without the wait between."""
    a, b = torch.fake.Stream(), torch.fake.Stream()
    buffer = torch.zeros(8, device="fake")
    torch.fake.synchronize()
    with torch.fake.stream(a):
        buffer.add_(1)
        event = a.record_event()
    if wait:
        b.wait_event(event)
    with torch.fake.stream(b):
        result = buffer * 2
    torch.fake.current_stream().wait_stream(b)
    return result.cpu()


def test_work_is_queued_and_runs_when_the_host_waits() -> None:
    before = extension().pending()
    x = torch.ones(4, device="fake") + 1
    assert extension().pending() > before
    torch.fake.synchronize()
    assert extension().pending() == 0
    assert x.tolist() == [2.0] * 4


def test_a_wait_orders_two_streams_under_every_schedule(schedule: str) -> None:
    assert produced_and_consumed(wait=True).tolist() == [2.0] * 8


def test_a_missing_wait_shows_under_some_schedule() -> None:
    wrong = []
    for name in fake.SCHEDULES:
        fake.set_schedule(name, seed=1)
        if produced_and_consumed(wait=False).tolist() != [2.0] * 8:
            wrong.append(name)
    assert wrong, "no schedule shows that the wait is missing"
    assert "in-order" not in wrong


def test_a_wait_covers_what_was_before_the_record_only() -> None:
    a, b = torch.fake.Stream(), torch.fake.Stream()
    event = a.record_event()
    with fake.hold(a):
        b.wait_event(event)
        b.synchronize()  # would never return if b waited for the held work
        assert not a.query()
    a.synchronize()


def test_a_wait_keeps_the_recording_it_was_issued_for() -> None:
    a, b = torch.fake.Stream(), torch.fake.Stream()
    event = torch.fake.Event()
    event.record(a)
    b.wait_event(event)
    with fake.hold(a):
        event.record(a)
        b.synchronize()
        assert not event.query()
    a.synchronize()
    assert event.query()


def test_waiting_for_an_event_that_was_never_recorded_changes_nothing() -> None:
    stream = torch.fake.Stream()
    event = torch.fake.Event()
    stream.wait_event(event)
    event.synchronize()
    stream.synchronize()
    assert event.query()


def test_dropping_the_event_keeps_the_edge() -> None:
    fake.set_schedule("lifo")
    a, b = torch.fake.Stream(), torch.fake.Stream()
    buffer = torch.zeros(4, device="fake")
    torch.fake.synchronize()
    with torch.fake.stream(a):
        buffer.add_(1)
    b.wait_event(a.record_event())
    with torch.fake.stream(b):
        result = buffer.clone()
    b.synchronize()
    assert result.tolist() == [1.0] * 4


def test_a_held_stream_delays_no_other() -> None:
    a, b = torch.fake.Stream(), torch.fake.Stream()
    with fake.hold(a) as gate:
        with torch.fake.stream(a):
            slow = torch.ones(2, device="fake") + 1
        with torch.fake.stream(b):
            fast = torch.ones(2, device="fake") + 2
            assert fast.tolist() == [3.0, 3.0]
        assert not a.query()
        assert not gate.released
    a.synchronize()
    assert slow.cpu().tolist() == [2.0, 2.0]


def test_a_host_that_waits_for_a_held_stream_goes_on_when_another_thread_releases_it() -> None:
    stream = torch.fake.Stream()
    gate = fake.hold(stream)
    waiting = threading.Event()

    def release() -> None:
        assert waiting.wait(10)
        gate.release()

    thread = threading.Thread(target=release)
    thread.start()
    waiting.set()
    stream.synchronize()
    thread.join(10)
    assert stream.query()


def test_a_host_that_would_wait_for_ever_gets_an_error() -> None:
    stream = torch.fake.Stream()
    extension().set_hold_timeout(0.1)
    try:
        with fake.hold(stream), pytest.raises(RuntimeError, match=r"held: release it"):
            stream.synchronize()
    finally:
        extension().set_hold_timeout(60.0)


def test_polling_makes_progress() -> None:
    x = torch.ones(4, device="fake")
    for _ in range(20):
        x = x + 1
    event = torch.fake.current_stream().record_event()
    polls = 0
    while not event.query():
        polls += 1
        assert polls < 1000, "polling does not end"
    assert polls > 0


def test_the_queue_runs_when_it_is_full() -> None:
    fake.set_queue_capacity(16)
    x = torch.zeros(2, device="fake")
    for _ in range(100):
        x.add_(1)
        assert extension().pending() <= 17
    assert x.tolist() == [100.0, 100.0]


def test_a_queue_needs_room() -> None:
    with pytest.raises(RuntimeError, match="at least one operation"):
        fake.set_queue_capacity(0)


def test_the_current_stream_belongs_to_the_thread() -> None:
    stream = torch.fake.Stream()
    seen: list[torch.Stream] = []
    with torch.fake.stream(stream):
        thread = threading.Thread(target=lambda: seen.append(torch.fake.current_stream()))
        thread.start()
        thread.join(10)
        assert torch.fake.current_stream() == stream
    assert seen == [torch.fake.default_stream()]


def test_stream_and_device_come_back_after_an_exception() -> None:
    stream = torch.fake.Stream("fake:1")

    def fail_on_the_stream() -> None:
        with torch.fake.stream(stream):
            assert torch.fake.current_device() == 1
            assert torch.fake.current_stream() == stream
            raise KeyError

    with pytest.raises(KeyError):
        fail_on_the_stream()
    assert torch.fake.current_device() == 0
    assert torch.fake.current_stream(1) == torch.fake.default_stream(1)


def test_streams_compare_by_what_they_are() -> None:
    stream = torch.fake.Stream()
    with torch.fake.stream(stream):
        again = torch.fake.current_stream()
        generic = torch.accelerator.current_stream()
    assert stream == again == generic
    assert len({stream, again, generic}) == 1
    assert stream != torch.fake.default_stream()
    assert torch.fake.default_stream(0) != torch.fake.default_stream(1)


@pytest.mark.skipif(TORCH < (2, 7), reason="torch.Stream is a context manager from 2.7 on")
def test_torchs_own_context_manager_works() -> None:
    stream = torch.Stream(device="fake")
    with stream:
        assert torch.accelerator.current_stream() == stream
    assert torch.accelerator.current_stream() == torch.fake.default_stream()


def test_a_stream_that_was_never_made_is_refused() -> None:
    bogus = torch.Stream(stream_id=10**6, device_index=0, device_type=20)
    with pytest.raises(RuntimeError, match="no stream with id"):
        torch.fake.set_stream(bogus)


def test_an_event_belongs_to_one_device() -> None:
    event = torch.fake.Event()
    event.record(torch.fake.default_stream(0))
    with pytest.raises(RuntimeError, match="belongs to fake:0"):
        event.record(torch.fake.default_stream(1))
    assert event.query()


def test_the_virtual_clock_measures_what_runs_side_by_side() -> None:
    a, b = torch.fake.Stream(), torch.fake.Stream()
    start, end = (torch.fake.Event(enable_timing=True) for _ in range(2))
    start.record(a)
    b.wait_event(start)
    with torch.fake.stream(a):
        torch.fake._sleep(5_000_000)
    with torch.fake.stream(b):
        torch.fake._sleep(5_000_000)
    a.wait_stream(b)
    end.record(a)
    end.synchronize()
    assert 5.0 <= start.elapsed_time(end) < 6.0  # milliseconds; one after the other would be 10


@pytest.mark.skipif(TORCH < (2, 7), reason="torch.Event looks at it from 2.7 on")
def test_elapsed_time_of_events_without_timing_is_an_error() -> None:
    first, second = torch.fake.Event(), torch.fake.Event()
    first.record()
    second.record()
    torch.fake.synchronize()
    with pytest.raises(ValueError, match="enable_timing"):
        first.elapsed_time(second)


def test_unknown_schedules_and_seeds_are_refused() -> None:
    with pytest.raises(FakeDeviceError, match="expected one of in-order"):
        fake.set_schedule("alphabetical")
    with pytest.raises(FakeDeviceError, match="seed"):
        fake.set_schedule("random", -1)
    assert fake.schedule() == ("in-order", 0)


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.fake.set_device(99)
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.ones(2, device="fake:99")
    with pytest.raises(FakeDeviceError, match="device of type 'fake'"):
        torch.fake.synchronize("cpu")


def test_a_stream_tells_its_priority_which_is_within_the_range() -> None:
    least, greatest = torch.fake.Stream.priority_range()
    assert (least, greatest) == (0, -1)
    for asked, given in ((0, 0), (-1, -1), (-7, -1), (7, 0)):
        stream = torch.fake.Stream(priority=asked)
        assert stream.priority == given
        with torch.fake.stream(stream):
            assert torch.fake.current_stream().priority == given
    assert torch.fake.default_stream().priority == 0


def test_a_stream_is_found_again_by_its_handle() -> None:
    stream = torch.fake.Stream("fake:1")
    found = torch.fake.ExternalStream(stream.stream_id, "fake:1")
    assert found == stream
    assert isinstance(found, torch.Stream)
    assert torch.fake.current_stream("fake:1") == torch.fake.default_stream("fake:1")
    with pytest.raises(RuntimeError, match="no stream with id"):
        torch.fake.ExternalStream(123_456, "fake:1")
