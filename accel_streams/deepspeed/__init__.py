"""DeepSpeed on the backends of this package: choosing one, its accelerator, and ZeRO's ordering.

Importing this package does not import DeepSpeed.
"""

from __future__ import annotations

from accel_streams.deepspeed._labels import label_streams
from accel_streams.deepspeed._select import install, on_real_accelerator

__all__ = ["install", "label_streams", "on_real_accelerator"]
