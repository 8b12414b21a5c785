"""Explore schedules of ZeRO over its settings, with accel_streams and as DeepSpeed ships.

ZeRO-1, 2 and 3, ZenFlow, offload to the host, precisions, dtypes of communication, mixtures of
experts, gradient accumulation and where the step runs, on 1 to 4 ranks. With accel_streams no
digest may differ, from one schedule to another and from a run on a single stream, nothing may be
reported, and no step skipped but the one whose gradients are infinite. The negative controls are
the settings on a single stream in which DeepSpeed itself is right: nothing may be reported there,
as it ships either. What can't run is listed with the reason. Prints JSON; exit status 1 if any of
this does not hold.

    python benchmarks/explore_matrix.py --schedules 4 --ranks 1 2
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accel_streams.explore import (
    FAKE_DEVICE,
    Run,
    Runner,
    RunResult,
    Schedule,
    Script,
    Variant,
    plan_schedules,
    variants_named,
    version_of,
)

SCRIPT = str(Path(__file__).with_name("settings_train.py"))

Settings = Mapping[str, object]


def _with(base: Settings, *variations: Settings) -> list[Settings]:
    return [{**base, **variation} for variation in variations]


# Each of these on every kind of producer in PRODUCERS.
SETTINGS: list[Settings] = [
    *_with(
        {"stage": 1},
        {},
        {"overlap": False},
        {"contiguous": False},
        {"overlap": False, "contiguous": False, "oversized": True},
        {"no_sync": True, "micro_batches": 2},
        {"no_sync": True, "micro_batches": 2, "overlap": False},
        {"accumulate": "bf16", "micro_batches": 2, "oversized": True},
        {"dtype": "fp16", "infinite_at": 1},
        {"moe": True},
        {"moe": True, "overlap": False},
        {"offload": "optimizer"},
        {"offload": "optimizer", "overlap": False, "micro_batches": 2},
    ),
    *_with(
        {"stage": 2},
        {},
        {"overlap": False},
        {"contiguous": False, "oversized": True},
        {"overlap": False, "contiguous": False, "oversized": True},
        {"oversized": True},
        {"oversized": True, "reduce_scatter": False, "accumulate": "bf16"},
        {"reduce_scatter": False, "overlap": False, "dtype": "fp32"},
        {"multi_rank": False, "oversized": True},
        {"multi_rank": False, "overlap": False},
        {"multi_rank": False, "overlap": False, "contiguous": False},
        {"micro_batches": 2, "dtype": "fp16"},
        {"dtype": "fp16", "infinite_at": 1, "overlap": False},
        {"dtype": "fp32", "clip": 0.01},
        {"dtype": "autocast", "oversized": True},
        {"dtype": "autocast", "overlap": False},
        {"communication": "fp32", "oversized": True},
        {"communication": "fp16", "overlap": False},
        {"communication": "bf16", "dtype": "fp32"},
        {"moe": True},
        {"moe": True, "overlap": False},
        {"offload": "optimizer"},
        {"offload": "optimizer", "overlap": False, "micro_batches": 2},
        {"offload": "optimizer", "zenflow": True},
        {"offload": "optimizer", "zenflow": True, "overlap": False},
    ),
    *_with(
        {"stage": 3},
        {},
        {"persistence": 0},
        {"overlap": False, "persistence": 0},
        {"contiguous": False, "persistence": 0, "oversized": True},
        {"reduce_scatter": False},
        {"dtype": "fp16", "infinite_at": 1, "persistence": 0},
        {"dtype": "fp32", "clip": 0.01},
        {"dtype": "autocast"},
        {"communication": "fp32", "persistence": 0},
        {"communication": "fp16"},
        {"micro_batches": 2, "persistence": 0},
        {"shared": True, "persistence": 0, "reuse_distance": 272},
        {"scalar": True, "contiguous": False},
        {"offload": "optimizer", "micro_batches": 2},
        {"offload": "parameters", "persistence": 0},
        {"offload": "optimizer", "zenflow": True},
        {"moe": True},
    ),
]

PRODUCERS = ("user", "sides", "freed")

# Where DeepSpeed 0.19.8 is right as it ships: on one stream, also with an infinite gradient.
CLEAN: list[Settings] = [
    {**settings, "producers": "one"}
    for settings in SETTINGS
    # H6 and H18 need one stream only, and so does H10.
    if not (settings.get("oversized") and (not settings.get("reduce_scatter", True)))
    and not settings.get("scalar")
    and settings.get("persistence") != 0
]


@dataclass(frozen=True)
class Row:
    """What was seen of one setting, in one variant, on so many ranks."""

    variant: str
    ranks: int
    settings: Settings
    schedules: int
    agreeing: int
    races: int
    kinds: list[str]
    skipped_steps: int
    expected_skipped: int
    operations: int
    cannot_run: str = ""

    @property
    def clean(self) -> bool:
        """Return whether all schedules agreed, nothing was reported and no step wrongly skipped."""
        return (
            self.agreeing == self.schedules
            and not self.races
            and self.skipped_steps == self.expected_skipped
        )


# Not even begun here.
NOT_BEGUN = {
    "ZenFlow with overlap_step": "it runs DeepSpeed's compiled CPUAdam in a process of its own",
    "offload with DeepSpeedCPUAdam": "a compiled op; torch's AdamW takes its place",
    "FPDT (sequence parallelism with offload)": "it needs flash-attn",
    "offload to NVMe": "a compiled op (async_io)",
}

# DeepSpeed's own words where it can't run something, and what is behind them.
CANNOT_RUN = {
    "Native DeepSpeed MoE is not supported with ZeRO Stage 3": "DeepSpeed has no MoE with ZeRO-3",
    "Torch not compiled with CUDA enabled": "DeepSpeed's code names the device 'cuda' there",
    "no_sync context manager is incompatible": "DeepSpeed has no no_sync with this stage",
}


def explore(
    runner: Runner,
    variant: Variant,
    ranks: int,
    settings: Settings,
    schedules: Sequence[Schedule],
    reference: str | None = None,
) -> tuple[Row, str]:
    """Run one setting under all schedules; return the row and the in-order run's digest.

    All are compared with ``reference``, by default with the in-order run.
    """
    script = Script(SCRIPT, (json.dumps(settings),))
    runs = [Run(script, variant, schedule) for schedule in schedules]
    try:
        results: list[RunResult] = runner.run_all(runs)
    except Exception as error:
        reason = next((why for words, why in CANNOT_RUN.items() if words in str(error)), None)
        if reason is None:
            raise
        return Row(variant.name, ranks, settings, 0, 0, 0, [], 0, 0, 0, reason), ""
    races = [race for result in results for rank in result.ranks for race in rank.races]
    wanted = results[0].digest if reference is None else reference
    row = Row(
        variant.name,
        ranks,
        settings,
        len(results),
        sum(result.digest == wanted for result in results),
        len(races),
        sorted({race["kind"] for race in races}),
        max(rank.skipped_steps for result in results for rank in result.ranks),
        int(settings.get("infinite_at") is not None),
        max(rank.operations for result in results for rank in result.ranks),
    )
    return row, results[0].digest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=4, help="of each setting")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--producers", nargs="+", choices=PRODUCERS, default=list(PRODUCERS))
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", default=["deepspeed", "accel_streams"])
    parser.add_argument("--device", default=FAKE_DEVICE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    started = time.monotonic()
    variants = {variant.name: variant for variant in variants_named(options.variants)}
    rows: list[Row] = []
    controls: list[Row] = []
    for ranks in options.ranks:
        with Runner(ranks=ranks, device=options.device, timeout_s=300) as runner:
            for number, settings in enumerate(SETTINGS):
                if settings["stage"] not in options.stages:
                    continue
                schedules = plan_schedules(options.schedules, options.seed + 1000 * number)
                single = {**settings, "producers": "one"}
                reference: str | None = None
                for name, variant in variants.items():
                    row, digest = explore(runner, variant, ranks, single, schedules[:1])
                    _note(row, controls if single in CLEAN else rows, reasons=rows)
                    if name == "accel_streams":
                        reference = digest
                if row.cannot_run:
                    continue
                for producers in options.producers:
                    for name, variant in variants.items():
                        row, _ = explore(
                            runner,
                            variant,
                            ranks,
                            {**settings, "producers": producers},
                            schedules,
                            reference if name == "accel_streams" else None,
                        )
                        _note(row, rows, reasons=rows)
    ran = [row for row in rows if not row.cannot_run]
    ours = [row for row in ran if row.variant == "accel_streams"]
    theirs = [row for row in ran if row.variant == "deepspeed"]
    clean = all(row.clean for row in ours)
    quiet = all(row.clean for row in controls)
    document = {
        "schema": 2,
        "deepspeed": version_of("deepspeed"),
        "torch": version_of("torch"),
        "settings": len(ours),
        "schedules": sum(row.schedules for row in ours),
        "clean": clean,
        "settings_shown_wrong_as_shipped": sum(
            row.agreeing < row.schedules or row.races > 0 for row in theirs
        ),
        "negative_controls": len(controls),
        "negative_controls_quiet": quiet,
        "not_begun": NOT_BEGUN,
        "cannot_run": sorted(
            {f"{json.dumps(row.settings)}: {row.cannot_run}" for row in rows if row.cannot_run}
        ),
        "wall_s": round(time.monotonic() - started, 1),
        "rows": [_json(row) for row in rows],
        "controls": [_json(row) for row in controls],
    }
    print(json.dumps(document, indent=2))
    return 0 if clean and quiet else 1


def _note(row: Row, rows: list[Row], *, reasons: list[Row]) -> None:
    (reasons if row.cannot_run else rows).append(row)
    print(json.dumps(_json(row)), file=sys.stderr, flush=True)


def _json(row: Row) -> dict[str, Any]:
    return asdict(row) | {"clean": row.clean}


if __name__ == "__main__":
    sys.exit(main())
