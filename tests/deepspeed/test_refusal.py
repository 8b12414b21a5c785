"""A backend whose streams are not real does not get to train, and says why."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_streams import Capabilities, Ordering, StreamId
from accel_streams._real_streams import is_asleep, unreal_streams

Python = Callable[..., subprocess.CompletedProcess[str]]

TRAIN = Path(__file__).with_name("scripts") / "train_plain.py"


class Device:
    """A device in pure Python: work is a time at which it ends, in seconds."""

    name = device_type = "made_up"
    url = "https://example.com"

    def __init__(
        self, ids: tuple[int, ...] = (1, 2), ordering: Ordering = Ordering.ASYNC, **options: Any
    ) -> None:
        self.capabilities = Capabilities(ordering, pool_size=options.get("pool_size"))
        self.lies = options.get("lies", False)
        self.ids = list(ids)
        self.busy_until = 0.0
        self.released = 0
        self.held = False

    def default_stream(self) -> int:
        return 0

    def new_stream(self) -> int:
        return self.ids.pop(0)

    def stream_id(self, stream: int) -> StreamId:
        return StreamId("made_up", 0, stream)

    def use_stream(self, stream: int) -> Any:
        return nullcontext()

    def new_event(self) -> object:
        return object()

    def record(self, event: object, stream: int) -> None:
        pass

    def query(self, event: object) -> bool:
        return self.lies or not (self.held or time.perf_counter() < self.busy_until)

    def synchronize(self, event: object) -> None:
        left = self.busy_until - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def _sleep(self, cycles: int) -> None:
        self.busy_until = time.perf_counter() + cycles / 1e9


class HeldDevice(Device):
    """The same with streams that can be held."""

    def hold(self, stream: int) -> Any:
        self.held = True
        return SimpleNamespace(release=self._release)

    def _release(self) -> None:
        self.held = False
        self.released += 1


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], Device]:
    """Give torch the module of a device that can be kept busy."""

    def install(device: Device) -> Device:
        module = SimpleNamespace(_sleep=device._sleep)
        monkeypatch.setattr(torch, "made_up", module, raising=False)
        return device

    return install


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (Device(ids=(1, 1)), "two new streams have one id, 1 on made_up:0"),
        (Device(ids=(0, 1)), "a new stream has the id of the default stream, 0 on made_up:0"),
        (Device(ids=(1, 0)), "a new stream has the id of the default stream"),
        (Device(ids=(0, 0)), "a new stream has the id of the default stream"),
        (HeldDevice(lies=True), "the work before it is pending, on a stream that is held"),
    ],
)
def test_streams_that_are_none_are_told(device: Any, words: str) -> None:
    reason = unreal_streams(device)
    assert reason is not None
    assert words in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    "device",
    [
        Device(),
        HeldDevice(),
        Device(ids=(1, 1), pool_size=1),
        Device(ids=(0, 0), ordering=Ordering.SYNCHRONOUS),
        HeldDevice(ids=(0, 0), ordering=Ordering.STREAM_ORDERED, lies=True),
        # It can't be held and can't be kept busy: nothing is known.
        Device(lies=True),
    ],
)
def test_what_may_be_real_is_not_refused(device: Any) -> None:
    assert unreal_streams(device) is None


@pytest.mark.parametrize("lies", [True, False])
def test_a_delay_shows_an_event_that_lies(sleeping: Callable[[Device], Device], lies: bool) -> None:
    device: Any = sleeping(Device(lies=lies))
    assert (unreal_streams(device) is not None) == lies


def test_a_delay_that_is_none_is_no_proof(sleeping: Callable[[Device], Device]) -> None:
    device: Any = sleeping(Device(lies=True))
    torch.made_up._sleep = lambda cycles: None  # type: ignore[attr-defined]
    assert unreal_streams(device) is None


def test_a_held_stream_is_let_go_also_after_an_error() -> None:
    device: Any = HeldDevice()

    def query(event: object) -> bool:
        raise RuntimeError("the driver went away")

    device.query = query
    with pytest.raises(RuntimeError, match="driver"):
        unreal_streams(device)
    assert device.released == 1


def test_a_device_that_waits_for_its_first_use_is_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = Device()
    assert not is_asleep(device)
    for awake in (False, True):
        module = SimpleNamespace(is_initialized=lambda awake=awake: awake)
        monkeypatch.setattr(torch, "made_up", module, raising=False)
        assert is_asleep(device) is not awake


# A vendor's backend on the simulated device, with one thing wrong.
VENDOR = """
    from accel_streams import Capabilities, Ordering
    from accel_streams.backends.cpu_fake import CpuFakeBackend

    class Backend(CpuFakeBackend):
        name = "nova"
        url = "https://example.com/nova/issues"
        asleep = {asleep}
        {body}

        def device_module(self):
            module = super().device_module()
            if self.asleep:
                Backend.asleep = False
                # As of a vendor whose device is set up when it is first used.
                module.is_initialized = lambda: hasattr(module, "used")
                set_device = module.set_device
                def first_use(device):
                    module.used = True
                    set_device(device)
                module.set_device = first_use
            return module
"""
ONE_STREAM = """
        def new_stream(self, device=None, /, *, priority=0):
            return self.default_stream(device)
"""
LYING = """
        def query(self, event):
            return True
"""
SYNCHRONOUS = "capabilities = Capabilities(Ordering.SYNCHRONOUS)\n" + ONE_STREAM


def vendor(body: str, asleep: bool = False) -> str:
    return VENDOR.format(body=body.strip(), asleep=asleep)


class TestInAProcess:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (ONE_STREAM, "a new stream has the id of the default stream, 0 on fake:0"),
            pytest.param(
                LYING,
                "an event says that it is done while the work before it is pending",
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_training_does_not_begin(
        self, python: Python, plugins: Any, body: str, reason: str
    ) -> None:
        plugins.add("nova", vendor(body))
        done = python(TRAIN.read_text(), DS_ACCELERATOR="accel_streams:nova")
        assert done.returncode == 1
        error = done.stderr.strip().splitlines()[-1]
        assert "BrokenBackendError: The backend 'nova' of dist-nova 1.0 is refused" in error
        assert f"its streams are not real: {reason}" in error
        assert "`accel-streams check nova`" in error
        assert "https://example.com/nova/issues" in error

    def test_a_device_not_set_up_yet_is_refused_by_initialize(
        self, python: Python, plugins: Any
    ) -> None:
        plugins.add("nova", vendor(ONE_STREAM, asleep=True))
        program = "import deepspeed; print('imported', flush=True)\n" + TRAIN.read_text()
        done = python(program, DS_ACCELERATOR="accel_streams:nova")
        assert done.returncode == 1
        assert "imported" in done.stdout
        assert "is refused, because its streams are not real" in done.stderr.splitlines()[-1]

    @pytest.mark.parametrize(
        ("body", "asleep"),
        [
            ("pass", True),
            pytest.param("pass", False, marks=pytest.mark.slow),
            pytest.param(SYNCHRONOUS, False, marks=pytest.mark.slow),
        ],
    )
    def test_others_train(self, python: Python, plugins: Any, body: str, asleep: bool) -> None:
        plugins.add("nova", vendor(body, asleep))
        done = python(TRAIN.read_text(), DS_ACCELERATOR="accel_streams:nova")
        assert done.returncode == 0, done.stderr
