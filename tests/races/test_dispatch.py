# mypy: disable-error-code="attr-defined, no-untyped-call"
# torch.fake comes into being at run time; some of torch's methods have no types.
"""A trace made by looking at torch's dispatcher, with the simulated device as a stand-in.

The simulated device traces itself as well: both sources have to find the same races.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_streams import fake
from accel_streams.races import Race, Watch, _declare, kernel
from accel_streams.races._dispatch import DispatchSource
from accel_streams.races._source import FakeSource
from watched_programs import CASES, DISPATCH_ONLY, Case, Device

# The device's extension may have to be built first.
LIMIT = 300
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(LIMIT + 20)


@pytest.fixture(scope="module", autouse=True)
def _enabled() -> None:
    fake.enable()


@pytest.fixture
def device() -> Device:
    return Device("fake", torch.fake)


@pytest.fixture
def seen() -> Iterator[Watch]:
    watch = Watch(DispatchSource("fake"))
    watch.start()
    yield watch
    watch.stop()
    for index in range(torch.fake.device_count()):
        torch.fake.synchronize(index)


def outline(race: Race) -> tuple[object, ...]:
    return race.kind, race.lo, race.hi, race.first.stream, race.second.stream


@pytest.mark.parametrize("fault", [True, False], ids=["fault", "right"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_both_sources_find_the_fault_and_nothing_else(
    case: Case, fault: bool, device: Device, seen: Watch
) -> None:
    own = Watch(FakeSource())
    own.start()
    case.program(device, fault)
    seen.stop()
    own.stop()
    assert sorted(race.kind for race in seen.races) == (sorted(case.kinds) if fault else [])
    assert seen.operations > 0
    if case.name not in DISPATCH_ONLY:
        assert [outline(race) for race in seen.races] == [outline(race) for race in own.races]


def test_the_place_is_the_line_of_the_program(device: Device, seen: Watch) -> None:
    case = CASES[0]
    case.program(device, True)
    (race,) = seen.races
    assert race.first.source is not None
    assert race.second.source is not None
    lines = Path(race.first.source[0]).read_text().splitlines()
    assert "x.add_(1)" in lines[race.first.source[1] - 1]
    assert "x.sum()" in lines[race.second.source[1] - 1]
    assert race.buffer.endswith("in zeros")


def test_what_it_replaced_is_back_afterwards() -> None:
    before = {
        (owner, name): vars(owner)[name]
        for owner in (torch.Stream, torch.Event, torch.fake, threading.Thread)
        for name in ("wait_event", "wait_stream", "record", "wait", "query", "synchronize", "start")
        if name in vars(owner)
    }
    source = DispatchSource("fake")
    source.start(lambda _: None)
    changed = [key for key, value in before.items() if vars(key[0])[key[1]] is not value]
    source.stop()
    source.stop()  # A second time it does nothing.
    assert len(changed) > 6
    assert all(vars(owner)[name] is value for (owner, name), value in before.items())
    assert not _declare.declaring


def test_an_operation_that_fails_has_not_happened(device: Device, seen: Watch) -> None:
    x, side = device.zeros(4), device.stream()
    y = device.zeros(3)
    side.wait_stream(device.current())
    with pytest.raises(RuntimeError):
        torch.add(y, y[:2], out=x)
    with device.module.stream(side):
        x.sum()
    assert seen.races == []
    assert any("1 operations that raised" in each for each in seen.unseen)


def test_a_higher_order_operator_is_listed_as_not_seen(seen: Watch) -> None:
    from torch._higher_order_ops.wrap import wrap

    assert isinstance(seen.source, DispatchSource)
    assert seen.source._mode is not None
    x = torch.ones(4, device="fake")
    seen.source._mode.__torch_dispatch__(wrap, (), (lambda value: value + 1, x))
    (told,) = [each for each in seen.unseen if "no schema" in each]
    assert "wrap" in told


def test_a_thread_that_ran_before_is_told_of() -> None:
    stopping: queue.SimpleQueue[None] = queue.SimpleQueue()
    thread = threading.Thread(target=stopping.get)
    thread.start()
    try:
        watch = Watch(DispatchSource("fake"))
        watch.start()
        watch.stop()
        assert any("threads that ran before" in each for each in watch.unseen)
    finally:
        stopping.put(None)
        thread.join(60)


def test_triton_kernels_that_nobody_declared_are_listed(
    seen: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []

    class JITFunction:
        __name__ = "softmax_kernel"

        def run(self, *args: object, warmup: bool = False) -> None:
            launched.append(args)

    _declare._hook_triton(types.SimpleNamespace(JITFunction=JITFunction))
    x = torch.ones(4, device="fake")
    JITFunction().run(x)
    JITFunction().run(x, warmup=True)
    with kernel(reads=[x]):
        JITFunction().run(x)
    assert len(launched) == 3
    (told,) = [each for each in seen.unseen if "softmax_kernel" in each]
    assert "(1 launches)" in told


def test_a_declaration_costs_nothing_where_nobody_watches() -> None:
    with kernel(writes=[torch.ones(2)]):
        pass


def test_memory_is_forgotten_when_it_is_freed(device: Device) -> None:
    source = DispatchSource("fake")
    counts = dict.fromkeys(("alloc", "free", "reuse"), 0)

    def count(records: Any) -> None:
        for record in records:
            if record[0] in counts:
                counts[record[0]] += 1

    source.start(count)
    x = device.zeros(8)
    for _ in range(50):
        x = x + 1
    assert source._mode is not None
    known = len(source._mode.storages.by_storage)
    source.stop()
    assert counts["alloc"] == 51
    assert counts["free"] == 50
    # Handed out again by each allocation after it; the last one had none.
    assert counts["reuse"] == 49
    assert known <= 2


def test_storage_that_gets_other_memory_is_another_block(device: Device, seen: Watch) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    with device.module.stream(side):
        x.sum()
    x.resize_(4096)
    x.zero_()
    races = [race for race in seen.races if race.kind != "use-after-free"]
    assert races == []


def test_a_training_step_of_deepspeed_has_the_same_races_in_both(tmp_path: Path) -> None:
    program = tmp_path / "both.py"
    program.write_text(
        """
import runpy, sys
import deepspeed
from accel_streams.races import Watch
from accel_streams.races._dispatch import DispatchSource
from accel_streams.races._source import FakeSource
own, looked = Watch(FakeSource()), Watch(DispatchSource("fake"))
own.start(), looked.start()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
looked.stop(), own.stop()
sides = lambda race: (race.kind, race.first.stream[1], race.second.stream[1])
# Communicators' streams have other numbers here and there.
kinds = lambda watch: sorted({(r.kind, *(max(s.stream[1], 0) if not s.name.startswith("fccl")
    else "fccl" for s in (r.first, r.second))) for r in watch.races}, key=str)
print("RACES", kinds(own) == kinds(looked), len(own.races), len(looked.races))
print(kinds(own), kinds(looked), sep="\\n")
"""
    )
    train = Path(__file__).with_name("scripts") / "train_zero.py"
    for zero, racy in (("off", True), ("track", False)):
        done = subprocess.run(
            [
                *(sys.executable, str(program), str(train), "--stage", "2", "--overlap", "1"),
                *("--contiguous", "1", "--steps", "2"),
            ],
            env={
                **os.environ,
                "DS_ACCELERATOR": "accel_streams:cpu_fake",
                "ACCEL_STREAMS_ZERO": zero,
                "LOCAL_RANK": "0",
            },
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stderr
        (told,) = [line for line in done.stdout.splitlines() if line.startswith("RACES")]
        _, same, own, looked = told.split()
        assert same == "True", done.stdout
        assert (int(own) > 0, int(looked) > 0) == (racy, racy), done.stdout
