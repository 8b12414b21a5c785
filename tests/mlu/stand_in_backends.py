"""A backend over torch_mlu that has nothing of its own."""

from __future__ import annotations

from accel_streams.backends.mlu import MluBackend
from accel_streams.backends.privateuse1 import PrivateUse1Backend

__all__ = ["PlainMlu"]


class PlainMlu(PrivateUse1Backend):
    """What a vendor's backend is that mends nothing."""

    name = "mlu"
    device_type = "mlu"
    module = "torch_mlu"
    communication_backend = "cncl"
    visible_devices_env = "MLU_VISIBLE_DEVICES"
    capabilities = MluBackend.capabilities
    description = "MLUs through torch_mlu, taken as it is"
    url = "https://github.com/Cambricon/torch_mlu"
