"""What a profile of some steps shows: hidden communication, and waits of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._autograd import DeviceType

__all__ = ["overlap", "profile_steps"]

_Span = tuple[float, float]

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
    collectives: list[_Span] = []
    compute: list[_Span] = []
    waits: Counter[str] = Counter()
    for event in profiler.profiler.kineto_results.events():
        name = event.name()
        if event.device_type() == DeviceType.CUDA:
            span = (event.start_ns(), event.start_ns() + event.duration_ns())
            (collectives if "nccl" in name.lower() else compute).append(span)
        elif name in _WAITS:
            waits[name] += 1
    spans = overlap(collectives, compute)
    return {
        "collectives": round(spans["collectives"] / steps / 1e6, 3),
        "compute": round(spans["compute"] / steps / 1e6, 3),
        "hidden": spans["hidden"],
        "possible": spans["possible"],
        "waits": {name: round(waits[name] / steps, 2) for name in _WAITS},
    }


def overlap(collectives: Iterable[_Span], compute: Iterable[_Span]) -> dict[str, Any]:
    """Return how long each of the two lasts, and what share of the first lies in the second.

    ``hidden`` and ``possible`` as in ``profile_steps``, None without collectives; times in the unit
    of the spans, which may overlap among themselves.
    """
    collectives, compute = _union(collectives), _union(compute)
    talking, computing = _length(collectives), _length(compute)
    both = _length(_union([*collectives, *compute]))
    return {
        "collectives": talking,
        "compute": computing,
        "hidden": round((talking + computing - both) / talking, 4) if talking else None,
        "possible": round(min(1.0, computing / talking), 4) if talking else None,
    }


def _union(spans: Iterable[_Span]) -> list[_Span]:
    union: list[_Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _length(union: Iterable[_Span]) -> float:
    return sum(end - start for start, end in union)
