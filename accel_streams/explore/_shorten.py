"""Search a script's schedules, and shorten one under which it trains something else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

from ._delays import Delay, schedule_name
from ._failures import ExploreError, RunFailedError
from ._notes import Notes, What, asking_for, read_notes
from ._plan import IN_ORDER, Run, Schedule, Script, Variant
from ._results import RunResult, VariantSummary
from ._runner import Runner
from ._search import Execution, Exploration, search
from ._shrink import shortest

__all__ = ["search_script", "shorten"]


class _ScriptProgram:
    """A script on one rank, as something to search. What it prints is compared, and the digest."""

    def __init__(self, runner: Runner, script: Script, variant: Variant, folder: Path) -> None:
        self._runner = runner
        self._run = Run(
            script,
            variant,
            IN_ORDER,
            check=False,  # What counts is how a run ends.
            compare=False,
            environment=asking_for("operations", folder),
        )
        self._folder = folder

    def run(self, delays: Sequence[Delay]) -> Execution:
        """Run the script in-order but for `delays`."""
        schedule = Schedule(schedule_name(delays))
        (self._folder / "rank0.json").unlink(missing_ok=True)
        failure = None
        try:
            self._runner.run(replace(self._run, schedule=schedule))
        except RunFailedError as exc:
            failure = exc
        notes = read_notes(self._folder)
        if notes is None or (failure is not None and schedule == IN_ORDER):
            raise failure or ExploreError("internal error: a run has left no notes")
        if notes.error:
            raise ExploreError(notes.error)
        outcome = "\n".join([notes.printed, notes.digest])
        lines = notes.printed.split("\n")[:-1] or [f"parameters {notes.digest[:12]}"]
        text = lines[-1].strip()
        if failure is not None:
            text = f"failed: {failure.stderr.strip().rpartition(chr(10))[2].strip()}"
            outcome += text
        return Execution(notes.operations, notes.order, outcome, text, notes.polled)


def search_script(
    runner: Runner,
    script: Script,
    variant: Variant,
    *,
    max_schedules: int,
    max_deviations: int | None = None,
    finished: Callable[[int], None] = lambda _: None,
) -> Exploration:
    """Run a small script in every order that can make a difference; see `explore_all`.

    Compared are what it prints and, if it trains, the digest of what it has trained; a script that
    fails under a schedule has that as its outcome. `runner` has one rank.
    """
    if runner.ranks != 1:
        raise ExploreError(
            f"a systematic search runs one rank, not {runner.ranks}: the orders of several "
            "processes together are too many"
        )
    with tempfile.TemporaryDirectory(prefix="accel-streams-") as folder:
        return search(
            _ScriptProgram(runner, script, variant, Path(folder)),
            max_schedules=max_schedules,
            max_deviations=max_deviations,
            finished=finished,
        )


def shorten(
    runner: Runner,
    summary: VariantSummary,
    *,
    budget: int,
    finished: Callable[[RunResult], None] = lambda _: None,
) -> RunResult | None:
    """Return a run that differs from in-order by as few delays as were found.

    First each race of the in-order run is made to happen, by one delay. If none of them changes
    what is trained, the first differing schedule is written as what it delays, and halved as long
    as it still differs. At most `budget` runs are made; None if none of them differs.
    """
    differing = [run.run for run in summary.runs if not summary.agrees(run)]
    if not differing or budget < 1:
        return None
    left = budget
    best: RunResult | None = None

    def noted(run: Run, what: What) -> list[Notes]:
        nonlocal left
        left -= 1
        with tempfile.TemporaryDirectory(prefix="accel-streams-") as folder:
            noting = replace(
                run,
                environment=asking_for(what, Path(folder)),
                keep_records=0,
                check=what == "races",
            )
            finished(runner.run(noting))
            ranks = [read_notes(Path(folder), rank) for rank in range(runner.ranks)]
        return [notes for notes in ranks if notes is not None]

    def differs(delays: Sequence[Delay]) -> bool:
        nonlocal left, best
        if left <= 0:
            return False
        left -= 1
        schedule = Schedule(schedule_name(delays))
        try:
            result = runner.run(
                replace(differing[0], schedule=schedule, keep_records=0, check=False)
            )
        except RunFailedError:
            return False  # it fails otherwise: with an error, not with other parameters
        finished(result)
        if summary.agrees(result):
            return False
        best = result
        return True

    in_order = summary.reference.run
    for delay in _alternating(noted(in_order, "races")):
        if differs([delay]):
            return best
    for notes in noted(differing[0], "inversions") if left > 0 else ():
        if notes.delays and differs(notes.delays):
            shortest(notes.delays, differs)
            break
    return best


def _alternating(ranks: Sequence[Notes]) -> Iterable[Delay]:
    """Return the delays of all ranks, the first of each before the second of any, each once."""
    mixed = chain.from_iterable(zip_longest(*(notes.delays for notes in ranks)))
    return dict.fromkeys(delay for delay in mixed if delay is not None)
