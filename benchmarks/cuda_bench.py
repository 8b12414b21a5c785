"""Measure training steps on real GPUs: DeepSpeed alone, with this package, DDP and FSDP2, in turn.

    python benchmarks/cuda_bench.py --json benchmarks/results/cuda_bench.json

Each group of settings runs in processes of its own, in which all variants take turns; in the group
``one-channel`` NCCL has a single channel, so that communication bounds the step. Needs CUDA, NCCL
and DeepSpeed. `accel-streams bench` measures a single setting.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from accel_streams import AccelStreamsError
from accel_streams.bench import Group, Options, Setting, run
from accel_streams.cli._bench import report
from accel_streams.cli._output import write_json

GROUPS = (
    Group(
        "one-channel",
        (Setting(batch=4), Setting(stage=1, batch=4)),
        {"NCCL_MAX_NCHANNELS": "1", "NCCL_MIN_NCHANNELS": "1"},
    ),
    Group(
        "all-channels",
        (
            Setting(batch=8),
            Setting(batch=8, user_stream=False),
            Setting(stage=1, batch=8),
            Setting(batch=8, bucket=500_000_000),
            Setting(stage=3, batch=8),
        ),
        {},
    ),
    Group("large", (Setting(layers=24, width=2048, batch=4, bucket=500_000_000),), {}),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [group.name for group in GROUPS]
    parser.add_argument("--groups", nargs="+", choices=names, default=names)
    parser.add_argument("--settings", default="", help="only settings whose name contains this")
    parser.add_argument("--variants", default="stock,stock-no-overlap,sync,track,ddp,fsdp2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="steps of a sample")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--profiled", type=int, default=5, help="steps to profile; 0: none")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--timeout", type=float, default=580.0, help="seconds, for all groups")
    parser.add_argument("--commit", default="", help="what the results are of")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    chosen = [
        replace(group, settings=tuple(s for s in group.settings if arguments.settings in s.name))
        for group in GROUPS
        if group.name in arguments.groups
    ]
    try:
        options = Options(
            variants=tuple(arguments.variants.split(",")),
            pairs=arguments.pairs,
            steps=arguments.steps,
            warmup=arguments.warmup,
            profiled=arguments.profiled,
            ranks=arguments.gpus,
            timeout_s=arguments.timeout,
        )
        keep = {"keep": partial(write_json, arguments.json)} if arguments.json else {}
        run(chosen, options, commit=arguments.commit, report=report, **keep)
    except AccelStreamsError as exc:
        sys.exit(f"error: {exc}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
