"""Backends broken on purpose: a check that none of them fails checks nothing.

Each changes one thing of a real backend and names the properties that have to notice.
``accel-streams check BACKEND --mutants`` runs those and shows who noticed what.
"""

from __future__ import annotations

from importlib import import_module

from accel_streams.conformance.mutants._mutant import MUTANTS, Mutant
from accel_streams.conformance.mutants._wrapped import Wrapped

__all__ = ["MUTANTS", "Mutant", "Wrapped"]

# Importing one registers its mutants, in the order in which they are listed.
for _module in ("_ordering", "_events", "_identity", "_memory"):
    import_module(f"{__name__}.{_module}")
