"""Train two towers with DeepSpeed's ZeRO: an ordinary script, but for the streams.

``--producers sides``: each tower runs on a side stream of its own, so one process has two streams
with gradient hooks. ``--producers user``: all on one user stream; with several processes the hooks
of this rank's own parameters run on the stream of ``deepspeed.initialize`` nevertheless, up to
0.16.5 all of them. ``--producers one``: a single stream.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from packaging.version import Version

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--no-overlap", dest="overlap", action="store_false")
parser.add_argument("--scattered", dest="contiguous", action="store_false")
parser.add_argument("--no-reduce-scatter", dest="reduce_scatter", action="store_false")
parser.add_argument("--oversized", action="store_true")
parser.add_argument("--accumulate", default="fp32")
parser.add_argument("--micro-batches", type=int, default=1)
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--float32", action="store_true", help="in place of bfloat16")
parser.add_argument("--producers", choices=("sides", "user", "one"), default="sides")
parser.add_argument("--skip-edge")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--nan", action="store_true")
parser.add_argument("--user-hook", action="store_true", help="one that reads gradients")
parser.add_argument("--coalesce", action="store_true", help="reduce after the backward")
parser.add_argument("--step-apart", action="store_true", help="on a stream that does not wait")
options = parser.parse_args()

if options.skip_edge:
    from accel_streams.deepspeed import _ordering

    _ordering.skip_edges.add(options.skip_edge.replace("_", " "))

WIDTH = 16
KEEPS_NO_NODES = Version("0.16.6") <= Version(deepspeed.__version__)


class Float32Linear(torch.nn.Linear):
    """Not on DeepSpeed's list of what is safe in lower precision: communicates in float32."""


class Towers(torch.nn.Module):
    """Two towers, layer by layer in turn, so that their gradients come in turn as well."""

    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.first = torch.nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(6))
        if options.autocast:
            linear = Float32Linear
        self.second = torch.nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(6))
        if options.oversized:
            # Without biases, so that the next gradient comes from the other tower.
            self.second[2] = linear(WIDTH, 4 * WIDTH, bias=False)
            self.second[3] = linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, streams: list[torch.Stream]) -> torch.Tensor:
        current = get_accelerator().current_stream()
        outputs = [x, x]
        for stream in streams:
            stream.wait_stream(current)
        for layers in zip(self.first, self.second, strict=True):
            for tower, (layer, stream) in enumerate(zip(layers, streams, strict=True)):
                with get_accelerator().stream(stream):
                    outputs[tower] = torch.tanh(layer(outputs[tower]))
        for stream in streams:
            current.wait_stream(stream)
        # Products: a sum would hand one and the same gradient to both streams.
        return (outputs[0].float() * outputs[1].float()).pow(2).mean()


def use_memory(streams: list[torch.Stream]) -> None:
    """Allocate on each stream, as whoever prepares the next batch there might."""
    for stream in streams:
        with get_accelerator().stream(stream):
            for numel in (WIDTH * WIDTH, 2 * WIDTH * (WIDTH + 1) + WIDTH, 8 * WIDTH * WIDTH):
                torch.zeros(numel, device=get_accelerator().current_device_name())


def hold_nodes(model: Towers, streams: list[torch.Stream]) -> list[Any]:
    """Return the node of each parameter's gradient, made on its tower's stream: hooks run there.

    Up to 0.16.5 DeepSpeed keeps the nodes that it finds, or else makes, when it is initialised. It
    finds none of parameters in bfloat16: to save memory it makes them float32 for a moment.
    """
    nodes: list[Any] = []
    for tower, stream in zip((model.first, model.second), streams, strict=True):
        with get_accelerator().stream(stream):
            for param in tower.parameters():
                view: Any = param.view_as(param)
                nodes.append(view.grad_fn.next_functions[0][0])
    return nodes


def main() -> None:
    deepspeed.init_distributed()
    rank = deepspeed.comm.get_rank()
    torch.manual_seed(0)
    in_bf16 = KEEPS_NO_NODES and not options.autocast and not options.float32
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    model = Towers().to(dtype)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": options.micro_batches,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        # From the third step on it makes the host wait for the device, which hides missing waits.
        "timers": {"throughput": {"enabled": False}},
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
        # A bucket for each of two dtypes.
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    else:
        config["bf16"] = {"enabled": in_bf16}
        config["data_types"] = {"grad_accum_dtype": options.accumulate}
    accelerator = get_accelerator()
    model.to(accelerator.current_device_name())
    sides = [accelerator.Stream(), accelerator.Stream()]
    nodes = hold_nodes(model, sides) if options.producers == "sides" else []
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    del nodes
    if options.producers == "sides":
        # Views that DeepSpeed makes keep the hooks of this rank's parameters on this stream.
        for param in model.parameters():
            mapping = getattr(param, "_hp_mapping", None)
            if mapping is not None:
                mapping.lp_fragment = mapping.lp_fragment.detach()
    norms = []
    if options.user_hook:
        for param in model.parameters():
            param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda param: norms.append(param.grad.float().norm())
            )
    outer = accelerator.current_stream()
    step_stream = outer if options.producers == "one" else accelerator.Stream()
    step_stream.wait_stream(outer)
    apart = accelerator.Stream() if options.step_apart else step_stream
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
                with engine.coalesce_grad_reduction() if options.coalesce else nullcontext():
                    engine.backward(loss)
                use_memory([outer, *streams])
                with accelerator.stream(apart):
                    engine.step()
                step_stream.wait_stream(apart)
                use_memory([outer, *streams])


main()
