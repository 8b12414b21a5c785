"""CUDA's streams as torch's callbacks tell of them, on a stand-in for torch.cuda."""

from __future__ import annotations

from typing import Any

import pytest
from torch._utils import CallbackRegistry

from accel_streams.races import READ, WRITE, Record
from accel_streams.races._recorder import Pending, Recorder
from accel_streams.races._streams import Cuda, CudaStreams


class Trace:
    """What ``torch.cuda._gpu_trace`` holds."""

    def __init__(self) -> None:
        for name in (
            *("EventRecord", "EventWait", "EventDeletion", "EventSynchronization"),
            *("StreamSynchronization", "DeviceSynchronization", "MemoryAllocation"),
        ):
            setattr(self, f"{name}Callbacks", CallbackRegistry(name))


class StandIn(Cuda):
    def __init__(self) -> None:
        self.trace = Trace()
        self.device = 0
        self.handles = {0: 0, 1: 0}

    def current_device(self) -> int:
        return self.device

    def current_handle(self, device: int) -> int:
        return self.handles[device]

    def handle_of(self, stream: Any) -> tuple[int, int]:
        return stream  # type: ignore[no-any-return]

    def activate(self) -> Any:
        return self.trace

    def fire(self, name: str, *arguments: int) -> None:
        getattr(self.trace, f"{name}Callbacks").fire_callbacks(*arguments)


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[Record] = []
        self.recorder = Recorder(self.records.extend, 1000)
        self.cuda = StandIn()
        self.streams = CudaStreams(self.recorder, self.cuda)
        monkeypatch.setattr(self.streams, "_watch_queries", lambda: None)
        self.streams.install()

    def pend(self, stream: tuple[int, int] | None, name: str = "aten::item") -> Pending:
        pending = Pending(name, [(1, 0, 8, READ)], None, stream)
        self.recorder.state.pending = pending
        return pending

    def taken(self) -> list[Record]:
        self.recorder.deliver()
        taken, self.records[:] = list(self.records), []
        return taken


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    bench = Bench(monkeypatch)
    yield bench
    bench.streams.uninstall()


def test_the_same_handle_on_two_devices_is_two_streams(bench: Bench) -> None:
    bench.cuda.fire("EventRecord", 700, 0)
    bench.cuda.device = 1
    bench.cuda.fire("EventRecord", 701, 0)
    assert [record[3] for record in bench.taken()] == [(0, 0), (1, 0)]
    assert bench.streams.current(1) == (1, 0)


def test_a_wait_is_for_the_latest_recording_before_it(bench: Bench) -> None:
    bench.cuda.fire("EventRecord", 700, 0)
    bench.cuda.fire("EventWait", 700, 9000)
    bench.cuda.fire("EventRecord", 700, 0)
    bench.cuda.fire("EventWait", 700, 9000)
    bench.cuda.fire("EventWait", 701, 9000)  # Never recorded: orders nothing.
    records = bench.taken()
    first, second = (record[1] for record in records if record[0] == "record")
    assert [record[4] for record in records if record[0] == "wait"] == [first, second]
    assert [record[3] for record in records if record[0] == "drop"] == [first]
    assert {record[3] for record in records if record[0] == "wait"} == {(0, 1)}


def test_an_operation_is_recorded_before_the_host_waits_for_it(bench: Bench) -> None:
    bench.pend((0, 0))
    bench.cuda.fire("StreamSynchronization", 0)
    launch, sync = bench.taken()
    assert (launch[0], sync[0]) == ("launch", "sync_stream")
    assert bench.recorder.state.pending is None


def test_what_happens_on_another_stream_does_not_cover_it(bench: Bench) -> None:
    # A copy between devices first waits for the other device's stream.
    pending = bench.pend((0, 0))
    bench.cuda.device = 1
    bench.cuda.fire("EventRecord", 700, 0)
    bench.cuda.device = 0
    bench.cuda.fire("EventWait", 700, 0)
    assert bench.recorder.state.pending is pending
    bench.cuda.fire("EventRecord", 701, 0)
    assert [record[0] for record in bench.taken()] == ["record", "wait", "launch", "record"]


def test_a_collective_runs_where_its_inputs_were_waited_for(bench: Bench) -> None:
    pending = bench.pend(None, "nccl::allreduce")
    pending.collective = (0, 0)
    bench.cuda.fire("EventRecord", 700, 0)
    bench.cuda.fire("EventWait", 700, 5000)
    bench.cuda.fire("EventRecord", 701, 5000)
    record, wait, launch, end = bench.taken()
    assert [each[0] for each in (record, wait, launch, end)] == [
        *("record", "wait", "launch", "record")
    ]
    assert record[3] == (0, 0)
    assert wait[3] == launch[3] == end[3] == (0, 1)


def test_synchronizing_a_device_covers_that_device_alone(bench: Bench) -> None:
    pending = bench.pend((1, 0))
    bench.cuda.fire("DeviceSynchronization")
    assert bench.recorder.state.pending is pending
    bench.cuda.device = 1
    bench.cuda.fire("DeviceSynchronization")
    assert [(record[0], record[3]) for record in bench.taken()] == [
        *(("sync_device", 0), ("launch", (1, 0)), ("sync_device", 1))
    ]


def test_freed_memory_is_handed_out_by_the_next_allocation_on_its_stream(bench: Bench) -> None:
    bench.cuda.handles[0] = 5000
    side = bench.streams.current(0)
    bench.cuda.handles[0] = 0
    bench.recorder.dead.append((side, 3))
    bench.cuda.fire("MemoryAllocation", 1 << 20)
    assert [record[0] for record in bench.taken()] == ["free"]
    bench.cuda.handles[0] = 5000
    bench.cuda.fire("MemoryAllocation", 1 << 20)
    assert [record[0] for record in bench.taken()] == ["reuse"]


def test_uninstalling_takes_the_callbacks_away(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.streams.uninstall()
    bench.cuda.fire("EventRecord", 700, 0)
    bench.cuda.fire("DeviceSynchronization")
    assert bench.taken() == []
    assert WRITE > READ
