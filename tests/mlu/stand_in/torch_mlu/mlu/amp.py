"""Mixed precision, as torch has it for any device."""

from __future__ import annotations

import functools

import torch

__all__ = ["GradScaler", "autocast"]

autocast = functools.partial(torch.autocast, "mlu")
GradScaler = functools.partial(torch.amp.GradScaler, "mlu")
