"""Measure the simulated device: an operation, the race check, loading and building it; print JSON.

``step`` is a training step of a GPT of the demo's size on the device, ``step_checked`` the same
with a trace and the happens-before analysis on; they take turns, and the ratio is taken pair by
pair. ``load`` is ``fake.enable()`` with its import in a new process that has imported torch, the
extension being built; ``build`` builds it in a temporary cache. Times are wall times,
``cpu_samples`` CPU times of all threads, which other work on the machine disturbs less; the figures
are taken from those. ``figures`` compares with what is promised.

Example:
    python benchmarks/fake_device.py --pairs 15 --build

"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from accel_streams import fake
from accel_streams.races import Analyser

LIMITS = {"us_per_operation": 80.0, "check_ratio": 1.2, "load_s": 0.1, "build_s": 60.0}

LOAD = """
import resource, time, torch
start = time.perf_counter()
from accel_streams import fake
fake.enable()
took = time.perf_counter() - start
print(took * 1e3, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*[Block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.embed(tokens) + self.place)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class Training:
    """Training steps of a small GPT in bf16, forward and backward on a stream of their own."""

    def __init__(self, steps: int, length: int = 64, width: int = 64, layers: int = 8) -> None:
        torch.manual_seed(0)
        self.steps = steps
        self.model = GPT(256, length, width, layers).to("fake", torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.tokens = torch.randint(0, 256, (2, length)).to("fake")
        self.stream = torch.Stream(device="fake")
        self.operations = 0
        self.races = 0

    def plain(self) -> None:
        for _ in range(self.steps):
            current = torch.accelerator.current_stream()
            self.stream.wait_stream(current)
            with self.stream:
                self.optimizer.zero_grad()
                self.model(self.tokens).backward()
            current.wait_stream(self.stream)
            self.optimizer.step()
            torch.accelerator.synchronize()

    def checked(self) -> None:
        analyser = Analyser()
        fake.start_trace(brief=True, sink=analyser.feed)
        try:
            self.plain()
        finally:
            fake.stop_trace()
        self.operations = analyser.operations
        self.races += analyser.race_count


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return the wall time and the CPU time of ``work``, in ms."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def run_entry(
    name: str, samples: list[float], peak_bytes: int, cpu_samples: list[float] | None = None
) -> dict[str, Any]:
    """Return one entry of ``runs``."""
    entry: dict[str, Any] = {
        "name": name,
        "median_ms": round(statistics.median(samples), 3),
        "min_ms": round(min(samples), 3),
        "samples": [round(sample, 3) for sample in samples],
        "peak_bytes": peak_bytes,
    }
    if cpu_samples is not None:
        entry["cpu_samples"] = [round(sample, 3) for sample in cpu_samples]
    return entry


def ratio(name: str, before: list[float], after: list[float]) -> dict[str, Any]:
    """Return the median of the ratios by pair and its 95 % confidence interval.

    The interval lies between two of the ratios in order of size and assumes nothing about how they
    are distributed. With fewer than 6 pairs it is all of them, and less certain.
    """
    ratios = sorted(b / a for a, b in zip(before, after, strict=True))
    count, outside, cut = len(ratios), 0.0, -1
    while True:
        outside += math.comb(count, cut + 1) / 2**count
        if outside > 0.025 or cut + 1 >= count // 2:
            break
        cut += 1
    return {
        "name": name,
        "value": round(statistics.median(ratios), 3),
        "low": round(ratios[max(cut, 0)], 3),
        "high": round(ratios[count - 1 - max(cut, 0)], 3),
    }


def measure_steps(pairs: int, steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the entries of ``runs`` and ``ratios``, and the operations that a step queues."""
    training = Training(steps)
    training.plain()  # the first steps allocate, and make the optimizer's state
    training.checked()
    # As the trace counts them: without what the allocator queues.
    operations = training.operations // steps
    plain, checked = [], []
    for _ in range(pairs):
        plain.append(timed(training.plain))
        checked.append(timed(training.checked))
    if training.races:
        raise SystemExit(f"the check reports {training.races} races where there are none")
    peak = torch.accelerator.max_memory_allocated()
    runs, columns = [], {}
    for name, samples in (("step", plain), ("step_checked", checked)):
        wall, cpu = ([sample[i] / steps for sample in samples] for i in (0, 1))
        runs.append(run_entry(name, wall, peak, cpu))
        columns[name] = (wall, cpu)
    ratios = [
        ratio(f"step_checked / step, {what}", columns["step"][i], columns["step_checked"][i])
        for i, what in ((0, "wall time"), (1, "CPU time"))
    ]
    return runs, ratios, operations


def measure_process(name: str, samples: int, cache: str | None = None) -> dict[str, Any]:
    """Return the entry of ``runs`` for enabling the device in new processes."""
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    # An installation has its modules compiled; without this each process would compile them anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if cache is not None:
        environment["TORCH_EXTENSIONS_DIR"] = cache
    times, peaks = [], []
    for _ in range(samples):
        done = subprocess.run(
            [sys.executable, "-c", LOAD],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=1000,
        )
        took, peak = done.stdout.split()
        times.append(float(took))
        peaks.append(int(peak))
    return run_entry(name, times, max(peaks))


def figure(name: str, value: float) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 3),
        "limit": LIMITS[name],
        "reached": value <= LIMITS[name],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="example: python benchmarks/fake_device.py --pairs 15 --build",
    )
    parser.add_argument("--pairs", type=int, default=15, help="pairs of plain and checked samples")
    parser.add_argument("--steps", type=int, default=3, help="training steps in a sample")
    parser.add_argument("--loads", type=int, default=5, help="processes that load the extension")
    parser.add_argument("--build", action="store_true", help="also build the extension, once")
    arguments = parser.parse_args(argv)

    torch.set_num_threads(1)
    fake.enable()
    runs, ratios, operations = measure_steps(arguments.pairs, arguments.steps)
    step_ms = statistics.median(runs[0]["cpu_samples"])
    figures = [
        figure("us_per_operation", step_ms * 1e3 / operations),
        figure("check_ratio", ratios[1]["value"]),
    ]
    if arguments.loads:
        runs.append(measure_process("load", arguments.loads))
        figures.append(figure("load_s", runs[-1]["median_ms"] / 1e3))
    if arguments.build:
        with tempfile.TemporaryDirectory() as cache:
            runs.append(measure_process("build", 1, cache))
        figures.append(figure("build_s", runs[-1]["median_ms"] / 1e3))
    result = {
        "schema": 1,
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "runs": runs,
        "ratios": ratios,
        "operations_per_step": operations,
        "process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "figures": figures,
    }
    json.dump(result, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
