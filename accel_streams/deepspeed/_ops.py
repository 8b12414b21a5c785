"""DeepSpeed's op builders for a device that DeepSpeed has no kernels for.

Ops that run on the host are DeepSpeed's own; FusedAdam, which its default optimizer needs, is
written in torch; every other op is a builder that says it isn't there when it is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["op_builder", "op_builder_package"]

# They work on host memory, wherever the model lives. Not every release has all of them.
_HOST_OPS = frozenset(
    {
        "AsyncIOBuilder",
        "CPUAdagradBuilder",
        "CPUAdamBuilder",
        "CPULionBuilder",
        "PinMemoryBuilder",
    }
)


def op_builder_package() -> str:
    """Return the package whose builders DeepSpeed lists for the device."""
    try:
        # Present in a checkout of DeepSpeed; another project's op_builder lacks the mark.
        from op_builder import __deepspeed__  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        return "deepspeed.ops.op_builder.cpu"
    return "op_builder.cpu"


@cache
def op_builder(class_name: str, device_type: str) -> type:
    """Return the builder class called ``class_name`` for ``device_type``."""
    package: Any = importlib.import_module(op_builder_package())
    if class_name in _HOST_OPS and hasattr(package, class_name):
        found: type = getattr(package, class_name)
        return found
    if class_name == "FusedAdamBuilder":
        return _torch_builder(package, "fused_adam", FusedAdam)
    return _missing_builder(package, class_name, device_type)


class FusedAdam:
    """Adam with the signature of DeepSpeed's kernel, in torch operations."""

    @staticmethod
    def multi_tensor_adam(
        chunk_size: int,
        noop_flag: torch.Tensor,
        tensor_lists: Sequence[Sequence[torch.Tensor]],
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: int,
        adam_w_mode: int,
        bias_correction: int,
        weight_decay: float,
        *unused: object,
    ) -> None:
        """Update the parameters and moments in place; ``tensor_lists`` is grads, params, m, v.

        As in the kernel, the arithmetic is in float32 whatever the tensors are.
        """
        correction1 = 1 - beta1**step if bias_correction else 1.0
        correction2 = 1 - beta2**step if bias_correction else 1.0
        for grad, param, first, second in zip(*tensor_lists, strict=True):
            p, g, m, v = param.float(), grad.float(), first.float(), second.float()
            if not adam_w_mode:
                g = g + weight_decay * p
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            update = (m / correction1) / ((v / correction2).sqrt() + epsilon)
            if adam_w_mode:
                update = update + weight_decay * p
            param.copy_(p - lr * update)
            first.copy_(m)
            second.copy_(v)


def _torch_builder(package: Any, name: str, module: type) -> type:
    """Return a builder that has nothing to build."""

    def init(self: Any) -> None:
        package.NotImplementedBuilder.__init__(self, name)

    return type(
        "FusedAdamBuilder",
        (package.NotImplementedBuilder,),
        {
            "BUILD_VAR": "DS_BUILD_FUSED_ADAM",
            "NAME": name,
            "__init__": init,
            "load": lambda self, verbose=True: module,
        },
    )


def _missing_builder(package: Any, class_name: str, device_type: str) -> type:
    def load(self: Any, verbose: bool = True) -> None:
        raise NotImplementedError(
            f"DeepSpeed's op {class_name.removesuffix('Builder')!r} has no implementation for the "
            f"device {device_type!r}. Choose a configuration that does not need it."
        )

    return type(
        "NotImplementedBuilder",
        (package.NotImplementedBuilder,),
        {
            "load": load,
            # DeepSpeed loads some ops when they are compatible, without having been asked to.
            "is_compatible": lambda self, verbose=False: False,
        },
    )
