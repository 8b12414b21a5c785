# mypy: disable-error-code="attr-defined"
"""Compute gradients on a side stream of the simulated device; no DeepSpeed."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--forget-to-wait", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
torch.fake.set_device(int(os.environ["LOCAL_RANK"]))
parameter = torch.nn.Parameter(torch.randn(8, device="fake"))
optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
gradient = torch.zeros_like(parameter)
parameter.grad = gradient
side, main = torch.fake.Stream(), torch.fake.current_stream()
for _ in range(3):
    side.wait_stream(main)
    with torch.fake.stream(side):
        gradient.copy_(parameter.detach() * 2)
    if not options.forget_to_wait:
        main.wait_stream(side)
    optimizer.step()
    main.wait_stream(side)
