"""Explore schedules of ZeRO with accel_streams over its settings, and as DeepSpeed ships.

Ranks, ZeRO stage, overlap_comm and contiguous_gradients are combined; the model has two producer
streams and a parameter larger than a bucket. With accel_streams no digest may differ and nothing
may be reported; the same settings as DeepSpeed ships show that the exploration can tell. Prints
JSON; exit status 1 if accel_streams is not clean everywhere.

    python benchmarks/explore_matrix.py --schedules 200
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from accel_streams.explore import (
    FAKE_DEVICE,
    Runner,
    Script,
    compare,
    plan_schedules,
    variants_named,
    version_of,
)

SCRIPT = str(Path(__file__).with_name("matrix_train.py"))
# stage, overlap, contiguous, and which hooks run on another stream: with 0 the oversized gradient
# and a bucket's first touch are among what is unordered as shipped, with 6 a bucket's reuse.
SETTINGS = tuple(itertools.product((1, 2), (0, 1), (0, 1), (0, 6)))


def explore(ranks: int, count: int, seed: int, device: str, variants: list[str]) -> list[Any]:
    """Explore every setting on `ranks` ranks, each under `count` schedules of its own."""
    rows = []
    with Runner(ranks=ranks, device=device, timeout_s=300) as runner:
        for index, (stage, overlap, contiguous, producers) in enumerate(SETTINGS):
            arguments = ["--stage", f"{stage}", "--overlap", f"{overlap}"]
            arguments += ["--contiguous", f"{contiguous}", "--producers", f"{producers}"]
            script = Script(SCRIPT, tuple(arguments))
            schedules = plan_schedules(count, seed + 1000 * (index + len(SETTINGS) * ranks))
            started = time.monotonic()
            for summary in compare(runner, script, variants_named(variants), schedules):
                rows.append(
                    {
                        "variant": summary.name,
                        "ranks": ranks,
                        "stage": stage,
                        "overlap_comm": bool(overlap),
                        "contiguous_gradients": bool(contiguous),
                        "producers": producers,
                        "schedules": len(summary.runs),
                        "agreeing": summary.agreeing,
                        "races": len(summary.races),
                        "kinds": sorted({race["kind"] for race in summary.races}),
                        "skipped_steps": max(run.skipped_steps for run in summary.runs),
                        "operations": summary.reference.operations,
                    }
                )
                print(json.dumps(rows[-1]), file=sys.stderr)
            print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=200, help="in all, of accel_streams")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="+", default=["deepspeed", "accel_streams"])
    parser.add_argument("--device", default=FAKE_DEVICE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cells = len(SETTINGS) * len(options.ranks)
    count = -(-options.schedules // cells)
    started = time.monotonic()
    rows = []
    for ranks in options.ranks:
        rows += explore(ranks, count, options.seed, options.device, options.variants)
    ours = [row for row in rows if row["variant"] == "accel_streams"]
    theirs = [row for row in rows if row["variant"] == "deepspeed"]
    clean = all(
        row["agreeing"] == row["schedules"] and not row["races"] and not row["skipped_steps"]
        for row in ours
    )
    document = {
        "schema": 1,
        "deepspeed": version_of("deepspeed"),
        "torch": version_of("torch"),
        "schedules": sum(row["schedules"] for row in ours),
        "clean": clean,
        "settings_shown_wrong_as_shipped": sum(
            row["agreeing"] < row["schedules"] or row["races"] > 0 for row in theirs
        ),
        "wall_s": round(time.monotonic() - started, 1),
        "rows": rows,
    }
    print(json.dumps(document, indent=2))
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
