"""Cambricon MLUs, through ``torch.mlu`` of torch_mlu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from accel_streams._backend import Capabilities, Device, Ordering, Stream
from accel_streams.backends.privateuse1 import PrivateUse1Backend

if TYPE_CHECKING:
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

__all__ = ["MluBackend"]


class MluBackend(PrivateUse1Backend):
    """Drive MLUs; DeepSpeed keeps its own MLU accelerator as the base class."""

    name = "mlu"
    device_type = "mlu"
    module = "torch_mlu"
    communication_backend = "cncl"
    visible_devices_env = "MLU_VISIBLE_DEVICES"
    capabilities = Capabilities(Ordering.ASYNC, pool_size=32)
    description = "Cambricon MLUs through torch_mlu"
    url = "https://github.com/Cambricon/torch_mlu"

    def default_stream(self, device: Device = None, /) -> Stream:
        """Return the default stream of ``device``.

        In torch_mlu for torch 2.1, ``torch.mlu.default_stream`` returns the current stream. The
        binding it should have called is there in every branch, so ask that.
        """
        module = self.device_module()
        import torch_mlu

        binding = getattr(torch_mlu._MLUC, "_mlu_getDefaultStream", None)
        if binding is None:
            return module.default_stream(device)
        module._lazy_init()
        stream_id, device_index, device_type = binding(_index(module, device))
        return module.Stream(
            stream_id=stream_id, device_index=device_index, device_type=device_type
        )

    def accelerator(self) -> DeepSpeedAccelerator:
        """Return DeepSpeed's MLU accelerator with its streams taken from here."""
        # DeepSpeed's module uses torch.mlu without importing torch_mlu.
        self.device_module()
        from deepspeed.accelerator.mlu_accelerator import MLU_Accelerator

        from accel_streams.deepspeed._mixin import with_streams

        return with_streams(MLU_Accelerator, self)


def _index(module: Any, device: Device) -> int:
    """Return the index of ``device``, of the current device when it is left open."""
    if isinstance(device, int):
        return device
    if device is not None:
        import torch

        # torch types the index as a number, and leaves it None for "the current device".
        index = cast("int | None", torch.device(device).index)
        if index is not None:
            return index
    return int(module.current_device())
