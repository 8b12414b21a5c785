"""What a property comes out as, and the exceptions by which it says so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "Broken",
    "Doubtful",
    "Inconclusive",
    "Outcome",
    "Result",
    "Serial",
    "Unverified",
    "needs",
    "premise",
    "require",
]


class Result(str, Enum):
    """What became of one property."""

    PASSED = "passed"
    """It holds, as far as a test can show."""

    FAILED = "failed"
    """It does not hold, or what had to return did not."""

    UNVERIFIED = "unverified"
    """The device has no gate, or too few devices, to find out."""

    INCONCLUSIVE = "inconclusive"
    """A premise of the test was not met, so it says nothing; another run may."""

    DECLARED = "declared"
    """It does not hold, and the backend says so itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One property's result; ``detail`` says why, in a line, and is empty for a plain pass."""

    id: str
    name: str
    result: Result
    detail: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return the entry of ``accel-streams check --json`` for this property."""
        return {
            "id": self.id,
            "name": self.name,
            "result": self.result.value,
            "detail": self.detail,
            "seconds": round(self.seconds, 3),
        }


class Broken(Exception):
    """The property does not hold. The message says what was seen and what was expected."""


class Doubtful(Broken):
    """The property does not hold, if a gate that opens by itself did so at the expected time.

    A host that was kept from running could look the same, so the runner tries again with a gate
    that lasts longer, and believes it in the end.
    """


class Inconclusive(Exception):
    """A premise of the property was not met: nothing was found out."""


class Serial(Inconclusive):
    """The property needs two streams that run side by side, and on this device none do (ORD-02)."""


class Unverified(Exception):
    """The device lacks what it takes to find out."""


def require(holds: bool, otherwise: str) -> None:
    """Raise Broken with the message ``otherwise`` unless ``holds``."""
    if not holds:
        raise Broken(otherwise)


def premise(holds: bool, otherwise: str) -> None:
    """Raise Inconclusive with the message ``otherwise`` unless ``holds``."""
    if not holds:
        raise Inconclusive(otherwise)


def needs(there: bool, otherwise: str) -> None:
    """Raise Unverified with the message ``otherwise`` unless what the property needs is there."""
    if not there:
        raise Unverified(otherwise)
