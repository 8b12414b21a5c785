"""Which MLU is current."""

from __future__ import annotations

from typing import Any

import torch

import torch_mlu

__all__ = [
    "current_device",
    "device",
    "device_count",
    "device_of",
    "index_of",
    "set_device",
    "synchronize",
]


def index_of(device: Any) -> int:
    """Return the index of ``device``; None or no index in it: of the current device."""
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "mlu":
            raise ValueError(f"expected an mlu device, got {device}")
        # torch types the index as a number.
        index: int | None = device.index
        return current_device() if index is None else index
    if device is None:
        return current_device()
    raise ValueError(f"expected a device, its index or None, got {device!r}")


def current_device() -> int:
    torch.mlu._lazy_init()  # type: ignore[attr-defined]
    return torch_mlu._MLUC._mlu_getDevice()


def device_count() -> int:
    return torch_mlu._MLUC._mlu_getDeviceCount()


def set_device(device: Any) -> None:
    index = index_of(device)
    if index >= 0:
        torch_mlu._MLUC._mlu_setDevice(index)


class device:
    """Make a device current inside the block; a negative index changes nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = current_device()
            set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        if self.prev_idx >= 0:
            set_device(self.prev_idx)


class device_of(device):
    """Make the device of a tensor current inside the block."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.device.type == "mlu" else -1)


def synchronize(device: Any = None) -> None:
    torch.mlu._lazy_init()  # type: ignore[attr-defined]
    before = current_device()
    set_device(index_of(device))
    try:
        torch_mlu._MLUC._mlu_synchronize()
    finally:
        set_device(before)
