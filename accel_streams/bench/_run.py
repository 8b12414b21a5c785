"""Run a benchmark: start the ranks, and put together what they measured."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accel_streams._errors import AccelStreamsError
from accel_streams.bench._ranks import run_ranks
from accel_streams.bench._results import entries
from accel_streams.bench._settings import VARIANTS, Setting
from accel_streams.bench._stats import Ratio

__all__ = ["Group", "Options", "describe_machine", "run"]


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that are measured in the same processes, and the environment these get."""

    name: str
    settings: tuple[Setting, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure.

    ``pairs``: samples of each variant; ``steps``: training steps in a sample; ``warmup``: steps
    before the first; ``profiled``: steps to profile, none for 0.
    """

    variants: tuple[str, ...]
    pairs: int = 5
    steps: int = 30
    warmup: int = 10
    profiled: int = 5
    ranks: int | None = None
    timeout_s: float = 580.0

    def __post_init__(self) -> None:
        unknown = [name for name in self.variants if name not in VARIANTS]
        if unknown:
            raise AccelStreamsError(
                f"no variant is called {', '.join(unknown)}; there are {', '.join(VARIANTS)}"
            )
        if self.pairs < 2 or self.steps < 1:
            raise AccelStreamsError(
                "a ratio needs at least 2 pairs of at least 1 step; "
                f"got {self.pairs} of {self.steps}"
            )


def run(
    groups: Sequence[Group],
    options: Options,
    *,
    commit: str = "",
    report: Callable[[list[dict[str, Any]], list[Ratio]], None] = lambda runs, ratios: None,
    keep: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """Measure the groups one after the other; return the JSON of ``bench``.

    ``report`` is called with what each group gave, and ``keep`` with all until then: also if a rank
    fails, so that nothing that was measured is lost. Raise AccelStreamsError without a CUDA device,
    or when a rank fails.
    """
    ranks = _ranks(options)
    document: dict[str, Any] = {
        "schema": 1,
        "machine": describe_machine(ranks, commit),
        "options": {name: getattr(options, name) for name in ("pairs", "steps", "warmup")},
        "runs": [],
        "ratios": [],
    }
    deadline = time.monotonic() + options.timeout_s
    for group in groups:
        with tempfile.TemporaryDirectory() as folder:
            plan, result = Path(folder, "plan.json"), Path(folder, "result.json")
            plan.write_text(
                json.dumps(
                    asdict(options) | {"settings": [asdict(setting) for setting in group.settings]}
                )
            )
            try:
                run_ranks(
                    ["-m", "accel_streams.bench._worker", str(plan), str(result)],
                    ranks,
                    timeout_s=max(1.0, deadline - time.monotonic()),
                    environment=group.environment,
                )
            finally:
                if result.exists():
                    runs, ratios = entries(json.loads(result.read_text()), group.name)
                    document["runs"] += runs
                    document["ratios"] += [ratio.to_json() for ratio in ratios]
                    report(runs, ratios)
                    keep(document)
    return document


def _ranks(options: Options) -> int:
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found == 0:
        raise AccelStreamsError(
            f"torch {torch.__version__} finds no CUDA device: this measures training on real GPUs. "
            "For the simulated device there is `accel-streams demo`, which needs none."
        )
    wanted = options.ranks or found
    if wanted > found:
        raise AccelStreamsError(f"{wanted} ranks need as many GPUs, and torch finds {found}")
    return wanted


def describe_machine(ranks: int, commit: str) -> dict[str, Any]:
    """Return what the results depend on: GPUs and versions."""
    import deepspeed
    import torch

    nccl: Any = torch.cuda.nccl  # Untyped.
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": ranks,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, nccl.version())),
        "deepspeed": deepspeed.__version__,
        "commit": commit,
    }
