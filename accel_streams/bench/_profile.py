"""What a profile of some steps shows: hidden communication, and waits of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._autograd import DeviceType

__all__ = ["profile_steps"]

_WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")


def profile_steps(run: Callable[[], None], steps: int) -> dict[str, Any]:
    """Profile ``run``, which does ``steps`` steps; times are in ms a step.

    ``collectives``: time in which one runs. ``compute``: time in which any other kernel runs.
    ``hidden``: the share of the former that lies inside the latter. ``possible``: the share that
    could at best, min(1, compute / collectives). ``waits``: host calls that wait, by name, a step.
    """
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        run()
    collectives: list[tuple[float, float]] = []
    compute: list[tuple[float, float]] = []
    waits: Counter[str] = Counter()
    for event in profiler.profiler.kineto_results.events():
        name = event.name()
        if event.device_type() == DeviceType.CUDA:
            span = (event.start_ns(), event.start_ns() + event.duration_ns())
            (collectives if "nccl" in name.lower() else compute).append(span)
        elif name in _WAITS:
            waits[name] += 1
    collectives, compute = _union(collectives), _union(compute)
    talking, computing = _length(collectives), _length(compute)
    both = _length(_union([*collectives, *compute]))
    hidden = talking + computing - both
    return {
        "collectives": round(talking / steps / 1e6, 3),
        "compute": round(computing / steps / 1e6, 3),
        "hidden": round(hidden / talking, 4) if talking else None,
        "possible": round(min(1.0, computing / talking), 4) if talking else None,
        "waits": {name: round(waits[name] / steps, 2) for name in _WAITS},
    }


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    union: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _length(union: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in union)
