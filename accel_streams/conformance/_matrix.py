"""Whether the properties notice backends that are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from accel_streams.conformance._apart import check_apart
from accel_streams.conformance._messages import Options, Subject, Task
from accel_streams.conformance._property import properties
from accel_streams.conformance._results import Outcome, Result

if TYPE_CHECKING:
    from accel_streams.conformance.mutants import Mutant

__all__ = ["Matrix", "Verdict", "check_mutants", "tasks_of"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant: an outcome for each property that was checked of it."""

    mutant: Mutant
    outcomes: Sequence[Outcome]

    @property
    def noticed(self) -> list[str]:
        """The ids of the properties that failed, as they should."""
        return [outcome.id for outcome in self.outcomes if outcome.result is Result.FAILED]

    @property
    def missed(self) -> list[str]:
        """The ids of the properties that have to notice and did not, though they could."""
        could = (Result.PASSED, Result.INCONCLUSIVE)
        return [
            outcome.id
            for outcome in self.outcomes
            if outcome.id in self.mutant.kills and outcome.result in could
        ]

    def to_json(self) -> dict[str, object]:
        """Return the mutant's entry of ``accel-streams check --mutants --json``."""
        return {
            "name": self.mutant.name,
            "summary": self.mutant.summary,
            "expected": list(self.mutant.kills),
            "noticed": self.noticed,
            "properties": [outcome.to_json() for outcome in self.outcomes],
        }


@dataclass(frozen=True, slots=True)
class Matrix:
    """Which property noticed which mutant of a backend."""

    backend: str
    verdicts: Sequence[Verdict]

    @property
    def holds(self) -> bool:
        """Whether every property that has to notice a mutant did so, where it could."""
        return not any(verdict.missed for verdict in self.verdicts)

    def to_json(self) -> dict[str, object]:
        """Return the document of ``accel-streams check --mutants --json``."""
        return {
            "schema": 1,
            "backend": self.backend,
            "mutants": [verdict.to_json() for verdict in self.verdicts],
        }

    def table(self, *, plain: bool) -> Table:
        """Return a table with a row for each mutant; ``plain`` for a pipe."""
        table = Table(box=box.ASCII2 if plain else box.SIMPLE_HEAD)
        table.add_column("mutant", no_wrap=True)
        for name in ("what is wrong", "noticed by", "missed by"):
            table.add_column(name)
        for verdict in self.verdicts:
            table.add_row(
                verdict.mutant.name,
                verdict.mutant.summary,
                " ".join(verdict.noticed),
                Text(" ".join(verdict.missed), "bold red"),
            )
        return table

    def lines(self) -> list[str]:
        """Return what follows the table, line by line."""
        killed = sum(bool(verdict.noticed) for verdict in self.verdicts)
        found = [f"{self.backend}: {killed} of {len(self.verdicts)} mutants were noticed"]
        for verdict in self.verdicts:
            for outcome in verdict.outcomes:
                if outcome.id in verdict.missed:
                    told = f"{outcome.id} {outcome.result.value}"
                    found.append(f"  {verdict.mutant.name}: {told} {outcome.detail}".rstrip())
        checked = {outcome.id for verdict in self.verdicts for outcome in verdict.outcomes}
        noticed = {noticed for verdict in self.verdicts for noticed in verdict.noticed}
        idle = [each.id for each in properties() if each.id in checked - noticed]
        if idle:
            found.append(f"  these noticed no mutant: {', '.join(idle)}")
        return found

    def markdown(self) -> str:
        """Return a table to paste into a README or an issue."""
        rows = [f"### `{self.backend}`, broken on purpose", ""]
        rows += ["| mutant | what is wrong | noticed by | missed by |", "|---|---|---|---|"]
        for verdict in self.verdicts:
            noticed, missed = ", ".join(verdict.noticed), ", ".join(verdict.missed)
            summary = verdict.mutant.summary.replace("|", "\\|")
            rows.append(f"| {verdict.mutant.name} | {summary} | {noticed} | {missed} |")
        return "\n".join(rows) + "\n"


def tasks_of(backend: str, only: Iterable[str] | None = None) -> list[Task]:
    """Return what to check: of each mutant the properties ``only``, else those that it names."""
    from accel_streams.conformance.mutants import MUTANTS

    wanted = None if only is None else set(only)
    return [
        Task(Subject(backend, mutant.name), each.id)
        for mutant in MUTANTS.values()
        for each in properties()
        if each.id in (mutant.kills if wanted is None else wanted)
    ]


def check_mutants(
    tasks: Sequence[Task],
    options: Options | None = None,
    *,
    finished: Callable[[Task, Outcome], None] | None = None,
) -> Matrix:
    """Check the tasks, which are of mutants of one backend.

    ``finished`` is called after each. Raise a BackendError where the backend can't be had.
    """
    from accel_streams.conformance.mutants import MUTANTS

    found = check_apart(tasks, options, finished=finished)
    verdicts = [
        Verdict(MUTANTS[subject.mutant], outcomes) for subject, outcomes in found.outcomes.items()
    ]
    return Matrix(tasks[0].subject.backend, verdicts)
