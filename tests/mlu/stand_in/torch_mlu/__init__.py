"""Stand in for torch_mlu, Cambricon's package, on the simulated device: for tests alone.

Importing it gives torch the device type ``mlu``, the module ``torch.mlu`` and the communication
``cncl``, under the names that torch_mlu has for them. ``TORCH_MLU_STAND_IN`` chooses which branch's
faults it has; see ``_branch``. It was written from the signatures and the behaviour of the public
sources that docs/mlu.md lists, and shares no code with them.
"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import DefaultDeviceType

from accel_streams import fake
from accel_streams.fake._api import enable_as

if fake.is_enabled():
    raise RuntimeError(
        "The stand-in for torch_mlu can't be used beside the device 'fake': torch has one place "
        "for both."
    )

from torch_mlu import _MLUC, _branch, _ops, mlu

__all__ = ["_MLUC", "mlu"]

__version__ = f"stand-in for {_branch.NAME}"

enable_as("mlu", mlu, mlu.cncl.register)
_ops.register()
DefaultDeviceType.set_device_type("mlu")
torch.version.mlu = None  # type: ignore[attr-defined]
