"""The simulated device with faults, for each of the results that a property may have."""

from __future__ import annotations

from typing import Any, ClassVar

from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.conformance import Inconclusive
from accel_streams.conformance.mutants import Wrapped
from accel_streams.conformance.mutants._wrapped import WrappedModule

__all__ = ["Lossy"]


class _Module(WrappedModule):
    ExternalStream: Any = None


class Lossy(Wrapped):
    """A backend some of whose properties fail, one of them as it declares."""

    name = "lossy"
    device_type = "fake"
    # IDN-09 fails as declared, ORD-11 fails, IDN-12 needs what the module lacks.
    declared: ClassVar[dict[str, str]] = {"IDN-09": "the second stream is the first"}

    def __init__(self) -> None:
        super().__init__(CpuFakeBackend())
        self.made: list[Any] = []
        self.module = _Module(self)

    def new_stream(self, device: Any = None, /, *, priority: int = 0) -> Any:
        self.made.append(super().new_stream(device))
        return self.made[len(self.made) // 2]

    def wait(self, stream: Any, event: Any) -> None:
        if event.stream is None:
            raise RuntimeError("never recorded")
        super().wait(stream, event)

    def elapsed_time(self, start: Any, end: Any) -> float:
        raise Inconclusive("the clock is being set")
