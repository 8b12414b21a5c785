"""The operator that DeepSpeed's default optimizer calls on an MLU."""

from __future__ import annotations

from typing import Any

import torch

from accel_streams.deepspeed._ops import FusedAdam

__all__ = ["register"]

_SCHEMA = (
    "fused_adam(Tensor overflow, Tensor[] grads, Tensor[] params, Tensor[] exp_avgs, "
    "Tensor[] exp_avg_sqs, float learning_rate, float beta1, float beta2, float epsilon, int step, "
    "int mode, int bias_correction, float weight_decay) -> bool"
)

# A library's operators go when it is collected.
_library: Any = None


def register() -> None:
    """Define ``torch.ops.torch_mlu.fused_adam``, in operations of torch."""
    global _library
    make: Any = torch.library.Library  # untyped
    _library = make("torch_mlu", "DEF")
    _library.define(_SCHEMA)
    _library.impl("fused_adam", _fused_adam, "PrivateUse1")


def _fused_adam(
    overflow: torch.Tensor,
    grads: list[torch.Tensor],
    params: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    exp_avg_sqs: list[torch.Tensor],
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> bool:
    FusedAdam.multi_tensor_adam(
        0, overflow, [grads, params, exp_avgs, exp_avg_sqs],
        learning_rate, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay,
    )  # fmt: skip
    return True
