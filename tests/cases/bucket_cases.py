"""Run ``scripts/buckets.py`` on the simulated device, and say what is right."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accel_streams.explore import Run, Runner, RunResult, Schedule, Script, Variant

__all__ = ["AS_SHIPPED", "OURS", "Buckets", "Outcome", "Train", "trainer"]

SCRIPT = str(Path(__file__).with_name("scripts") / "buckets.py")
AS_SHIPPED, OURS = "off", "track"

Train = Callable[..., "Outcome"]


@dataclass(frozen=True, slots=True)
class Buckets:
    """A training.

    A parameter is its elements, its communication dtype, and the stream that computes its gradient.
    ``old_wait`` takes back what 0.19.3 added: a reduction waits only for the stream that triggers
    it. ``reset_index``: after each reduction the first buffer is the next one. ``hold``: no
    reduction runs before every hook has. The two times are those of computing one gradient and of
    one reduction.
    """

    parameters: Sequence[tuple[int, str, str]]
    bucket: int
    overlap: bool = True
    stage: int = 2
    steps: int = 3
    autocast: bool = False
    old_wait: bool = False
    reset_index: bool = False
    hold: bool = False
    compute_ns: int = 0
    communicate_ns: int = 0
    skip_edge: str = ""

    def right(self, ranks: int) -> list[list[float]]:
        """Return the numbers in each parameter after all steps: one each."""
        mean_rank = (ranks - 1) / 2
        return [
            [-sum((index + 1) * (step + 1) + mean_rank for step in range(self.steps))]
            for index in range(len(self.parameters))
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training came to: the numbers in each parameter, by rank, and what was reported."""

    parameters: list[list[list[float]]]
    makespans: list[list[int]]
    run: RunResult

    @property
    def races(self) -> list[dict[str, Any]]:
        return self.run.races

    def is_right(self, case: Buckets) -> bool:
        ranks = len(self.parameters)
        return self.parameters == [case.right(ranks)] * ranks and self.run.skipped_steps == 0


def trainer(running: Runner, folder: Path) -> Train:
    """Return a function that runs a case in one mode under one schedule."""

    def train(case: Buckets, mode: str = OURS, schedule: str = "in-order") -> Outcome:
        result = folder / "result"
        run = Run(
            Script(SCRIPT, (json.dumps(asdict(case)),)),
            Variant(mode, (("ACCEL_STREAMS_ZERO", mode), ("CASE_RESULT", str(result)))),
            Schedule.parse(schedule),
        )
        told = running.run(run)
        ranks = [json.loads(Path(f"{result}.{n}").read_text()) for n in range(running.ranks)]
        return Outcome(
            [rank["parameters"] for rank in ranks], [rank["makespans"] for rank in ranks], told
        )

    return train
