"""Train under a user's stream on real GPUs, and compare the parameters bit by bit with the truth.

The truth is the same training in processes in which every kernel launch blocks
(``CUDA_LAUNCH_BLOCKING=1``), so that no two operations overlap. Nothing is delayed or injected.

    python benchmarks/cuda_correctness.py --json benchmarks/results/cuda_correctness.json

Needs CUDA, NCCL and DeepSpeed; uses every GPU there is, or ``--gpus`` of them. Exit status 1 when a
run with ACCEL_STREAMS_ZERO=track differs from the truth anywhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accel_streams.bench._ranks import run_ranks
from accel_streams.bench._run import describe_machine

LIMIT_S = 550.0


@dataclass(frozen=True)
class Case:
    """One configuration of ZeRO, and the stream that the step runs on."""

    stage: int
    overlap: bool
    contiguous: bool
    user_stream: bool
    persistence: int | None = None
    """ZeRO-3's stage3_param_persistence_threshold; None for its default."""

    @property
    def name(self) -> str:
        """Return what tells it from the others."""
        return (
            f"zero{self.stage}-overlap-{'on' if self.overlap else 'off'}"
            f"-contiguous-{'on' if self.contiguous else 'off'}"
            f"{'' if self.persistence is None else f'-persistence-{self.persistence}'}"
            f"-{'user' if self.user_stream else 'default'}-stream"
        )


CASES = tuple(
    Case(stage, overlap, contiguous, user)
    for stage, overlap, contiguous in itertools.product((2, 1), (True, False), (True, False))
    for user in ((True, False) if contiguous else (True,))
) + tuple(
    Case(3, overlap, True, user, persistence)
    for overlap in (True, False)
    for persistence in (None, 0)
    for user in (True, False)
)


def chosen(options: argparse.Namespace) -> list[Case]:
    return [case for case in CASES if any(part in case.name for part in options.cases.split(","))]


def build_model(layers: int, width: int) -> Any:
    from torch import Tensor, nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 16, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            y: Tensor = x + self.down(F.gelu(self.up(self.norm_mlp(x))))
            return y

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4096, width)
            self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
            self.head = nn.Linear(width, 4096, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            logits = self.head(self.blocks(self.embed(tokens)))
            loss: Tensor = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
            return loss

    return GPT()


def train(case: Case, options: argparse.Namespace, rank: int) -> dict[str, Any]:
    """Train as ``case`` says; return parameters on the CPU, losses and skipped steps."""
    import contextlib

    import deepspeed
    import torch

    zero: dict[str, Any] = {
        "stage": case.stage,
        "overlap_comm": case.overlap,
        "contiguous_gradients": case.contiguous,
        "reduce_bucket_size": options.bucket,
    }
    if case.persistence is not None:
        zero["stage3_param_persistence_threshold"] = case.persistence
    torch.manual_seed(0)
    model = build_model(options.layers, options.width).cuda()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": options.batch,
            "bf16": {"enabled": True},
            "zero_optimization": zero,
            "steps_per_print": 1 << 30,
            # It makes the host wait for the device twice a step, which hides missing waits.
            "timers": {"throughput": {"enabled": False}},
        },
    )
    stream_class: Any = torch.cuda.Stream  # torch leaves its constructor untyped
    stream = stream_class() if case.user_stream else None
    generator = torch.Generator().manual_seed(1 + rank)
    losses = []
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(options.steps):
        tokens = torch.randint(0, 4096, (options.batch, 256), generator=generator)
        with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            loss = engine(tokens.to(engine.device))
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    parameters = list(engine.module.parameters())
    gathered = (
        deepspeed.zero.GatheredParameters(parameters)
        if case.stage == 3
        else contextlib.nullcontext()
    )
    with gathered:
        parameters = [p.detach().cpu() for p in parameters]
    result = {
        "parameters": parameters,
        "losses": [float(loss) for loss in losses],
        "skipped_steps": engine.skipped_steps,
        "ms_a_step": 1000 * seconds / options.steps,
    }
    engine.destroy()
    return result


def run_rank(options: argparse.Namespace) -> None:
    """Run every case in this process and write what came of it."""
    import gc

    import deepspeed
    import torch

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward adds in any order
    torch.use_deterministic_algorithms(True)
    deepspeed.init_distributed()
    folder = Path(options.folder)
    modes = ("truth",) if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" else ("off", "track")
    for case in chosen(options):
        for mode in modes:
            os.environ["ACCEL_STREAMS_ZERO"] = "off" if mode == "truth" else mode
            result = train(case, options, rank)
            parameters = result.pop("parameters")
            truth = folder / f"{case.name}.{rank}.pt"
            if mode == "truth":
                torch.save(parameters, truth)
            else:
                expected = torch.load(truth)
                result["wrong"] = sum(
                    int((a != b).sum()) for a, b in zip(parameters, expected, strict=True)
                )
                result["elements"] = sum(p.numel() for p in parameters)
            (folder / f"{case.name}.{mode}.{rank}.json").write_text(json.dumps(result))
            del parameters
            gc.collect()
            torch.cuda.empty_cache()
    torch.distributed.destroy_process_group()


def run_all(options: argparse.Namespace, folder: str, *, blocking: bool) -> None:
    run_ranks(
        [__file__, *sys.argv[1:], "--folder", folder],
        options.gpus,
        timeout_s=LIMIT_S,
        environment={
            "DS_ACCELERATOR": "accel_streams:cuda",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "CUDA_LAUNCH_BLOCKING": "1" if blocking else "0",
        },
    )


def summary(options: argparse.Namespace, folder: Path) -> dict[str, Any]:

    def read(case: Case, mode: str) -> list[dict[str, Any]]:
        return [
            json.loads((folder / f"{case.name}.{mode}.{rank}.json").read_text())
            for rank in range(options.gpus)
        ]

    cases = []
    for case in chosen(options):
        entry: dict[str, Any] = {"name": case.name, **asdict(case)}
        for mode in ("truth", "off", "track"):
            ranks = read(case, mode)
            entry[mode] = {
                "wrong": max(r.get("wrong", 0) for r in ranks),
                "skipped_steps": max(r["skipped_steps"] for r in ranks),
                "ms_a_step": round(max(r["ms_a_step"] for r in ranks), 2),
                "last_loss": ranks[0]["losses"][-1],
                "elements": ranks[0].get("elements"),
            }
        cases.append(entry)
    return {
        "schema": 1,
        "machine": describe_machine(options.gpus, options.commit),
        "settings": {
            name: getattr(options, name) for name in ("steps", "layers", "width", "batch", "bucket")
        },
        "cases": cases,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--cases", default="zero", help="comma list of parts of names")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--bucket", type=int, default=8_000_000, help="elements")
    parser.add_argument("--commit", default="", help="what the results are of")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()

    import torch

    if not torch.cuda.is_available():
        sys.exit("no CUDA device: this compares runs on real GPUs and can't do without")
    options.gpus = options.gpus or torch.cuda.device_count()
    if options.folder:
        run_rank(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run_all(options, folder, blocking=True)
        run_all(options, folder, blocking=False)
        result = summary(options, Path(folder))
    text = json.dumps(result, indent=1)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")
    for case in result["cases"]:
        print(
            f"{case['name']:52} wrong as shipped {case['off']['wrong']:>10,}"
            f"   with accel_streams {case['track']['wrong']:>6,}"
            f"   ms a step {case['off']['ms_a_step']:7.1f} {case['track']['ms_a_step']:7.1f}"
        )
    return 1 if any(case["track"]["wrong"] for case in result["cases"]) else 0


if __name__ == "__main__":
    sys.exit(main())
