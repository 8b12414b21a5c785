"""Names for ZeRO's streams and buffers in traces and race reports."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accel_streams._backend import Backend
from accel_streams.deepspeed._mixin import backend_in_use
from accel_streams.deepspeed._versions import Buckets, buckets_of

if TYPE_CHECKING:
    import torch

__all__ = ["Labels", "can_label", "label_streams"]


def can_label(backend: Backend) -> bool:
    """Return whether ``backend`` takes names: on real devices nothing would show them."""
    return hasattr(backend, "annotate_stream") and hasattr(backend, "annotate_storage")


class Labels:
    """Give names to the reduction stream and to the gradient buffers of one optimizer.

    That is bookkeeping only: the device is given no work.
    """

    def __init__(self, backend: Any, buckets: Buckets) -> None:
        self._backend = backend
        self._buckets = buckets
        self._named: dict[str, weakref.ref[Any]] = {}

    def update(self, optimizer: Any) -> None:
        """Name whatever has been made since the last time."""
        stream = optimizer.reduction_stream
        if stream is not None and "reduction_stream" not in self._named:
            self._named["reduction_stream"] = weakref.ref(optimizer)
            self._backend.annotate_stream(stream, "reduction_stream")
        for label, tensor in self._tensors(optimizer):
            known = self._named.get(label)
            if known is None or known() is not tensor:
                self._named[label] = weakref.ref(tensor)
                self._backend.annotate_storage(tensor, label)

    def _tensors(self, optimizer: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for key in self._buckets.keys(optimizer):
            dtype = "" if key is None else f", {key}".replace("torch.", "")
            for index, tensor in enumerate(self._buckets.buffers(optimizer, key)):
                yield f"ipg_buffer[{index}{dtype}]", tensor
        collected = getattr(optimizer, "grads_in_partition", None)
        if collected is not None:
            yield "grads_in_partition", collected
        for group, gradients in getattr(optimizer, "averaged_gradients", {}).items():
            flat = getattr(gradients, "flat_partition", None)
            if flat is not None:
                yield f"averaged_gradients[{group}]", flat


def label_streams(optimizer: Any) -> None:
    """Name the streams and buffers of a ZeRO-1 or ZeRO-2 ``optimizer`` for traces.

    Done by itself when this package is in charge of DeepSpeed's accelerator. Does nothing on a
    backend that takes no names.
    """
    backend = backend_in_use()
    if backend is not None and can_label(backend):
        Labels(backend, buckets_of(optimizer)).update(optimizer)
