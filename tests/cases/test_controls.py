"""The negative controls: trainings that are in order as DeepSpeed ships, with nothing to report.

An infinite gradient on one stream (DeepSpeed #5242), every ZeRO stage on a single stream, and
ZeRO-1 without overlap_comm, whose hooks may run on any stream.
"""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from accel_streams.explore import IN_ORDER, Run, Runner, Variant, version_of
from accel_streams.hazards import HAZARDS, script_of
from bucket_cases import AS_SHIPPED, OURS

pytestmark = pytest.mark.timeout(600)

DEEPSPEED = Version(version_of("deepspeed") or "0")
# Before, a single stream could be wrong, too: H13 and, with several buckets, H14.
CLEAN_AS_SHIPPED = Version("0.19.0") <= DEEPSPEED

ONE_STREAM: dict[str, Any] = {"producers": "one"}
STAGES = [
    ONE_STREAM | {"stage": stage, "dtype": dtype, "overlap": overlap, "micro_batches": micro}
    for stage in (0, 1, 2, 3)
    for dtype in ("fp32", "bf16", "fp16")
    for overlap in (True, False)
    for micro in (1, 2)
]
WITHOUT_OVERLAP: list[dict[str, Any]] = [
    {"stage": 1, "dtype": dtype, "overlap": False, "micro_batches": micro, "producers": producers}
    for dtype in ("fp32", "bf16")
    for micro in (1, 2)
    for producers in ("sides", "freed")
]
INFINITE = [ONE_STREAM | {"stage": stage, "dtype": "fp16", "infinite_at": 1} for stage in (1, 2, 3)]
CONTROLS = STAGES + WITHOUT_OVERLAP + INFINITE
# One of each kind; the others take two minutes.
QUICK = [*STAGES[4::12], *STAGES[6::12], WITHOUT_OVERLAP[0], INFINITE[1]]


def name(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def test_there_are_thirty() -> None:
    assert len({name(settings) for settings in CONTROLS}) == len(CONTROLS) >= 30


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(one, id=name(one), marks=() if one in QUICK else pytest.mark.slow)
        for one in CONTROLS
    ],
)
def test_nothing_is_reported(one_rank: Runner, settings: dict[str, Any]) -> None:
    # The program that shows a hazard, with all of its own settings taken back.
    script = script_of(HAZARDS["H7"], use_memory=False, **settings)
    for mode in (AS_SHIPPED, OURS) if CLEAN_AS_SHIPPED else (OURS,):
        variant = Variant(mode, (("ACCEL_STREAMS_ZERO", mode),))
        told = one_rank.run(Run(script, variant, IN_ORDER))
        assert told.races == []
        assert told.operations > 500
        assert told.skipped_steps == (1 if "infinite_at" in settings else 0)


def test_one_wait_less_is_reported(one_rank: Runner) -> None:
    """The same program can tell."""
    script = script_of(HAZARDS["H7"], stage=2, overlap=False, producers="sides")
    variant = Variant(AS_SHIPPED, (("ACCEL_STREAMS_ZERO", AS_SHIPPED),))
    assert one_rank.run(Run(script, variant, IN_ORDER)).races
