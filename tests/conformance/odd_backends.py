"""The simulated device with fewer means, and with worse manners."""

from __future__ import annotations

import os
import signal
import threading
import types
from typing import Any

import torch

from accel_streams import fake
from accel_streams.backends.cpu_fake import CpuFakeBackend

__all__ = [
    "DyingBackend",
    "FaultyBackend",
    "LeavingAccelerator",
    "NothingBackend",
    "SleepingBackend",
    "StuckBackend",
    "hold_for",
]


def hold_for(stream: Any, seconds: float) -> None:
    """Hold ``stream`` for so long by the host's clock, and by the device's own."""
    gate = fake.hold(stream)
    with torch.fake.stream(stream):  # type: ignore[attr-defined]
        torch.fake._sleep(int(seconds * 1e9))  # type: ignore[attr-defined]
    timer = threading.Timer(seconds, gate.release)
    timer.daemon = True
    timer.start()


class _Unheld(CpuFakeBackend):
    """A device whose streams nobody can hold; its module may have other attributes."""

    hold = None  # type: ignore[assignment]
    delay = None  # type: ignore[assignment]

    def device_module(self) -> Any:
        module = types.ModuleType("torch.fake")
        vars(module).update(vars(super().device_module()))
        self.change(module)
        return module

    def change(self, module: Any) -> None:
        raise NotImplementedError


class SleepingBackend(_Unheld):
    """A device that can be kept busy: its ``_sleep`` takes nanoseconds."""

    def change(self, module: Any) -> None:
        module._sleep = lambda ns: hold_for(torch.fake.current_stream(), ns * 1e-9)  # type: ignore[attr-defined]


class NothingBackend(_Unheld):
    """A device without ``_sleep``."""

    def change(self, module: Any) -> None:
        del module._sleep


class DyingBackend(CpuFakeBackend):
    """A device that takes the process with it when an event is asked."""

    def query(self, event: Any) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().query(event)


class StuckBackend(CpuFakeBackend):
    """A device whose events never answer, whatever is done."""

    def query(self, event: Any) -> bool:
        threading.Event().wait()
        return super().query(event)


class FaultyBackend(CpuFakeBackend):
    """A device whose accelerator DeepSpeed can't call as it does."""

    def accelerator(self) -> Any:
        from accel_streams.deepspeed._accelerator import GenericAccelerator

        class Faulty(GenericAccelerator):
            def device_name(self) -> str:  # type: ignore[override]
                return "fake"

        return Faulty(self)


class LeavingAccelerator(CpuFakeBackend):
    """A device that ends the process when DeepSpeed asks for it."""

    def accelerator(self) -> Any:
        os._exit(7)
