# mypy: disable-error-code="attr-defined, no-untyped-call"
# torch.fake comes into being at run time; some of torch's methods have no types.
"""What a trace says, and that it says the same every time."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
import threading

import pytest
import torch

from accel_streams import fake


def kinds(records: list[tuple[object, ...]]) -> list[object]:
    return [record[0] for record in records if record[0] != "ran"]


def test_records_say_what_was_submitted_and_where() -> None:
    side = torch.fake.Stream()
    x = torch.ones(4, device="fake")
    torch.fake.synchronize()
    fake.start_trace()
    event = torch.fake.current_stream().record_event()
    side.wait_event(event)
    with torch.fake.stream(side):
        x[1:3].add_(1)
    side.synchronize()
    records = fake.stop_trace()
    assert kinds(records)[:4] == ["record", "wait", "launch", "sync_stream"]
    record, wait, launch = records[:3]
    assert wait[4] == record[1]
    assert launch[3] == (0, side.stream_id)
    # Two floats, from the second on.
    assert {(low, high) for _, low, high, _ in launch[5]} == {(4, 12)}
    assert {mode for _, _, _, mode in launch[5]} == {1, 2}  # read and written
    assert launch[6][0].endswith("test_trace.py")
    assert launch[6][2] == "test_records_say_what_was_submitted_and_where"


def test_the_life_of_memory_is_traced() -> None:
    torch.fake.synchronize()
    fake.start_trace()
    x = torch.empty(64, device="fake")
    x.record_stream(torch.fake.Stream())
    fake.name_storage(x, "a name")
    del x
    y = torch.empty(64, device="fake")
    del y
    torch.empty(64, device="fake")
    records = fake.stop_trace()
    life = [k for k in kinds(records) if k in ("alloc", "record_stream", "name", "free", "reuse")]
    start = life.index("alloc")  # what was freed before the trace may come first
    assert life[start : start + 4] == ["alloc", "record_stream", "name", "free"]
    assert "reuse" in life[start + 4 :]


def test_a_backward_operation_is_placed_at_its_node() -> None:
    weight = torch.ones(4, device="fake", requires_grad=True)
    loss = (weight * 3).sum()
    fake.start_trace()
    loss.backward()
    sources = {r[6] for r in fake.stop_trace() if r[0] == "launch"}
    assert ("autograd", 0, "MulBackward0") in sources


def test_every_operation_runs_once_and_after_what_it_waits_for(schedule: str) -> None:
    a, b = torch.fake.Stream(), torch.fake.Stream()
    fake.start_trace()
    for _ in range(5):
        with torch.fake.stream(a):
            x = torch.ones(8, device="fake")
        b.wait_stream(a)
        with torch.fake.stream(b):
            x.mul_(2)
        a.wait_stream(b)
    records = fake.stop_trace()
    order = {r[1]: r[2] for r in records if r[0] == "ran"}
    launches = [r for r in records if r[0] == "launch"]
    assert {r[1] for r in launches} <= order.keys()
    for record in records:
        if record[0] == "wait":
            assert order[record[1]] > order[record[4]]
    for stream in {r[3] for r in launches}:
        own = [order[r[1]] for r in launches if r[3] == stream]
        assert own == sorted(own)


def test_a_sink_gets_the_records_as_they_gather() -> None:
    chunks: list[int] = []
    fake.start_trace(sink=lambda records: chunks.append(len(records)))
    x = torch.zeros(2, device="fake")
    for _ in range(20_000):
        x.add_(1)
    assert chunks, "nothing was handed over before the end"
    assert fake.stop_trace() == []
    assert sum(chunks) >= 2 * 20_000


def test_a_sink_is_called_by_one_thread_at_a_time() -> None:
    entered, together = threading.Event(), threading.Event()
    inside = threading.Lock()

    def sink(_: list[tuple[object, ...]]) -> None:
        if not inside.acquire(blocking=False):
            together.set()
            return
        if not entered.is_set():
            entered.set()
            together.wait(0.5)  # for the other thread to fill its chunk
        inside.release()

    def work() -> None:
        x = torch.zeros(2, device="fake")
        for _ in range(10_000):
            x.add_(1)

    fake.start_trace(sink=sink)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    fake.stop_trace()
    assert entered.is_set()
    assert not together.is_set()


def test_a_listener_gets_the_same_records_beside_a_recording() -> None:
    x = torch.zeros(2, device="fake")
    before: list[tuple[object, ...]] = []
    after: list[tuple[object, ...]] = []
    stop_before = fake.listen(before.extend)
    x.add_(1)
    fake.start_trace()
    x.add_(2)
    stop_after = fake.listen(after.extend)
    x.add_(3)
    stop_before()
    x.add_(4)
    records = fake.stop_trace()
    x.add_(5)
    stop_after()
    stop_after()  # A second time it does nothing.
    x.add_(6)
    launches = [[r for r in found if r[0] == "launch"] for found in (before, records, after)]
    first, second, third = ([r[1] for r in found] for found in launches)
    assert [len(first), len(second), len(third)] == [3, 3, 3]
    assert first[1:] == second[:2]
    assert second[1:] == third[:2]
    # Nobody is left: nothing is recorded.
    fake.start_trace()
    assert [r for r in fake.stop_trace() if r[0] == "launch"] == []


def test_flushing_hands_over_what_has_gathered() -> None:
    seen: list[tuple[object, ...]] = []
    x = torch.zeros(2, device="fake")
    stop = fake.listen(seen.extend)
    gate = fake.hold(torch.fake.current_stream())
    x.add_(1)
    assert not seen
    fake.flush_trace()
    # Also what is held: that would have to wait, if it had to run for it.
    assert len([r for r in seen if r[0] == "launch" and "add" in str(r[4])]) == 1
    gate.release()
    stop()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_while_a_sink_works(enabled: bool) -> None:
    seen: list[bool] = []
    fake.start_trace(sink=lambda _: seen.append(gc.isenabled()))
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        torch.zeros(2, device="fake")
        fake.stop_trace()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False]


def test_nothing_is_recorded_without_a_trace() -> None:
    torch.ones(4, device="fake").add_(1)
    fake.start_trace()
    assert fake.stop_trace() == []


PROGRAM = """
import torch
from accel_streams import fake
fake.enable()
fake.set_schedule({schedule!r}, 11)
fake.start_trace()
torch.manual_seed(0)
layers = torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
model = torch.nn.Sequential(*layers).to("fake")
streams = [torch.fake.Stream() for _ in range(3)]
for step in range(3):
    for stream in streams:
        stream.wait_stream(torch.fake.current_stream())
        with torch.fake.stream(stream):
            model(torch.randn(4, 8, device="fake")).sum().backward()
torch.fake.synchronize()
print(repr(fake.stop_trace()), flush=True)
"""


def test_the_same_run_gives_the_same_trace_in_every_process() -> None:
    for name in ("random", "priority"):
        digests = {
            hashlib.sha256(
                subprocess.run(
                    [sys.executable, "-c", PROGRAM.format(schedule=name)],
                    check=True,
                    capture_output=True,
                    timeout=120,
                ).stdout
            ).hexdigest()
            for _ in range(2)
        }
        assert len(digests) == 1
