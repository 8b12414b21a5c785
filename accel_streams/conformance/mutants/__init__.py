"""Backends broken on purpose: a check that none of them fails checks nothing.

Each changes one thing of a real backend and names the properties that have to notice.
``accel-streams check BACKEND --mutants`` runs those and shows who noticed what.
"""

from __future__ import annotations

from accel_streams.conformance.mutants import _events, _identity, _memory, _ordering
from accel_streams.conformance.mutants._mutant import MUTANTS, Mutant
from accel_streams.conformance.mutants._wrapped import Wrapped

__all__ = ["MUTANTS", "Mutant", "Wrapped"]

_MODULES = (_ordering, _events, _identity, _memory)
