"""Cambricon MLUs, through ``torch.mlu`` of torch_mlu."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accel_streams._backend import Capabilities, Device, Event, Ordering, Stream
from accel_streams.backends import _torch_mlu
from accel_streams.backends.privateuse1 import PrivateUse1Backend

if TYPE_CHECKING:
    import torch
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

__all__ = ["MluBackend"]


class MluBackend(PrivateUse1Backend):
    """Drive MLUs; DeepSpeed keeps its own MLU accelerator as the base class.

    A stream is a ``torch.mlu.Stream``; the methods that take one also take the ``torch.Stream``
    that torch's general functions return, and raise TypeError for anything else.
    """

    name = "mlu"
    device_type = "mlu"
    module = "torch_mlu"
    communication_backend = "cncl"
    visible_devices_env = "MLU_VISIBLE_DEVICES"
    # torch_mlu has as many for each of four priorities and each device, handed out in turn.
    capabilities = Capabilities(Ordering.ASYNC, pool_size=32)
    description = "Cambricon MLUs through torch_mlu"
    url = "https://github.com/Cambricon/torch_mlu"

    def default_stream(self, device: Device = None, /) -> Stream:
        """Return the default stream of ``device``, whichever stream is current."""
        self.device_module()
        return _torch_mlu.default_stream(device)

    def use_stream(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make ``stream`` current inside the ``with`` block."""
        return super().use_stream(_torch_mlu.as_mlu_stream(stream))

    def new_event(self, *, timing: bool = False) -> Event:
        """Return an event that has not been recorded."""
        return _torch_mlu.event_class(self.device_module().Event)(enable_timing=timing)

    def record(self, event: Event, stream: Stream) -> None:
        """Make ``event`` stand for everything submitted to ``stream`` so far."""
        event.record(_torch_mlu.as_mlu_stream(stream))

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of ``stream`` wait for ``event``."""
        _torch_mlu.as_mlu_stream(stream).wait_event(event)

    def keep_alive(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep the memory of ``tensor`` from reuse until the work now on ``stream`` is done."""
        tensor.record_stream(_torch_mlu.as_mlu_stream(stream))

    def accelerator(self) -> DeepSpeedAccelerator:
        """Return DeepSpeed's MLU accelerator, mended, with its streams taken from here."""
        # DeepSpeed's module uses torch.mlu without importing torch_mlu.
        self.device_module()
        from accel_streams.deepspeed._mixin import with_streams
        from accel_streams.deepspeed._mlu import MLU_Accelerator

        return with_streams(MLU_Accelerator, self)
