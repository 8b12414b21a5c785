"""The registry of properties, and the decorator that puts one in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from accel_streams.conformance._gates import Level

if TYPE_CHECKING:
    from accel_streams.conformance._bench import Bench

__all__ = ["GROUPS", "Property", "checks", "properties", "select"]

Check = Callable[["Bench"], None]

GROUPS = {
    "ORD": "Ordering",
    "EVT": "Events",
    "SYN": "Synchronisation",
    "IDN": "Identity",
    "MEM": "Memory",
    "AGD": "Autograd",
}
"""The groups of properties in the order in which they are checked, by the letters of their ids."""

# The modules that hold them; importing one registers its properties.
_MODULES = ("ordering", "events", "synchronization", "identity", "memory", "autograd")

_registered: dict[str, Property] = {}


@dataclass(frozen=True, slots=True)
class Property:
    """One thing that streams and events have to do.

    ``summary`` says it in a sentence. ``gate`` is the lowest level of gate with which it can be
    found out, ``devices`` the number of devices. ``check`` raises Broken, Inconclusive or
    Unverified, or returns when the property holds.
    """

    id: str
    name: str
    summary: str
    gate: Level
    devices: int
    check: Check

    @property
    def group(self) -> str:
        """The letters of the id."""
        return self.id.partition("-")[0]


def checks(id: str, name: str, *, gate: bool = False, devices: int = 1) -> Callable[[Check], Check]:
    """Register the decorated function as the check of the property ``id``.

    The function gets a Bench, and its docstring's first paragraph says the property in a sentence.
    With ``gate`` it runs only where a stream can be held open, and is ``unverified`` elsewhere;
    with fewer than ``devices`` devices likewise.
    """

    def register(check: Check) -> Check:
        if id in _registered:
            raise ValueError(f"there are two checks of the property {id}")
        if id.partition("-")[0] not in GROUPS:
            raise ValueError(f"the property {id} belongs to no group")
        summary = " ".join((check.__doc__ or "").strip().partition("\n\n")[0].split())
        if not summary:
            raise ValueError(f"the check of {id} has no docstring that says the property")
        level = Level.LOAD if gate else Level.NONE
        _registered[id] = Property(id, name, summary, level, devices, check)
        return check

    return register


def properties() -> tuple[Property, ...]:
    """Return all properties, group by group and by number."""
    for module in _MODULES:
        import_module(f"accel_streams.conformance.{module}")
    groups = list(GROUPS)
    return tuple(
        sorted(_registered.values(), key=lambda found: (groups.index(found.group), found.id))
    )


def select(only: Iterable[str] | None) -> tuple[Property, ...]:
    """Return the properties that ``only`` names, by id, by name or by group; None means all.

    Raise ValueError when it names something else.
    """
    found = properties()
    if only is None:
        return found
    wanted = [word.strip() for word in only]
    for word in wanted:
        if not any(_names(word, each) for each in found):
            raise ValueError(
                f"there is no property {word!r}; expected an id such as ORD-03, a name such as "
                f"record_wait, or a group: {', '.join(GROUPS)}"
            )
    return tuple(each for each in found if any(_names(word, each) for word in wanted))


def _names(word: str, found: Property) -> bool:
    return word.upper() in (found.id, found.group) or word == found.name
