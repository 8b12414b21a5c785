"""The simulated device with fewer means: streams that are held by time, or not at all."""

from __future__ import annotations

import threading
import types
from typing import Any

import torch

from accel_streams import fake
from accel_streams.backends.cpu_fake import CpuFakeBackend

__all__ = ["NothingBackend", "SleepingBackend", "hold_for"]


def hold_for(stream: Any, seconds: float) -> None:
    """Hold ``stream`` for so long by the host's clock, and by the device's own."""
    gate = fake.hold(stream)
    with torch.fake.stream(stream):
        torch.fake._sleep(int(seconds * 1e9))
    timer = threading.Timer(seconds, gate.release)
    timer.daemon = True
    timer.start()


class SleepingBackend(CpuFakeBackend):
    """A device that can only be kept busy: its ``_sleep`` takes nanoseconds."""

    hold = None  # type: ignore[assignment]
    delay = None  # type: ignore[assignment]

    def device_module(self) -> Any:
        """Return ``torch.fake`` with a ``_sleep`` that takes its time."""
        module = types.ModuleType("torch.fake")
        vars(module).update(vars(super().device_module()))
        module._sleep = lambda ns: hold_for(torch.fake.current_stream(), ns * 1e-9)
        return module


class NothingBackend(CpuFakeBackend):
    """A device that can't be held: no ``_sleep``, and matrix products take no time."""

    hold = None  # type: ignore[assignment]
    delay = None  # type: ignore[assignment]

    def device_module(self) -> Any:
        """Return ``torch.fake`` without ``_sleep``."""
        module = types.ModuleType("torch.fake")
        vars(module).update(vars(super().device_module()))
        del module._sleep
        return module
