"""Measure training steps on real GPUs: DeepSpeed alone, with this package, DDP and FSDP2, in turn.

    python benchmarks/cuda_bench.py --json benchmarks/results/cuda_bench.json

Each group of settings runs in processes of its own, in which all variants take turns; in the group
``one-channel`` NCCL has a single channel, so that communication bounds the step. Needs CUDA, NCCL
and DeepSpeed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accel_streams.bench import Setting
from accel_streams.bench._ranks import run_ranks
from accel_streams.bench._results import entries

GROUPS: dict[str, tuple[dict[str, str], list[Setting]]] = {
    "one-channel": (
        {"NCCL_MAX_NCHANNELS": "1", "NCCL_MIN_NCHANNELS": "1"},
        [Setting(batch=4), Setting(stage=1, batch=4)],
    ),
    "all-channels": (
        {},
        [
            Setting(batch=8),
            Setting(batch=8, user_stream=False),
            Setting(stage=1, batch=8),
            Setting(batch=8, bucket=500_000_000),
            Setting(stage=3, batch=8),
        ],
    ),
    "large": ({}, [Setting(layers=24, width=2048, batch=4, bucket=500_000_000)]),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--settings", help="only settings whose name contains this")
    parser.add_argument("--variants", default="stock,stock-no-overlap,sync,track,ddp,fsdp2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="steps of a sample")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--profiled", type=int, default=5, help="steps to profile; 0: none")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--timeout", type=float, default=580.0, help="seconds, for all groups")
    parser.add_argument("--commit", default="", help="what the results are of")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import deepspeed
    import torch

    nccl: Any = torch.cuda.nccl  # untyped

    if not torch.cuda.is_available():
        sys.exit("no CUDA device: this measures on real GPUs and can't do without")
    gpus = options.gpus or torch.cuda.device_count()
    deadline = time.monotonic() + options.timeout
    document: dict[str, Any] = {
        "schema": 1,
        "machine": {
            "gpu": torch.cuda.get_device_name(0),
            "gpus": gpus,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "nccl": ".".join(map(str, nccl.version())),
            "deepspeed": deepspeed.__version__,
            "commit": options.commit,
        },
        "options": {name: getattr(options, name) for name in ("pairs", "steps", "warmup")},
        "runs": [],
        "ratios": [],
    }
    for group in options.groups.split(","):
        environment, settings = GROUPS[group]
        if options.settings:
            settings = [setting for setting in settings if options.settings in setting.name]
        with tempfile.TemporaryDirectory() as folder:
            plan, result = Path(folder, "plan.json"), Path(folder, "result.json")
            plan.write_text(
                json.dumps(
                    {
                        "settings": [asdict(setting) for setting in settings],
                        "variants": options.variants.split(","),
                        "pairs": options.pairs,
                        "steps": options.steps,
                        "warmup": options.warmup,
                        "profiled": options.profiled,
                    }
                )
            )
            try:
                run_ranks(
                    ["-m", "accel_streams.bench._worker", str(plan), str(result)],
                    gpus,
                    timeout_s=max(1.0, deadline - time.monotonic()),
                    environment=environment,
                )
            finally:
                if result.exists():
                    runs, ratios = entries(json.loads(result.read_text()), group)
                    document["runs"] += runs
                    document["ratios"] += [ratio.to_json() for ratio in ratios]
                    report(runs, ratios)
                    if options.json:
                        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def report(runs: list[dict[str, Any]], ratios: list[Any]) -> None:
    for run in runs:
        profile = run.get("profile", {})
        print(
            f"{run['name']:70} {run['median_ms']:8.2f} ms"
            f"  peak {(run['peak_bytes'] or 0) / 2**30:6.2f} GiB"
            f"  hook {run.get('host_us_a_hook')} us  {profile}",
            flush=True,
        )
    for ratio in ratios:
        print(f"{ratio.name:80} {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]", flush=True)


if __name__ == "__main__":
    sys.exit(main())
