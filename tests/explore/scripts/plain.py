"""An ordinary script without DeepSpeed: one optimizer, on the CPU."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument(
    "--fail", choices=["crash", "exit", "hang", "leave", "stop", "workers", "signal"]
)
parser.add_argument("--fail-rank", type=int, default=1)
parser.add_argument("--nondeterministic", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(options.steps):
    inputs = torch.randn(8, 4)
    if options.nondeterministic:
        inputs += int.from_bytes(os.urandom(2), "little") / 65536
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("rank", os.environ["RANK"], "done")
