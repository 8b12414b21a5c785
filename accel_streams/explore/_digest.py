"""Collect what a training script trains, and reduce it to one digest and a list of losses.

Nothing here reads a tensor back while the script runs: that would synchronise the device and so
hide the very races that are looked for. References and small copies are kept instead, and read
after the device has finished.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import wrapt

if TYPE_CHECKING:
    import torch

__all__ = ["Collector", "digest"]


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def _tensor_bytes(tensor: torch.Tensor) -> Any:
    """Return the elements of `tensor` as a buffer in row-major order, without needing numpy."""
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    nbytes = host.numel() * host.element_size()
    if nbytes == 0:
        return b""
    # string_at copies, so the buffer does not depend on `host` staying alive.
    return ctypes.string_at(host.data_ptr(), nbytes)


def _update(hasher: _Hash, name: str, value: object) -> None:
    import torch

    hasher.update(f"{name}=".encode())
    if isinstance(value, torch.Tensor):
        hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
        hasher.update(_tensor_bytes(value))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _update(hasher, str(key), value[key])
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _update(hasher, str(index), item)
    elif isinstance(value, (bool, int, float, str, bytes, type(None))):
        hasher.update(repr(value).encode())
    else:
        # Any other object may print its address; its type is all that can be compared.
        hasher.update(type(value).__qualname__.encode())
    hasher.update(b";")


def digest(items: Iterator[tuple[str, object]]) -> str:
    """Return the SHA-256, in hex, of named tensors, numbers and containers of them, in order."""
    hasher = hashlib.sha256()
    for name, value in items:
        _update(hasher, name, value)
    return hasher.hexdigest()


class Collector:
    """Remember engines, optimizers and losses of the script that runs in this process."""

    def __init__(self) -> None:
        # Strong references: a script may drop its engine before the digest is taken.
        self.engines: list[Any] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._optimizer_steps = 0
        self._losses: list[tuple[torch.Tensor, int]] = []
        self._inside_engine = 0

    def install(self) -> None:
        """Start to collect, for the rest of the process."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._stepped)
        torch.Tensor.backward = self._counting_backward(torch.Tensor.backward)  # type: ignore[method-assign]
        wrapt.register_post_import_hook(self._wrap_engine, "deepspeed.runtime.engine")

    @property
    def empty(self) -> bool:
        """Tell whether the script trained nothing that can be compared."""
        return not self.engines and not self.optimizers

    @property
    def steps(self) -> int:
        """Count the training steps: the engines' own count, else the optimizers' steps."""
        if self.engines:
            return max(int(engine.global_steps) for engine in self.engines)
        return self._optimizer_steps // max(1, len(self.optimizers))

    @property
    def skipped_steps(self) -> int:
        """Count the steps that DeepSpeed left out, over all engines."""
        return sum(int(getattr(engine, "skipped_steps", 0)) for engine in self.engines)

    def losses(self) -> list[float]:
        """Read back the loss of every backward pass; waits for the device.

        One that the script has overwritten since is NaN.
        """
        return [
            float(loss) if loss._version == version else math.nan for loss, version in self._losses
        ]

    def digest(self) -> str:
        """Digest all parameters, buffers and optimizer state; waits for the device."""
        return digest(self._items())

    def _items(self) -> Iterator[tuple[str, object]]:
        for index, engine in enumerate(self.engines):
            prefix = f"engine{index}"
            for name, parameter in engine.module.named_parameters():
                yield f"{prefix}.{name}", parameter
                # ZeRO-3 leaves an empty parameter and keeps this rank's part beside it.
                if getattr(parameter, "ds_tensor", None) is not None:
                    yield f"{prefix}.{name}.ds_tensor", parameter.ds_tensor
            for name, buffer in engine.module.named_buffers():
                yield f"{prefix}.{name}", buffer
            yield f"{prefix}.global_steps", int(engine.global_steps)
        for index, optimizer in enumerate(self._all_optimizers()):
            for group_index, group in enumerate(optimizer.param_groups):
                for parameter_index, parameter in enumerate(group["params"]):
                    prefix = f"optimizer{index}.{group_index}.{parameter_index}"
                    yield prefix, parameter
                    yield f"{prefix}.state", optimizer.state.get(parameter, {})

    def _all_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return those that stepped, and those inside engines that may have skipped every step."""
        import torch

        optimizers = list(self.optimizers)
        for engine in self.engines:
            inner = engine.optimizer
            for _ in range(3):  # DeepSpeed wraps an optimizer once or twice, and names it the same
                if isinstance(inner, torch.optim.Optimizer):
                    if not any(inner is known for known in optimizers):
                        optimizers.append(inner)
                    break
                inner = getattr(inner, "optimizer", None)
        return optimizers

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizer_steps += 1
        if not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)

    def _keep_loss(self, loss: object) -> None:
        import torch

        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            # No copy: it would be one operation more than the script has by itself, and a schedule
            # that is named by numbers of operations would mean another one without us.
            self._losses.append((loss.detach(), loss._version))

    def _counting_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(backward)
        def wrapper(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if not self._inside_engine:
                self._keep_loss(tensor)
            return backward(tensor, *args, **kwargs)

        return wrapper

    def _wrap_engine(self, module: Any) -> None:
        def initialised(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
            wrapped(*args, **kwargs)
            self.engines.append(instance)

        def backward(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            # The engine scales the loss before it calls Tensor.backward; keep the script's own.
            self._keep_loss(args[0] if args else kwargs.get("loss"))
            self._inside_engine += 1
            try:
                return wrapped(*args, **kwargs)
            finally:
                self._inside_engine -= 1

        wrapt.wrap_function_wrapper(module, "DeepSpeedEngine.__init__", initialised)
        wrapt.wrap_function_wrapper(module, "DeepSpeedEngine.backward", backward)
