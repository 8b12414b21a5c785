"""DeepSpeed's accelerator for MLUs, with what its releases got wrong put right.

Up to 0.19.2 its ``initial_seed`` wants an argument and hands it on to a function that takes none,
its ``pin_memory`` lacks ``align_bytes``, and its ``create_graph`` returns nothing. In all of them
its ``device`` returns a context manager where the engine, and in 0.17.4 the set-up of
communication, want a device.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.accelerator import mlu_accelerator
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

from accel_streams.backends import _torch_mlu
from accel_streams.deepspeed import _versions

__all__ = ["MLU_Accelerator"]


class MLU_Accelerator(mlu_accelerator.MLU_Accelerator):  # type: ignore[misc]
    """Take every call that DeepSpeed's abstract class takes, of each release."""

    def device(self, device_index: int | None = None) -> torch.device:
        return torch.device(self.device_name(device_index))

    def initial_seed(self) -> int:
        return int(_mlu().initial_seed())

    def create_graph(self) -> Any:
        return _mlu().MLUGraph()

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> Any:
        return _mlu().cnpx.range_push(msg)

    def range_pop(self, domain: Any = None) -> Any:
        return _mlu().cnpx.range_pop()

    if _versions.leaves_to_the_device(DeepSpeedAccelerator, "pin_memory"):

        def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
            return tensor.pin_memory()

    @property
    def Event(self) -> Any:
        """The class of events, which takes ``blocking`` on every branch of torch_mlu."""
        return _torch_mlu.event_class(_mlu().Event)


def _mlu() -> Any:
    return torch.mlu  # type: ignore[attr-defined]
