"""Train a small GPT on the Python standard library's sources with DeepSpeed, ZeRO stage 2.

An ordinary training script: it imports torch and DeepSpeed, and nothing in it knows about
accel_streams. The training step runs under a stream of the script's own, as scripts do that
prefetch data or capture graphs, which is enough for DeepSpeed's gradient hooks to run on two
streams. `accel-streams demo` runs it; by itself it runs under any DeepSpeed launcher.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from contextlib import nullcontext
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 256  # the tokens are bytes
TEXT_BYTES = 1 << 20
CYCLES_A_MS = 1_700_000  # of a GPU's clock, about


class Attention(nn.Module):
    """Attend causally: (batch, sequence, width) to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention's output."""
        batch, sequence, width = x.shape
        split = self.queries_keys_values(x).view(batch, sequence, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, sequence, width))
        return output


class Block(nn.Module):
    """Apply attention and an MLP, each after a layer norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of `x`."""
        x = x + self.attention(self.norm_attention(x))
        output: Tensor = x + self.mlp(self.norm_mlp(x))
        return output


class GPT(nn.Module):
    """Predict the next token: (batch, sequence) of token ids to a scalar loss."""

    def __init__(self, layers: int, width: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `targets` from `inputs`."""
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read_text() -> Tensor:
    """Return the first bytes of the standard library's sources, in order of the file names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= TEXT_BYTES:
            break
    return torch.frombuffer(text[:TEXT_BYTES], dtype=torch.uint8).long()


def run_half_of_the_hooks_on_the_stream_of_the_step(model: nn.Module) -> None:
    """Let go of the views that keep gradient hooks on the stream of ``deepspeed.initialize()``.

    DeepSpeed keeps such a view of each parameter in the partition of the rank: with one rank of all
    of them, so that all hooks run on one stream. The last of two ranks has the last half.
    """
    parameters = list(model.parameters())
    for parameter in parameters[: len(parameters) // 2]:
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is not None:
            mapping.lp_fragment = mapping.lp_fragment.detach()


def hold_up_reductions(model: nn.Module, stream: torch.Stream, delay_ms: float) -> None:
    """Let the reduction stream idle at each gradient, as behind a slow network."""

    def hold_up(parameter: nn.Parameter) -> None:
        with get_accelerator().stream(stream):
            torch.cuda._sleep(int(delay_ms * CYCLES_A_MS))  # type: ignore[no-untyped-call]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hold_up)  # type: ignore[no-untyped-call]


def main() -> None:
    """Train as the command line says, and print the losses of rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--flushes", type=int, default=8, help="at least so many a backward")
    parser.add_argument("--single-stream", action="store_true", help="use the default stream only")
    parser.add_argument("--deterministic", action="store_true", help="the same bits every time")
    parser.add_argument(
        "--two-producers",
        action="store_true",
        help="with one rank: run half of the gradient hooks on the stream of the step, as two do",
    )
    parser.add_argument(
        "--delay",
        type=float,
        default=0.0,
        help="on CUDA: hold the reductions up by so many ms at each gradient",
    )
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    options = parser.parse_args()

    accelerator = get_accelerator()
    accelerator.set_device(options.local_rank)
    device = torch.device(accelerator.current_device_name())
    if options.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_mem_efficient_sdp(False)  # Its backward adds in any order.
    torch.manual_seed(0)
    model = GPT(options.layers, options.width, options.heads, options.sequence).to(device)

    # A flush empties at most one bucket, so this size leads to at least `flushes` of them.
    sizes = [parameter.numel() for parameter in model.parameters()]
    bucket = sum(sizes) // options.flushes
    if bucket < max(sizes):
        parser.error(f"--flushes {options.flushes} makes a bucket smaller than a parameter")
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": options.batch,
            "bf16": {"enabled": True},
            "zero_optimization": {
                "stage": 2,
                "overlap_comm": True,
                "contiguous_gradients": True,
                "reduce_bucket_size": bucket,
            },
            "steps_per_print": 1 << 30,
            # It makes the host wait for the device twice a step.
            "timers": {"throughput": {"enabled": False}},
        },
    )
    if options.two_producers:
        run_half_of_the_hooks_on_the_stream_of_the_step(model)
    if options.delay:
        hold_up_reductions(model, engine.optimizer.reduction_stream, options.delay)

    text = read_text()
    generator = torch.Generator().manual_seed(1 + engine.global_rank)
    losses = []
    if options.single_stream:
        stream = None
        under_stream = nullcontext()
    else:
        stream = accelerator.Stream()
        # What initialize() queued comes first.
        stream.wait_stream(accelerator.current_stream())
        under_stream = accelerator.stream(stream)
    with under_stream:
        for _ in range(options.steps):
            starts = torch.randint(
                len(text) - options.sequence - 1, (options.batch, 1), generator=generator
            )
            window = text[starts + torch.arange(options.sequence + 1)].to(device)
            loss = engine(window[:, :-1], window[:, 1:])
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
    accelerator.synchronize()
    if engine.global_rank == 0:
        print("losses:", " ".join(f"{loss.item():.4f}" for loss in losses))


if __name__ == "__main__":
    main()
