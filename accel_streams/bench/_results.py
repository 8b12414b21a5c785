"""Put what the ranks measured into the JSON of ``bench``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from accel_streams.bench._stats import Ratio, ratio

__all__ = ["RATIOS", "entries"]

RATIOS = (
    ("track", "stock"),
    ("track", "stock-no-overlap"),
    ("track", "sync"),
    ("track", "ddp"),
    ("track", "fsdp2"),
)
"""What is compared with what: times of the first over times of the second."""


def entries(
    results: Mapping[str, Any], environment: str
) -> tuple[list[dict[str, Any]], list[Ratio]]:
    """Return ``runs`` and ``ratios`` of what was measured under the named ``environment``."""
    runs: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    for setting, measured in results.items():
        samples: Mapping[str, Sequence[float]] = measured["samples"]
        for variant, values in samples.items():
            alone = measured["alone"].get(variant, {})
            runs.append(
                {
                    "name": f"{environment}/{setting}/{variant}",
                    "median_ms": round(statistics.median(values), 3),
                    "min_ms": round(min(values), 3),
                    "samples": [round(value, 3) for value in values],
                    "peak_bytes": None,
                    **alone,
                }
            )
        for above, below in RATIOS:
            if above in samples and below in samples:
                name = f"{environment}/{setting}: {above} / {below}"
                ratios.append(ratio(name, samples[above], samples[below]))
    return runs, ratios
