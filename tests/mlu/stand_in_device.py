"""The stand-in for an MLU, as a device to explore scripts on."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path

from accel_streams.explore._device import FakeDevice

__all__ = ["ENVIRONMENT", "STAND_IN", "MluStandIn", "ShippedMluStandIn"]

STAND_IN = Path(__file__).with_name("stand_in")
"""The folder that holds the stand-in's ``torch_mlu``."""

_PATH = [str(STAND_IN.parent), str(STAND_IN), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]

ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(filter(None, _PATH)), "OMP_NUM_THREADS": "1"}
"""What a process needs to find the stand-in's ``torch_mlu``."""


class MluStandIn(FakeDevice):
    """Under this package's backend for MLUs."""

    name = "mlu"
    device_type = "mlu"
    environment: Mapping[str, str] = ENVIRONMENT | {"DS_ACCELERATOR": "accel_streams:mlu"}

    def prepare(self) -> None:
        """Build or load the simulated device and register it as an MLU."""
        importlib.import_module("torch_mlu")


class ShippedMluStandIn(MluStandIn):
    """Under the accelerator for MLUs that DeepSpeed has itself."""

    environment: Mapping[str, str] = ENVIRONMENT | {"DS_ACCELERATOR": "mlu"}
