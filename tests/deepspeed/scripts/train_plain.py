"""The shortest training script: it imports torch and DeepSpeed, and knows of nothing else."""

import deepspeed
import torch

engine, _, _, _ = deepspeed.initialize(
    model=torch.nn.Linear(8, 8),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    },
)
loss = engine(torch.ones(2, 8, device=engine.device, dtype=torch.bfloat16)).float().pow(2).sum()
engine.backward(loss)
engine.step()
finite = loss.isfinite().item()
# In one write, or the lines of two ranks could mix.
print(
    f"trained on {engine.device} rank {engine.global_rank} loss is finite {finite}\n",
    end="",
    flush=True,
)
