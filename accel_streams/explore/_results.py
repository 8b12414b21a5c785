"""What a run left behind: one file a rank, written whole or not at all, and their summary."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accel_streams.races._files import atomic_text

from ._plan import Run

__all__ = [
    "RankResult",
    "RunResult",
    "VariantSummary",
    "identity",
    "merge_races",
    "number_or_none",
    "told_race",
]

Json = dict[str, Any]


def number_or_none(value: float) -> float | None:
    """Return `value`, or None where JSON has no spelling for it (NaN, infinities)."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class RankResult:
    """Hold what one rank of one run reported. Times are seconds, sizes bytes."""

    rank: int
    digest: str
    losses: list[float]
    steps: int
    skipped_steps: int
    races: list[Json]
    synchronizing_ops: dict[str, int]
    operations: int
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    trace: str | None = None
    unseen: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write this result to `path`, atomically."""
        with atomic_text(path) as file:
            json.dump(asdict(self), file)

    @classmethod
    def load(cls, path: Path) -> RankResult:
        """Read what `save` wrote."""
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True)
class RunResult:
    """Hold the results of all ranks of one run, rank 0 first."""

    run: Run
    ranks: tuple[RankResult, ...]

    @property
    def digest(self) -> str:
        """Return one digest over all ranks."""
        return hashlib.sha256("".join(rank.digest for rank in self.ranks).encode()).hexdigest()

    @property
    def losses(self) -> list[float]:
        """Return the loss of each backward pass, averaged over the ranks."""
        return [
            math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
            for values in zip(*(rank.losses for rank in self.ranks), strict=False)
        ]

    @property
    def steps(self) -> int:
        """Return the number of training steps."""
        return max(rank.steps for rank in self.ranks)

    @property
    def skipped_steps(self) -> int:
        """Return how many steps DeepSpeed left out, on the rank with the most."""
        return max(rank.skipped_steps for rank in self.ranks)

    @property
    def races(self) -> list[Json]:
        """Return the race reports of all ranks, equal ones counted once."""
        return merge_races(
            {**race, "ranks": [rank.rank]} for rank in self.ranks for race in rank.races
        )

    @property
    def wall_s(self) -> float:
        """Return the time the script took on the slowest rank."""
        return max(rank.wall_s for rank in self.ranks)

    @property
    def operations(self) -> int:
        """Return the number of operations queued on the busiest rank."""
        return max(rank.operations for rank in self.ranks)

    @property
    def peak_rss_bytes(self) -> int:
        """Return the peak memory of the largest rank."""
        return max(rank.peak_rss_bytes for rank in self.ranks)

    def to_json(self) -> Json:
        """Return the ``schedules`` entry of the documented JSON."""
        return {
            "name": self.run.schedule.name,
            "seed": self.run.schedule.seed,
            "digest": self.digest,
            "loss": [number_or_none(loss) for loss in self.losses],
            "skipped_steps": self.skipped_steps,
        }


@dataclass(slots=True)
class VariantSummary:
    """Gather the runs of one variant; the first one added is the in-order run."""

    name: str
    runs: list[RunResult] = field(default_factory=list)

    @property
    def reference(self) -> RunResult:
        """Return the in-order run, which the others are compared with."""
        return self.runs[0]

    def agrees(self, run: RunResult) -> bool:
        """Tell whether `run` ended with the same bytes as the in-order run."""
        return run.digest == self.reference.digest

    @property
    def agreeing(self) -> int:
        """Count the runs that agree with the in-order run, itself included."""
        return sum(map(self.agrees, self.runs))

    @property
    def races(self) -> list[Json]:
        """Return the race reports of all runs, equal ones counted once."""
        return merge_races(
            {**race, "schedules": [str(run.run.schedule)]}
            for run in self.runs
            for race in run.races
        )

    @property
    def clean(self) -> bool:
        """Tell whether all digests are equal and nothing was reported."""
        return self.agreeing == len(self.runs) and not self.races

    def to_json(self) -> Json:
        """Return the ``variants`` entry of the documented JSON."""
        return {
            "name": self.name,
            "schedules": [run.to_json() for run in self.runs],
            "agreeing": self.agreeing,
            "races": self.races,
        }


def identity(race: Json) -> tuple[object, ...]:
    """Return what makes two reports the same one: the kind and the two places in the code.

    Buffers and streams are left out: their names hold numbers that differ between ranks.
    """
    return race["kind"], *(
        tuple(race[side].get(key) for key in ("operation", "access", "file", "line", "function"))
        for side in ("first", "second")
    )


_WHERE: Sequence[str] = ("ranks", "schedules")


def merge_races(races: Iterable[Json]) -> list[Json]:
    """Join equal reports: counts are added, ranks and schedules are collected. Keeps the order."""
    merged: dict[tuple[object, ...], Json] = {}
    for race in races:
        known = merged.setdefault(identity(race), {**race, "count": 0})
        known["count"] += race.get("count", 1)
        for key in _WHERE:
            if key in race:
                known[key] = list(dict.fromkeys([*known.get(key, []), *race[key]]))
    return list(merged.values())


def told_race(race: dict[str, Any]) -> str:
    """Say which wait is missing, in the words of the analysis."""
    return f"{race['kind']} on {race['buffer']}: {race['missing_edge']}"
