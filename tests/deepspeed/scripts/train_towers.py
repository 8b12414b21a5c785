"""Train two towers with DeepSpeed's ZeRO on several streams; an ordinary script but for the streams.

``--producers sides``: each tower runs on a side stream of its own, so one process has two streams
with gradient hooks. ``--producers user``: all on one user stream; with several processes the hooks
of this rank's own parameters run on the stream of ``deepspeed.initialize`` nevertheless.
``--producers one``: a single stream.
"""

from __future__ import annotations

import argparse
import contextlib

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--no-overlap", dest="overlap", action="store_false")
parser.add_argument("--scattered", dest="contiguous", action="store_false")
parser.add_argument("--no-reduce-scatter", dest="reduce_scatter", action="store_false")
parser.add_argument("--oversized", action="store_true")
parser.add_argument("--accumulate", default="fp32")
parser.add_argument("--micro-batches", type=int, default=1)
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--producers", choices=("sides", "user", "one"), default="sides")
parser.add_argument("--skip-edge")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--nan", action="store_true")
options = parser.parse_args()

if options.skip_edge:
    from accel_streams.deepspeed import _ordering

    _ordering.skip_edges.add(options.skip_edge)

WIDTH = 16


class Towers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.second = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.third = torch.nn.Linear(WIDTH, 4 * WIDTH if options.oversized else WIDTH)

    def forward(self, x: torch.Tensor, streams: list[torch.Stream]) -> torch.Tensor:
        current = get_accelerator().current_stream()
        outputs = []
        for tower, stream in zip((self.first, self.second), streams, strict=True):
            stream.wait_stream(current)
            with get_accelerator().stream(stream):
                y = x
                for layer in tower:
                    y = torch.tanh(layer(y))
                outputs.append(y)
        for stream in streams:
            current.wait_stream(stream)
        return (self.third(outputs[0] + outputs[1]).float() ** 2).mean()


def main() -> None:
    deepspeed.init_distributed()
    rank = deepspeed.comm.get_rank()
    torch.manual_seed(0)
    dtype = torch.float32 if options.autocast else torch.bfloat16
    model = Towers().to(dtype)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": options.micro_batches,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {
            "stage": options.stage,
            "overlap_comm": options.overlap,
            "contiguous_gradients": options.contiguous,
            "reduce_scatter": options.reduce_scatter,
            # Two weights and their biases fill a bucket: many reductions in one backward.
            "reduce_bucket_size": 2 * WIDTH * (WIDTH + 1) + WIDTH,
        },
    }
    if options.autocast:
        # The layers of the second tower communicate in float32: two buckets at a time.
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    else:
        config["bf16"] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": options.accumulate}
    # Views that DeepSpeed makes would keep the hooks of this rank's parameters on this stream.
    init = torch.no_grad() if options.producers == "sides" else contextlib.nullcontext()
    with init:
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
    accelerator = get_accelerator()
    outer = accelerator.current_stream()
    step_stream = outer if options.producers == "one" else accelerator.Stream()
    step_stream.wait_stream(outer)
    sides = [accelerator.Stream(), accelerator.Stream()]
    with accelerator.stream(step_stream):
        streams = sides if options.producers == "sides" else [step_stream] * 2
        for step in range(options.steps):
            for micro_batch in range(options.micro_batches):
                scale = 0.1 * (1 + step + micro_batch) + rank
                x = torch.full((4, WIDTH), scale, dtype=dtype, device=engine.device)
                x = x * torch.arange(WIDTH, dtype=dtype, device=engine.device) / 8
                loss = engine(x, streams)
                if options.nan and step == 1:
                    loss = loss * float("nan")
                engine.backward(loss)
                engine.step()


main()
