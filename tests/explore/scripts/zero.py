"""Train a tiny model with ZeRO-2 and DeepSpeed; one rank may fail in the middle of a step."""

import argparse
import os

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--fail-rank", type=int)
options = parser.parse_args()

accelerator = get_accelerator()
accelerator.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
model = model.to(accelerator.current_device_name())
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters()),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 100},
    },
)
for step in range(options.steps):
    inputs = torch.randn(2, 8).to(accelerator.current_device_name(), torch.bfloat16)
    loss = engine(inputs).float().square().mean()
    if step == 1 and options.fail_rank == engine.global_rank:
        raise RuntimeError("the data of this rank is damaged")
    engine.backward(loss)
    engine.step()
