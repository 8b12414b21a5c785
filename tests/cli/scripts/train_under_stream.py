"""Train with ZeRO-2 and overlapping communication, each step under one stream of the user's."""

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

deepspeed.init_distributed()
accelerator = get_accelerator()
engine, *_ = deepspeed.initialize(
    model=torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(16))),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 10_000},
    },
)
stream = accelerator.Stream()
stream.wait_stream(accelerator.current_stream())
with accelerator.stream(stream):
    for _ in range(2):
        inputs = torch.randn(4, 64, device=engine.device, dtype=torch.bfloat16)
        loss = engine(inputs).float().square().mean()
        engine.backward(loss)
        engine.step()
accelerator.synchronize()
