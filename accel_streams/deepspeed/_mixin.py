"""What an accelerator takes from its backend: streams, and the truth about their order."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from accel_streams._backend import Backend, Device, Ordering, Stream
from accel_streams.deepspeed._region import REGION

__all__ = ["EXPORTED_VARIABLES", "StreamsMixin", "backend_in_use", "with_streams"]

EXPORTED_VARIABLES = ("DS_ACCELERATOR", "ACCEL_STREAMS")
"""What the launcher has to carry to other nodes, as the beginnings of names."""


class StreamsMixin:
    """The stream methods of a DeepSpeedAccelerator, through a Backend.

    Placed before one of DeepSpeed's accelerator classes in the bases, so that ``isinstance`` and
    everything else about the device stay DeepSpeed's.
    """

    accel_streams_backend: Backend
    """The backend; its presence marks an accelerator as one of this package's."""

    def is_synchronized_device(self) -> bool:
        """Return whether work is done when the call that launches it returns."""
        return self.accel_streams_backend.capabilities.ordering is Ordering.SYNCHRONOUS

    def resolves_data_dependency(self) -> bool:
        """Return whether conflicting accesses from different streams are ordered already.

        By the device itself, or by this package: inside the methods of ZeRO that it guards. Where
        this is true DeepSpeed leaves out its own waits, so it must never promise too much.
        """
        if REGION.depth:
            return True
        return self.accel_streams_backend.capabilities.ordering is not Ordering.ASYNC

    def stream(self, stream: Stream | None) -> AbstractContextManager[Any]:
        """Make ``stream`` current inside the ``with`` block; None changes nothing."""
        return nullcontext() if stream is None else self.accel_streams_backend.use_stream(stream)

    def current_stream(self, device_index: Device = None) -> Stream:
        """Return the current stream of the device."""
        return self.accel_streams_backend.current_stream(device_index)

    def default_stream(self, device_index: Device = None) -> Stream:
        """Return the default stream of the device, whichever stream is current.

        In those of DeepSpeed's methods that wait for it and mean the stream that trains, it is the
        current one.
        """
        if REGION.default_is_current:
            return self.accel_streams_backend.current_stream(device_index)
        return self.accel_streams_backend.default_stream(device_index)

    def export_envs(self) -> list[str]:
        """Return the beginnings of the names of the variables that other nodes need."""
        inherited: list[str] = super().export_envs()  # type: ignore[misc]
        return [*inherited, *EXPORTED_VARIABLES]


def with_streams(accelerator_class: type, backend: Backend) -> Any:
    """Return a new ``accelerator_class`` object whose streams come from ``backend``."""
    combined = type(
        accelerator_class.__name__,
        (StreamsMixin, accelerator_class),
        {"__doc__": StreamsMixin.__doc__, "__module__": __name__},
    )
    accelerator = combined()
    accelerator.accel_streams_backend = backend
    return accelerator


def backend_in_use() -> Any:
    """Return the backend of DeepSpeed's accelerator, None if that isn't one of this package's."""
    from deepspeed.accelerator import get_accelerator

    return getattr(get_accelerator(), "accel_streams_backend", None)
