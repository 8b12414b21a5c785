"""Train an attention layer with DeepSpeed's sequence parallelism (Ulysses) on a side stream.

Queries and keys are computed on the stream that the layer was given for overlapping, as
Megatron-DeepSpeed does: each carries an event, which the layer waits for.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["cannot_run", "run"]

HEADS, WIDTH, SEQUENCE, BATCH = 4, 16, 8, 2


class Attention(nn.Module):
    """Attend: (batch, part of the sequence, width) to the same shape."""

    def __init__(self, stream: torch.Stream) -> None:
        super().__init__()
        from deepspeed.sequence.layer import DistributedAttention

        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.stream = stream
        self.distributed = DistributedAttention(
            _local_attention,
            deepspeed.comm.get_world_group(),
            scatter_idx=2,
            gather_idx=1,
            sp_stream=stream,
        )
        parameters = inspect.signature(self.distributed.forward).parameters
        self.arguments = {"batch_dim_idx": 0} if "batch_dim_idx" in parameters else {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention's output."""
        self.stream.wait_stream(get_accelerator().current_stream())
        query, key = (self._project(layer, x) for layer in (self.query, self.key))
        value = _split(self.value(x))
        output: Tensor = self.distributed(query, key, value, **self.arguments)
        return output.reshape(x.shape)

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        with get_accelerator().stream(self.stream):
            projected = _split(layer(x))
            projected.done_event = get_accelerator().Event()  # type: ignore[attr-defined]
            projected.done_event.record(self.stream)  # type: ignore[attr-defined]
        return projected


def _split(x: Tensor) -> Tensor:
    return x.view(BATCH, SEQUENCE, HEADS, WIDTH // HEADS)


def _local_attention(query: Tensor, key: Tensor, value: Tensor, *args: Any) -> Tensor:
    """Attend to the whole sequence with a part of the heads."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous()


def cannot_run() -> str | None:
    """Return why the installed DeepSpeed can't run this on a device with torch's own streams."""
    from deepspeed.sequence import layer

    if "ctx.stream != None" in inspect.getsource(layer):
        return "DeepSpeed asks `ctx.stream != None`, which a plain torch.Stream answers with False"
    return None


def run(settings: Mapping[str, object]) -> None:
    """Train; ``settings``: ``steps``, ``default_stream`` (train on that one), ``skip_edge``."""
    reason = cannot_run()
    if reason is not None:
        raise RuntimeError(f"not runnable: {reason}")
    steps = int(str(settings.get("steps", 3)))
    if settings.get("skip_edge"):
        from accel_streams.deepspeed._ordering import skip_edges

        skip_edges.add(str(settings["skip_edge"]))
    accelerator = get_accelerator()
    accelerator.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    deepspeed.init_distributed()
    torch.manual_seed(0)
    device = accelerator.current_device_name()
    overlapping = accelerator.Stream()
    model = Attention(overlapping).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stream = accelerator.Stream()
    stream.wait_stream(accelerator.current_stream())
    inputs = torch.arange(BATCH * SEQUENCE * WIDTH, dtype=torch.float32).sin()
    on_stream = nullcontext() if settings.get("default_stream") else accelerator.stream(stream)
    with on_stream:
        for step in range(steps):
            x = (inputs * (step + 1)).view(BATCH, SEQUENCE, WIDTH).to(device)
            loss = model(x).pow(2).sum()
            loss.backward()
            # The gradients of two layers were computed on the overlapping stream.
            accelerator.current_stream().wait_stream(overlapping)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.synchronize()
