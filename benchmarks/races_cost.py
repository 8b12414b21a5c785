"""Measure what watching torch's dispatcher costs for each operation; print JSON.

On the simulated device, as a stand-in for a real one, with its own trace off. The program is one
small operation in a loop, so the cost is the host's alone. Times are CPU times of the calling
thread, the best of many short bursts: what else the machine does must not count. ``mode`` is a
dispatch mode of torch's that does nothing, the least that a look at the dispatcher costs;
``watched`` is the whole: looking, with the innermost line of the program's own, and the analysis.

For example: ``python benchmarks/races_cost.py``.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel_streams import fake
from accel_streams.races._dispatch import DispatchSource
from accel_streams.races._watch import Watch

BURST = 200


class Nothing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operator on."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator."""
        return func(*args, **kwargs) if kwargs else func(*args)


def measure(operation: Callable[[], object], bursts: int) -> float:
    """Return the microseconds of CPU time for one operation."""
    best = float("inf")
    for _ in range(bursts):
        start = time.thread_time()
        for _ in range(BURST):
            operation()
        best = min(best, time.thread_time() - start)
        torch.fake.synchronize()  # type: ignore[attr-defined]
    return best / BURST * 1e6


def main() -> None:
    """Measure some operations and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=60)
    options = parser.parse_args()
    fake.enable()
    x, y = torch.ones(16, device="fake"), torch.ones(16, device="fake")
    operations: dict[str, Callable[[], object]] = {
        "x.add_(y)": lambda: x.add_(y),
        "x + y": lambda: x + y,
        "x.view(4, 4)": lambda: x.view(4, 4),
    }
    results = []
    for name, operation in operations.items():
        measure(operation, 3)
        bare = measure(operation, options.bursts)
        with Nothing():  # type: ignore[no-untyped-call]
            mode = measure(operation, options.bursts)
        seen = Watch(DispatchSource("fake"))
        seen.start()
        watched = measure(operation, options.bursts)
        seen.stop()
        results.append(
            {
                "operation": name,
                "bare_us": round(bare, 2),
                "mode_us": round(mode, 2),
                "watched_us": round(watched, 2),
                "added_us": round(watched - bare, 2),
                "added_to_mode_us": round(watched - mode, 2),
            }
        )
    print(
        json.dumps(
            {"torch": torch.__version__, "machine": platform.machine(), "operations": results},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
