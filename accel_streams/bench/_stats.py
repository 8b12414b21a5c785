"""Ratios of times that were taken in turn, with what is known of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "ratio"]

# Student's t for a two-sided interval of 95 %, by degrees of freedom (from 1).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
_T95_BEYOND = 1.96


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two times and its interval of 95 %."""

    name: str
    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, object]:
        """Return the entry of ``ratios``."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
        }


def ratio(name: str, above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the geometric mean of ``above / below``, pair by pair.

    The interval supposes that the logarithms are normally distributed. Raise ValueError when there
    are fewer than two pairs or the lengths differ.
    """
    if len(above) != len(below) or len(above) < 2:
        raise ValueError(
            f"a ratio needs at least two pairs, and gets {len(above)} and {len(below)} samples"
        )
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    mean = statistics.fmean(logs)
    freedom = len(logs) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else _T95_BEYOND
    margin = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(name, math.exp(mean), math.exp(mean - margin), math.exp(mean + margin))
