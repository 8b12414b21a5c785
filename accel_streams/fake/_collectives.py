"""``torch.distributed`` on the fake device: the backend ``fccl``, over gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from accel_streams.fake._extension import extension

__all__ = ["BACKEND_NAME", "register"]

BACKEND_NAME = "fccl"
_created = 0


def register() -> None:
    """Make ``fccl`` known to ``torch.distributed``, for tensors on the fake device and the CPU."""
    if not dist.is_available() or BACKEND_NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND_NAME, _create, devices=["cpu", "fake"])


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    global _created
    label = f"{BACKEND_NAME} {_created}"
    _created += 1
    gloo: Any = dist.ProcessGroupGloo  # its options are missing from torch's types
    options = gloo._Options()
    # Between processes of one machine; gloo would otherwise resolve the host's name, which may not
    # resolve.
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    transport = gloo(store, rank, size, options)
    return extension().create_communicator(transport, rank, size, label)
