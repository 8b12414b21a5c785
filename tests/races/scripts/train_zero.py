"""Train a small model with ZeRO so that gradient hooks run on two streams, on any number of ranks.

The step runs under a stream of its own, while DeepSpeed was initialised under the default one.
DeepSpeed holds views of its parameters that keep the hooks of a rank's own partition on the stream
of the initialisation; letting go of some of the views gives two producer streams even on a single
rank, in turns within a bucket. Each layer is applied twice, so that its gradient is a sum, which is
computed on the stream of its hook.
"""

from __future__ import annotations

import argparse
import os
import random

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

WIDTH = 24
BUCKET = 1400  # a hidden layer's weight fits twice, the oversized one not once

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--stage", type=int, choices=(1, 2), required=True)
parser.add_argument("--overlap", type=int, choices=(0, 1), required=True)
parser.add_argument("--contiguous", type=int, choices=(0, 1), required=True)
parser.add_argument("--producers", type=int, default=0, help="seed: which hooks change streams")
parser.add_argument("--steps", type=int, default=3)
options = parser.parse_args()

accelerator = get_accelerator()
accelerator.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device(accelerator.current_device_name())
torch.manual_seed(0)
layers: list[nn.Module] = []
for _ in range(5):
    hidden = nn.Linear(WIDTH, WIDTH)
    layers += [hidden, nn.Tanh(), hidden, nn.Tanh()]
oversized = [nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh()]
model = nn.Sequential(*layers[:12], *oversized, *oversized, *layers[12:]).to(device)
assert max(parameter.numel() for parameter in model.parameters()) > BUCKET

engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": options.stage,
            "overlap_comm": bool(options.overlap),
            "contiguous_gradients": bool(options.contiguous),
            "reduce_bucket_size": BUCKET,
        },
        "steps_per_print": 1 << 30,
    },
)
choose = random.Random(options.producers)
for parameter in engine.module.parameters():
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is not None and choose.random() < 0.5:
        mapping.lp_fragment = mapping.lp_fragment.detach()

generator = torch.Generator().manual_seed(1 + engine.global_rank)
stream = accelerator.Stream()
stream.wait_stream(accelerator.current_stream())
with accelerator.stream(stream):
    for _ in range(options.steps):
        inputs = torch.randn(4, WIDTH, generator=generator).to(device, torch.bfloat16)
        loss = engine(inputs).float().square().mean()
        engine.backward(loss)
        engine.step()
accelerator.synchronize()
