"""``torch.distributed`` on MLUs: the backend ``cncl``, for tensors on the device alone."""

from __future__ import annotations

import torch.distributed as dist

from accel_streams.fake import _collectives

__all__ = ["register"]


def register() -> None:
    """Make ``cncl`` known to ``torch.distributed``."""
    if dist.is_available() and not hasattr(dist.Backend, "CNCL"):
        dist.Backend.register_backend("cncl", _collectives._create, devices=["mlu"])
