"""The bytes of strided views, compared with sets of numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_streams.races import READ, access
from accel_streams.races import _strides as strides
from accel_streams.races._records import Shape
from accel_streams.races._strides import check_shape, meet
from brute_force import bytes_of

View = tuple[int, list[int], list[int], int]

DIMENSION = st.tuples(st.integers(1, 5), st.integers(0, 14))
VIEWS = st.tuples(
    st.integers(0, 30), st.lists(DIMENSION, max_size=3), st.sampled_from((1, 2, 4))
).map(lambda view: (view[0], [n for n, _ in view[1]], [s for _, s in view[1]], view[2]))


def touched(view: View) -> frozenset[int]:
    """Return every byte, element by element."""
    offset, sizes, steps, item = view
    return frozenset(
        (offset + sum(k * step for k, step in zip(index, steps, strict=True))) * item + byte
        for index in itertools.product(*map(range, sizes))
        for byte in range(item)
    )


def form(view: View) -> tuple[int, int, Shape]:
    found = access(1, *view, READ)
    assert found is not None
    _, lo, hi, _, *shape = found
    return lo, hi, (shape[0] if shape else (hi - lo,))


@settings(max_examples=300)
@given(VIEWS)
def test_the_form_has_the_bytes_of_the_view(view: View) -> None:
    lo, hi, shape = form(view)
    found = bytes_of((1, lo, hi, READ, shape))
    assert found == touched(view)
    assert (lo, hi) == (min(found), max(found) + 1)
    if len(shape) > 1:
        check_shape(lo, hi, shape)


@settings(max_examples=500)
@given(VIEWS, VIEWS)
def test_two_views_meet_where_they_share_a_byte(one: View, other: View) -> None:
    (lo, _, shape), (other_lo, _, other_shape) = form(one), form(other)
    expected = bool(touched(one) & touched(other))
    assert meet(lo, shape, other_lo, other_shape) == expected
    assert meet(other_lo, other_shape, lo, shape) == expected


@settings(max_examples=100)
@given(VIEWS, st.randoms(use_true_random=False))
def test_the_order_of_dimensions_changes_nothing(view: View, rng: random.Random) -> None:
    offset, sizes, steps, item = view
    pairs = list(zip(sizes, steps, strict=True))
    rng.shuffle(pairs)
    assert form(view) == form((offset, [n for n, _ in pairs], [s for _, s in pairs], item))


def test_a_view_without_elements_touches_nothing() -> None:
    assert access(1, 5, (3, 0, 2), (2, 2, 1), 4, READ) is None


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [((3, 4), (4, 1)), ((4, 3), (1, 4)), ((3, 5, 4), (4, 0, 1)), ((3, 6), (3, 1)), ((), ())],
)
def test_a_view_without_gaps_is_a_range(sizes: Sequence[int], steps: Sequence[int]) -> None:
    found = access(1, 2, sizes, steps, 4, READ)
    assert found is not None
    assert len(found) == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, [4096], [4096]), (1, [4096], [4096])),  # two columns
        ((0, [2048, 4096], [8192, 1]), (4096, [2048, 4096], [8192, 1])),  # even and odd rows
        ((0, [2048, 1366], [8192, 3]), (1, [4096, 2048], [4096, 2])),
    ],
)
def test_views_of_a_large_matrix_take_few_steps(
    one: tuple[int, list[int], list[int]],
    other: tuple[int, list[int], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strides, "_MOST_STEPS", 20)
    forms = [form((*view, 4)) for view in (one, other)]
    expected = len(forms[0][2]) != len(forms[1][2])  # only the last pair has a common element
    assert meet(forms[0][0], forms[0][2], forms[1][0], forms[1][2]) == expected


def test_beyond_the_bound_views_are_taken_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (1, 5, 6, 5, 2), (1, 5, 7, 2, 3)
    lows = [lo for lo in range(40) if not meet(0, one, lo, other)]
    monkeypatch.setattr(strides, "_MOST_STEPS", 1)
    assert any(meet(0, one, lo, other) for lo in lows)
