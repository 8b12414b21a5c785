"""Train a small model with ZeRO-2, the step under a stream of the script's own."""

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
engine, _, _, _ = deepspeed.initialize(
    model=model,
    config={
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 1500},
    },
)
batch = torch.ones(2, 32, device=engine.device, dtype=torch.bfloat16)
stream = get_accelerator().Stream()
stream.wait_stream(get_accelerator().current_stream())
losses = []
for _ in range(5):
    with get_accelerator().stream(stream):
        loss = engine(batch).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
    losses.append(loss.item())
fell = losses[-1] < losses[0]
# In one write, or the lines of two ranks could mix.
print(f"rank {engine.global_rank} on {engine.device}: loss fell {fell}\n", end="", flush=True)
