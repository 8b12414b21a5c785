"""The bytes of strided views: one form for each set of bytes, and whether two sets meet.

A set is a first byte ``lo``, a ``width`` and dimensions of a count ``n`` and a stride ``s``: for
every choice of a k below each n, the ``width`` bytes from ``lo + k1 * s1 + k2 * s2 + ...`` on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accel_streams.races._records import Access, Shape

__all__ = ["access", "check_shape", "meet"]

# Steps of the search after which two sets are taken to meet. Views of one tensor take a few.
_MOST_STEPS: Final = 100_000


def access(
    block: int,
    offset: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    mode: int,
) -> Access | None:
    """Return how a strided view of a block accesses it; None when the view has no elements.

    ``offset``, ``sizes`` and ``strides`` are in elements of ``itemsize`` bytes, as torch gives
    them; ``mode`` is `READ`, `WRITE` or both.
    """
    if 0 in sizes:
        return None
    given = sorted(
        (stride * itemsize, size)
        for size, stride in zip(sizes, strides, strict=True)
        if size > 1 and stride > 0
    )
    # Put together what leaves no gap, so that one set of bytes has one form.
    width = extent = itemsize
    kept: list[tuple[int, int]] = []
    for stride, size in given:
        extent += (size - 1) * stride
        if not kept and stride <= width:
            width = extent
        elif kept and stride % kept[-1][0] == 0 and stride // kept[-1][0] <= kept[-1][1]:
            inner, count = kept[-1]
            kept[-1] = (inner, count + (size - 1) * (stride // inner))
        else:
            kept.append((stride, size))
    lo = offset * itemsize
    if not kept:
        return (block, lo, lo + extent, mode)
    shape = [width]
    for stride, size in reversed(kept):
        shape += (size, stride)
    return (block, lo, lo + extent, mode, tuple(shape))


def check_shape(lo: int, hi: int, shape: Shape) -> None:
    """Raise ValueError or TypeError unless ``shape`` is well formed and ends at ``hi``."""
    width, *rest = shape
    if width < 1 or len(rest) % 2 or any(number < 1 for number in rest):
        raise ValueError(shape)
    if lo + _extent(tuple(shape)) != hi:
        raise ValueError(shape)


def meet(lo: int, shape: Shape, other_lo: int, other: Shape) -> bool:
    """Return whether two sets of bytes share one. ``(width,)`` is the shape of a plain range."""
    return _meet(shape, other, other_lo - lo, [_MOST_STEPS])


def _extent(shape: Shape) -> int:
    return shape[0] + sum((shape[i] - 1) * shape[i + 1] for i in range(1, len(shape), 2))


def _meet(one: Shape, other: Shape, delta: int, budget: list[int]) -> bool:
    """Return whether ``one`` at 0 and ``other`` at ``delta`` share a byte."""
    budget[0] -= 1
    if budget[0] < 0:
        return True
    one_extent, other_extent = _extent(one), _extent(other)
    if delta >= one_extent or -delta >= other_extent:
        return False
    if len(one) == 1 and len(other) == 1:
        return True
    stride = one[2] if len(one) > 1 else 0
    other_stride = other[2] if len(other) > 1 else 0
    if stride == other_stride:
        # Only the difference of the two steps counts.
        inner, other_inner = _inner(one), _inner(other)
        steps = _steps(delta, stride, 1 - one[1], other[1], _extent(inner), _extent(other_inner))
        return any(_meet(inner, other_inner, delta + k * stride, budget) for k in steps)
    if stride > other_stride:
        return _meet(other, one, -delta, budget)
    # The longer strides first: what is left of that set is short, and few steps of the other meet
    # it.
    inner = _inner(other)
    steps = _steps(delta, other_stride, 0, other[1], one_extent, _extent(inner))
    return any(_meet(one, inner, delta + k * other_stride, budget) for k in steps)


def _inner(shape: Shape) -> Shape:
    return (shape[0], *shape[3:])


def _steps(delta: int, stride: int, first: int, end: int, one: int, other: int) -> range:
    """Return the steps from ``first`` to ``end`` at which the two extents overlap."""
    # -other < delta + k * stride < one
    low = (-other - delta) // stride + 1
    high = (one - delta - 1) // stride
    return range(max(first, low), min(end, high + 1))
