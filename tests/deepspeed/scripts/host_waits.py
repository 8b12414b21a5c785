"""Train with ZeRO on one rank, and print how often the host waited, for what and from where.

Arguments: the stage, and "overlap" or "in-order". Waits inside operations that bring a value to the
host (``item()``) are not counted, nor those before the first step.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

os.environ.update(
    {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "accel_streams:cpu_fake"}
)

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from accel_streams import fake

stage, overlap = int(sys.argv[1]), sys.argv[2] == "overlap"
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "bf16": {"enabled": True},
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": overlap,
            "contiguous_gradients": "scattered" not in sys.argv,
            "reduce_bucket_size": 600,
        },
    },
)
stream = get_accelerator().Stream()
stream.wait_stream(get_accelerator().current_stream())
fake.start_trace()
with get_accelerator().stream(stream):
    for _ in range(3):
        loss = engine(torch.ones(4, 16, dtype=torch.bfloat16, device=engine.device)).float().sum()
        engine.backward(loss)
        engine.step()
waits: Counter[str] = Counter()
for record in fake.stop_trace():
    if record[0] == "sync_device":
        waits["device"] += 1
    elif record[0] == "sync_event":
        waits["event"] += 1
    elif record[0] == "sync_stream" and not record[4]:
        waits["stream"] += 1
print(json.dumps(waits))
