"""The result as text, as JSON and as a Markdown table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from accel_streams.conformance._apart import Accelerator
from accel_streams.conformance._gates import Level
from accel_streams.conformance._property import properties
from accel_streams.conformance._results import Outcome, Result

__all__ = ["Report"]

_STYLES = {
    Result.PASSED: "",
    Result.FAILED: "bold red",
    Result.UNVERIFIED: "yellow",
    Result.INCONCLUSIVE: "yellow",
    Result.DECLARED: "cyan",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What a check of one backend has found.

    ``accelerator`` is None where DeepSpeed is not installed.
    """

    backend: str
    level: Level
    outcomes: Sequence[Outcome]
    accelerator: Accelerator | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing failed, and nothing that can be found out was left open.

        What the device can't be asked (``unverified``) and what the backend states itself
        (``declared``) does not count against it.
        """
        open_or_failed = (Result.FAILED, Result.INCONCLUSIVE)
        fine = not any(outcome.result in open_or_failed for outcome in self.outcomes)
        return fine and (self.accelerator is None or not self.accelerator.faults)

    @property
    def summary(self) -> str:
        """How many properties came out in which way."""
        counts = Counter(outcome.result for outcome in self.outcomes)
        return ", ".join(f"{counts[result]} {result.value}" for result in Result if counts[result])

    @property
    def gate(self) -> str:
        """The gate level, in words."""
        return f"gate {self.level}: {self.level.meaning}"

    def to_json(self) -> dict[str, object]:
        """Return the document of ``accel-streams check --json``."""
        return {
            "schema": 1,
            "backend": self.backend,
            "gate": str(self.level),
            "properties": [outcome.to_json() for outcome in self.outcomes],
            "accelerator": None if self.accelerator is None else self.accelerator.to_json(),
        }

    def table(self, *, plain: bool) -> Table:
        """Return a table with a row for each property; ``plain`` for a pipe."""
        table = Table(box=box.ASCII2 if plain else box.SIMPLE_HEAD)
        for name in ("property", "result", "what it says"):
            table.add_column(name, no_wrap=name != "what it says")
        group = None
        for outcome in self.outcomes:
            if group not in (None, outcome.id.partition("-")[0]):
                table.add_section()
            group = outcome.id.partition("-")[0]
            table.add_row(
                f"{outcome.id} {outcome.name}",
                Text(outcome.result.value, _STYLES[outcome.result]),
                Text(outcome.detail or _summaries()[outcome.id]),
            )
        return table

    def lines(self) -> list[str]:
        """Return what follows the table, line by line."""
        found = [f"{self.backend}: {self.summary} ({self.gate})"]
        if self.accelerator is None:
            found.append(f"{self.backend}: no DeepSpeed to compare the accelerator with")
        else:
            release = f"DeepSpeed {self.accelerator.deepspeed}"
            faults = self.accelerator.faults
            if faults:
                found.append(f"{self.backend}: the accelerator can't take calls of {release}:")
                found += [f"  {fault}" for fault in faults]
            else:
                found.append(f"{self.backend}: the accelerator takes every call of {release}")
        return found

    def markdown(self) -> str:
        """Return a table to paste into a README or an issue."""
        rows = [
            f"### `{self.backend}`: {self.summary}",
            "",
            f"{self.gate[0].upper()}{self.gate[1:]}.",
            "",
            "| property | result | |",
            "|---|---|---|",
        ]
        for outcome in self.outcomes:
            detail = _escaped(outcome.detail or _summaries()[outcome.id])
            rows.append(f"| {outcome.id} {outcome.name} | {outcome.result.value} | {detail} |")
        extra = self.lines()[1:]
        return "\n".join(rows + ([""] + [_escaped(line) for line in extra] if extra else [])) + "\n"


def _summaries() -> dict[str, str]:
    return {each.id: each.summary for each in properties()}


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
