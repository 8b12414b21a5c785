"""Make a failing schedule as short as it gets: drop delays as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["shortest"]

_T = TypeVar("_T")


def shortest(
    items: Sequence[_T], fails: Callable[[Sequence[_T]], bool], *, budget: int | None = None
) -> tuple[_T, ...]:
    """Return a smallest sublist that still fails: without any one of its items it does not.

    Delta debugging: halves first, then ever smaller parts, each either alone or left out. `items`
    itself is taken to fail. After `budget` calls of `fails` the best so far is returned.
    """
    best = tuple(items)
    tried: dict[tuple[_T, ...], bool] = {}
    calls = 0

    def still(candidate: tuple[_T, ...]) -> bool:
        nonlocal calls
        if candidate not in tried:
            if budget is not None and calls >= budget:
                return False
            calls += 1
            tried[candidate] = fails(candidate)
        return tried[candidate]

    parts = 2
    while len(best) > 1:
        size = -(-len(best) // parts)
        chunks = [best[start : start + size] for start in range(0, len(best), size)]
        rest = [
            tuple(item for other in chunks if other is not chunk for item in other)
            for chunk in chunks
        ]
        for candidate in (*chunks, *rest):
            if len(candidate) < len(best) and still(candidate):
                parts = 2 if len(candidate) <= size else max(parts - 1, 2)
                best = candidate
                break
        else:
            if size == 1:
                break
            parts = min(len(best), parts * 2)
    return best
