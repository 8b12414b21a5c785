"""Train parameters whose gradients are known numbers, each on a stream of the caller's choice.

A gradient hook runs on the stream on which its parameter's AccumulateGrad node was made, so a node
is made, and held, for each parameter before DeepSpeed sees the model: any stream may produce any
gradient, in every release and on any number of ranks. Gradient i of step s on rank r is
``value * (s + 1) + r`` everywhere, and SGD with a rate of 1 subtracts the average: the right
parameters are whole numbers that can be computed by hand.

The only argument is JSON; what a parameter is, and the result, are in ``bucket_cases.py``.
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
if case["skip_edge"]:
    from accel_streams.deepspeed import _ordering

    _ordering.skip_edges.add(case["skip_edge"])
accelerator: Any = get_accelerator()
accelerator.set_device(int(os.environ["LOCAL_RANK"]))
rank = int(os.environ["RANK"])
# B before A, so that under the schedule "lifo" A and the reduction go first.
names = sorted({name for *_, name in case["parameters"]} - {"-"}, reverse=True)
streams = {name: accelerator.Stream() for name in names}
for name, stream in streams.items():
    fake.name_stream(stream, name)
streams["-"] = accelerator.current_stream()


class Float32(torch.nn.Linear):
    """Not on DeepSpeed's list of what is safe in lower precision: communicates in float32."""


class Work(torch.autograd.Function):
    """Give a gradient of one known number, after a computation of known length."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight, value)
        return weight.detach().float().sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        weight, value = ctx.saved_tensors
        if case["compute_ns"]:
            torch.fake._sleep(case["compute_ns"])  # type: ignore[attr-defined]
        return torch.ones_like(weight) * value, None


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kinds = {"bf16": torch.nn.Linear, "fp32": Float32}
        self.layers: Any = torch.nn.ModuleList(
            kinds[dtype](numel, 1, bias=False) for numel, dtype, _ in case["parameters"]
        )

    def forward(self, values: list[torch.Tensor]) -> torch.Tensor:
        outer = accelerator.current_stream()
        sums: list[Any] = [None] * len(values)
        for stream in streams.values():
            stream.wait_stream(outer)
        # Last one first: the backward then comes to parameter 0 first.
        for index in reversed(range(len(values))):
            with accelerator.stream(streams[case["parameters"][index][2]]):
                weight = self.layers[index].weight
                sums[index] = Work.apply(weight, values[index])  # type: ignore[no-untyped-call]
        for stream in streams.values():
            outer.wait_stream(stream)
        return torch.stack(sums).sum()


model = Model()
for layer in model.layers:
    torch.nn.init.zeros_(layer.weight)
model.to(accelerator.current_device_name())
nodes: list[Any] = []
for layer, (_, _, name) in zip(model.layers, case["parameters"], strict=True):
    with accelerator.stream(streams[name]):
        view: Any = layer.weight.view_as(layer.weight)
        nodes.append(view.grad_fn.next_functions[0][0])
accelerator.synchronize()

config: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {
        "stage": case["stage"],
        "overlap_comm": case["overlap"],
        "contiguous_gradients": True,
        "reduce_bucket_size": case["bucket"],
    },
    "gradient_clipping": 0.0,
    "steps_per_print": 1 << 30,
}
if case["autocast"]:
    config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config
)
optimizer = engine.optimizer


class NeverRemembers(set):  # type: ignore[type-arg]
    """The streams that filled a bucket, as far as 0.19.2 and before knew them: not at all."""

    def add(self, stream: Any) -> None:
        pass


if case["old_wait"]:
    for bucket in getattr(optimizer, "ipg_buckets", {}).values():
        if hasattr(bucket, "copy_streams"):
            bucket.copy_streams = NeverRemembers()

if case["reset_index"]:
    reduce_gradients = optimizer.reduce_ipg_grads

    def reduce_and_reset(*args: Any, **kwargs: Any) -> None:
        reduce_gradients(*args, **kwargs)
        for bucket in optimizer.ipg_buckets.values():
            bucket.index = 0

    optimizer.reduce_ipg_grads = reduce_and_reset

if case["communicate_ns"]:
    reduce_bucket = optimizer.average_tensor

    def reduce_slowly(*args: Any, **kwargs: Any) -> None:
        reduce_bucket(*args, **kwargs)
        with accelerator.stream(optimizer.reduction_stream):
            torch.fake._sleep(case["communicate_ns"])  # type: ignore[attr-defined]

    optimizer.average_tensor = reduce_slowly

gates: list[fake.Gate] = []
if case["hold"]:
    end_backward = optimizer.independent_gradient_partition_epilogue

    def let_go() -> None:
        # Every hook has been submitted, and no reduction has run. Each question makes the device
        # run one operation, of those that do not wait for a reduction.
        for name, stream in streams.items():
            for _ in range(2000 if name != "-" else 0):
                if stream.query():
                    break
        for gate in gates:
            gate.release()
        end_backward()

    optimizer.independent_gradient_partition_epilogue = let_go

makespans = []
for step in range(case["steps"]):
    values = [
        torch.full((), float((index + 1) * (step + 1) + rank), device=engine.device)
        for index in range(len(case["parameters"]))
    ]
    loss = engine(values)
    accelerator.synchronize()
    began = fake.virtual_time()
    if case["hold"]:
        gates.append(fake.hold(optimizer.reduction_stream))
    engine.backward(loss)
    accelerator.synchronize()
    makespans.append(fake.virtual_time() - began)
    engine.step()
accelerator.synchronize()
result = {
    "parameters": [sorted(set(layer.weight.flatten().tolist())) for layer in model.layers],
    "makespans": makespans,
}
with open(f"{os.environ['CASE_RESULT']}.{rank}", "w", encoding="utf-8") as file:
    json.dump(result, file)
