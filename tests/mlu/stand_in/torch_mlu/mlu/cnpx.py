"""Ranges for a profiler, which nobody reads here."""

from __future__ import annotations

__all__ = ["range_pop", "range_push"]

_depth = 0


def range_push(msg: str) -> int:
    global _depth
    _depth += 1
    return _depth


def range_pop() -> int:
    global _depth
    _depth -= 1
    return _depth
