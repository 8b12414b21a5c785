"""Train with ZeRO-3 under a stream of the script's own; every gradient is a known number.

Gradient i of step s on rank r is ``(i + 1) * (s + 1) + r`` everywhere, and SGD with a rate of 1
subtracts the average. The argument is JSON: ``{"side": bool, "old_wait": bool, "steps": n}``. With
``old_wait`` a reduction waits for the default stream, as it did up to 0.18.7.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from accel_streams import fake

case: dict[str, Any] = json.loads(sys.argv[1])
accelerator: Any = get_accelerator()
accelerator.set_device(int(os.environ["LOCAL_RANK"]))
rank = int(os.environ["RANK"])
LAYERS, NUMEL = 6, 64


class Constant(torch.nn.Linear):
    """Multiplies its input, which is its number, into the sum of its weights."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return (self.weight * value).sum()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [Constant(NUMEL, 1, bias=False) for _ in range(LAYERS)]
        self.layers: Any = torch.nn.ModuleList(layers)

    def forward(self, values: list[torch.Tensor]) -> torch.Tensor:
        sums = [layer(value) for layer, value in zip(self.layers, values, strict=True)]
        return torch.stack(sums).sum()


model = Model()
for layer in model.layers:
    torch.nn.init.zeros_(layer.weight)
model.to(accelerator.current_device_name())
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": 2 * NUMEL,
        },
        "gradient_clipping": 0.0,
        "steps_per_print": 1 << 30,
    },
)


class DefaultIsCurrent:
    """DeepSpeed's accelerator, as 0.18.7 asked it for the stream that a gradient came from."""

    def __getattr__(self, name: str) -> Any:
        return getattr(accelerator, name)

    def current_stream(self) -> Any:
        current = accelerator.current_stream()
        reduction = engine.optimizer.reduce_and_partition_stream
        return current if current == reduction else accelerator.default_stream()


if case["old_wait"]:
    from deepspeed.runtime.zero import stage3

    name = "_DeepSpeedZeroOptimizer_Stage3__add_grad_to_ipg_bucket"
    add_gradient = getattr(stage3.DeepSpeedZeroOptimizer_Stage3, name)

    def add_with_old_wait(*args: Any, **kwargs: Any) -> None:
        stage3.get_accelerator = DefaultIsCurrent
        try:
            add_gradient(*args, **kwargs)
        finally:
            stage3.get_accelerator = get_accelerator

    setattr(stage3.DeepSpeedZeroOptimizer_Stage3, name, add_with_old_wait)

outer = accelerator.current_stream()
stream = outer
if case["side"]:
    stream = accelerator.Stream()
    fake.name_stream(stream, "side")
    stream.wait_stream(outer)
with accelerator.stream(stream):
    for step in range(case["steps"]):
        values = [
            torch.full((), float((index + 1) * (step + 1) + rank), device=engine.device)
            for index in range(LAYERS)
        ]
        engine.backward(engine(values))
        engine.step()
    accelerator.synchronize()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        accelerator.synchronize()
        parameters = [
            sorted(set(parameter.flatten().tolist())) for parameter in engine.module.parameters()
        ]
with open(f"{os.environ['CASE_RESULT']}.{rank}", "w", encoding="utf-8") as file:
    json.dump(parameters, file)
