"""What the process that checks and the one that waits for it tell each other: lines of JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from accel_streams.conformance._gates import Level
from accel_streams.conformance._results import Outcome, Result
from accel_streams.conformance._run import DEFAULT_TIMEOUT_S

__all__ = ["Options", "Subject", "Task", "outcome_from_json"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: a backend, or (with ``mutant``) one that has been broken on purpose.

    ``backend`` is a registered name, or ``module:attribute`` of a class that is not registered.
    """

    backend: str
    mutant: str = ""

    def __str__(self) -> str:
        return f"{self.backend} as {self.mutant}" if self.mutant else self.backend


@dataclass(frozen=True, slots=True)
class Task:
    """One property to check of one subject, both by name."""

    subject: Subject
    property_id: str


@dataclass(frozen=True, slots=True)
class Options:
    """How to check: the limit for a property in seconds, and the highest level of gate to use."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    at_most: Level = Level.HOLD

    def to_json(self) -> dict[str, object]:
        """Return what ``Options(**...)`` takes, but for the level's type."""
        return asdict(self)


def outcome_from_json(entry: dict[str, object]) -> Outcome:
    """Return the outcome that ``Outcome.to_json`` made ``entry`` of."""
    return Outcome(
        str(entry["id"]),
        str(entry["name"]),
        Result(entry["result"]),
        str(entry["detail"]),
        float(str(entry["seconds"])),
    )
