"""What the demo showed, in words, and whether it is what it claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import median
from typing import Any, NamedTuple

from accel_streams.explore import RunResult, VariantSummary, told_race, version_of

__all__ = ["Figures", "Verdict", "judge", "main_race"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say whether the demonstration holds, with the sentences that tell why."""

    holds: bool
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Hold what the demo took: seconds, bytes, operations of one rank in one run."""

    wall_s: float
    start_s: float
    runs: int
    peak_rss_bytes: int
    operations: int
    cpu_us_per_operation: float | None
    synchronizing_ops: dict[str, int]

    @classmethod
    def of(cls, runs: Sequence[RunResult], *, wall_s: float, start_s: float) -> Figures:
        """Summarise all runs; `start_s` of `wall_s` went by before the first one."""
        ranks = [rank for run in runs for rank in run.ranks]
        synchronizing: Counter[str] = Counter()
        for rank in ranks:
            for name, count in rank.synchronizing_ops.items():
                synchronizing[name] = max(synchronizing[name], count)
        # On a real device only the run that is watched for races counts them, at another cost.
        simulated = not any(run.run.schedule.real for run in runs)
        costs = [rank.cpu_s / rank.operations * 1e6 for rank in ranks if rank.operations]
        return cls(
            wall_s=wall_s,
            start_s=start_s,
            runs=len(runs),
            peak_rss_bytes=max(rank.peak_rss_bytes for rank in ranks),
            operations=max(rank.operations for rank in ranks),
            cpu_us_per_operation=median(costs) if costs and simulated else None,
            synchronizing_ops=dict(sorted(synchronizing.items())),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the ``figures`` of the JSON."""
        return asdict(self)

    def __str__(self) -> str:
        cost = (
            ""
            if self.cpu_us_per_operation is None
            else f", {self.cpu_us_per_operation:.0f} us of CPU time each, DeepSpeed's included"
        )
        return (
            f"{self.wall_s:.0f} s for {self.runs} runs, {self.start_s:.0f} s of them to start; "
            f"peak memory of a rank {self.peak_rss_bytes / 2**20:.0f} MiB; "
            f"{self.operations} operations a rank and run{cost}"
        )


def judge(summaries: Sequence[VariantSummary], single_stream: RunResult | None) -> Verdict:
    """Compare what happened with the claim: wrong as shipped, right with this package."""
    parts = []
    for summary in summaries:
        if summary.name == "deepspeed":
            parts.append(_judge_deepspeed(summary))
        else:
            parts.append(_judge_ours(summary, single_stream))
    return Verdict(
        all(part.holds for part in parts),
        tuple(sentence for part in parts for sentence in part.sentences),
    )


def main_race(races: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the report to tell first: of those in the most schedules, the most frequent one."""
    return max(races, key=lambda race: (len(race["schedules"]), race["count"]), default=None)


class _Words(NamedTuple):
    """What to call all runs, those that are compared with the first, and what it takes to differ.

    ``first`` is the one that they are compared with.
    """

    all: str
    others: str
    first: str
    needed: str


def _words(summary: VariantSummary) -> _Words:
    if summary.reference.run.schedule.real:
        return _Words(
            "runs",
            "free runs",
            "the one in which the host waited for each kernel",
            "a moment in which they overlap: try more --runs, or the worst case with --delay 1",
        )
    return _Words("schedules", "other schedules", "the in-order one", "a schedule besides in-order")


def _judge_deepspeed(summary: VariantSummary) -> Verdict:
    others = len(summary.runs) - 1
    different = len(summary.runs) - summary.agreeing
    race = main_race(summary.races)
    name = f"DeepSpeed {version_of('deepspeed')} as it ships"
    words = _words(summary)
    if not different or race is None:
        found = f"{different} of {others} {words.others} differ and {len(summary.races)} races"
        return Verdict(
            False,
            (
                f"{name}: not shown to be wrong ({found} were found). For that its gradient hooks "
                "have to run on two streams, which takes two ranks or more, and to change streams "
                "in the middle of a bucket, which depends on the sizes of the layers; and it takes "
                f"{words.needed}.",
            ),
        )
    silent = "no run raised an error"
    if not any(run.skipped_steps for run in summary.runs):
        silent += " or skipped a step"
    odd = next(run for run in summary.runs if not summary.agrees(run))
    losses = [run.losses[-1] for run in (odd, summary.reference) if run.losses]
    if losses and all(map(isfinite, losses)):
        silent += f" (a last loss of {losses[0]:.4f} against {losses[-1]:.4f})"
    return Verdict(
        True,
        (
            f"{name} is wrong: {different} of {others} {words.others} ended with other "
            f"parameters than {words.first}, and {silent}.",
            f"The missing wait, first of {len(summary.races)}: {told_race(race)}.",
        ),
    )


def _judge_ours(summary: VariantSummary, single_stream: RunResult | None) -> Verdict:
    complaints = []
    words = _words(summary)
    if summary.agreeing < len(summary.runs):
        different = len(summary.runs) - summary.agreeing
        complaints.append(f"{different} {words.all} ended with other parameters than {words.first}")
    if races := summary.races:
        complaints.append(f"{len(races)} races were reported, such as {told_race(races[0])}")
    if skipped := max(run.skipped_steps for run in summary.runs):
        complaints.append(f"{skipped} steps were skipped")
    if single_stream is not None and single_stream.digest != summary.reference.digest:
        complaints.append("a run on a single stream ended with other parameters")
    if complaints:
        return Verdict(False, (f"With accel_streams, wrongly: {'; '.join(complaints)}.",))
    alone = "" if single_stream is None else ", the same as those of a run on a single stream"
    return Verdict(
        True,
        (
            f"With accel_streams all {len(summary.runs)} {words.all} ended with equal "
            f"parameters{alone}; no race, no skipped step.",
        ),
    )
