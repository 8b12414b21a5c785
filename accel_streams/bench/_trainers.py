"""What trains in a variant: one object whose call is one training step."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import deepspeed
import torch
import wrapt
from deepspeed.accelerator import real_accelerator
from torch import nn

from accel_streams._backend import Backend
from accel_streams.bench._settings import Setting, Variant
from accel_streams.explore.demo_train import GPT, VOCABULARY

__all__ = ["Trainer", "make_trainer"]

_STOCK_METHODS = (
    "reduce_independent_p_g_buckets_and_remove_grads",
    "reduce_ipg_grads",
    "independent_gradient_partition_epilogue",
    "setup_buckets",
    "backward_prologue",
    "step",
)


@contextlib.contextmanager
def _deepspeed_uses(accelerator: Any) -> Iterator[None]:
    before = real_accelerator.ds_accelerator
    real_accelerator.ds_accelerator = accelerator
    try:
        yield
    finally:
        real_accelerator.ds_accelerator = before


class Trainer:
    """A model, and what trains it; ``step`` trains it by one batch."""

    def __init__(
        self,
        model: Any,
        run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        accelerator: Any,
        close: Callable[[], None],
        optimizer: Any = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.close = close
        self._run = run
        self._accelerator = accelerator

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Make the accelerator of this variant DeepSpeed's, as long as the block runs."""
        return _deepspeed_uses(self._accelerator)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Train by one batch; return the loss, on the device."""
        return self._run(inputs, targets)


def make_trainer(setting: Setting, variant: Variant, backend: Backend, stock: Any) -> Trainer:
    """Return a trainer of the setting's model, the same in every variant.

    ``stock`` is DeepSpeed's own accelerator.
    """
    device = torch.device(stock.current_device_name())
    torch.manual_seed(0)
    model = GPT(setting.layers, setting.width, 16, setting.sequence).to(device)
    if variant.engine != "deepspeed":
        return _torch_trainer(model.to(torch.bfloat16), variant, stock)
    accelerator = backend.accelerator() if variant.own_accelerator else stock
    os.environ["ACCEL_STREAMS_ZERO"] = variant.mode
    with _deepspeed_uses(accelerator):
        engine, optimizer, _, _ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda"),
            config=_config(setting, variant),
        )
    if not variant.own_accelerator:
        _unhook(optimizer)

    def run(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = engine(inputs, targets)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return Trainer(engine.module, run, accelerator, engine.destroy, optimizer)


def _config(setting: Setting, variant: Variant) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": setting.stage,
        "overlap_comm": variant.overlap,
        "contiguous_gradients": True,
        "reduce_bucket_size": setting.bucket,
        "allgather_bucket_size": 500_000_000,
    }
    if setting.persistence is not None:
        zero["stage3_param_persistence_threshold"] = setting.persistence
    return {
        "train_micro_batch_size_per_gpu": setting.batch,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 30,
        # It only measures, and waits for the whole device twice a step.
        "timers": {"throughput": {"enabled": False}},
    }


def _unhook(optimizer: Any) -> None:
    """Give this one optimizer the methods as DeepSpeed defines them, without a hook around."""
    for name in _STOCK_METHODS:
        method = inspect.getattr_static(type(optimizer), name, None)
        if isinstance(method, wrapt.FunctionWrapper):
            setattr(optimizer, name, method.__wrapped__.__get__(optimizer))


def _torch_trainer(model: nn.Module, variant: Variant, accelerator: Any) -> Trainer:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    wrapped: Any
    if variant.engine == "ddp":
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        for block in model.get_submodule("blocks").children():
            fully_shard(block)
        wrapped = fully_shard(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4, fused=True)

    def run(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = wrapped(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Trainer(wrapped, run, accelerator, lambda: None)


def batches(setting: Setting, device: torch.device, rank: int) -> Iterator[tuple[Any, Any]]:
    """Yield random inputs and targets for ever, made before and kept on the device."""
    generator = torch.Generator().manual_seed(1 + rank)
    made = []
    for _ in range(8):
        tokens = torch.randint(
            VOCABULARY, (setting.batch, setting.sequence + 1), generator=generator
        )
        tokens = tokens.to(device)
        made.append((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
    while True:
        yield from made
