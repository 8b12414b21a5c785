"""The registry of mutants, and the decorator that puts one in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from accel_streams._backend import Backend
from accel_streams.conformance.mutants._wrapped import Wrapped

__all__ = ["MUTANTS", "Mutant", "killed_by"]

_W = TypeVar("_W", bound=type[Wrapped])


@dataclass(frozen=True, slots=True)
class Mutant:
    """A way in which a backend may be broken.

    ``summary`` says in a line what is wrong with it; ``kills`` are the ids of the properties that
    have to notice.
    """

    name: str
    summary: str
    kills: tuple[str, ...]
    kind: type[Wrapped]

    def make(self, backend: Backend) -> Backend:
        """Return ``backend`` broken in this way."""
        return cast(Backend, self.kind(backend))


MUTANTS: dict[str, Mutant] = {}
"""All mutants by name."""


def killed_by(*ids: str) -> Callable[[_W], _W]:
    """Register the decorated class as a mutant that the properties ``ids`` have to notice.

    Its name is the class's in small letters, its summary the docstring.
    """

    def register(kind: _W) -> _W:
        letters = (f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__)
        name = "".join(letters).lstrip("_")
        if name in MUTANTS:
            raise ValueError(f"there are two mutants called {name}")
        MUTANTS[name] = Mutant(name, (kind.__doc__ or "").strip().rstrip("."), ids, kind)
        return kind

    return register
