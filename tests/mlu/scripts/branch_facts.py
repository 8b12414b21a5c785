"""Print what torch_mlu's stand-in does, by itself and through this package's backend, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from accel_streams.backends.mlu import MluBackend
from accel_streams.conformance import check_backend
from stand_in_backends import PlainMlu

plain, ours = PlainMlu(), MluBackend()
mlu = plain.device_module()


def raised(call: Callable[[], object]) -> str:
    """Return the name of what a call raises, or nothing."""
    try:
        call()
    except Exception as exc:
        return type(exc).__name__
    return ""


def recorded_on_torchs_own(event: Any) -> str:
    """Return the state of an event that was recorded on torch's own object for a held stream."""
    stream = mlu.Stream()
    with mlu.hold(stream), mlu.stream(stream):
        torch.ones(4, device="mlu")
        error = raised(lambda: event.record(torch.accelerator.current_stream()))
        return error or ("done" if event.query() else "pending")


def default_inside(backend: Any, device: Any) -> Any:
    """Return the id of the default stream, asked for under another."""
    with mlu.stream(mlu.Stream(device=1 if device == "mlu:1" else 0)):
        return backend.stream_id(backend.default_stream(device))


def of(backend: Any, event: Callable[..., Any]) -> dict[str, Any]:
    """Return what a user of the backend and of its events meets."""
    return {
        "default stream": default_inside(backend, None) == ("mlu", 0, 0),
        "default stream of another device": default_inside(backend, "mlu:1") == ("mlu", 1, 0),
        "blocking": raised(lambda: event(blocking=True)) == "",
        "foreign": recorded_on_torchs_own(event()),
        "no stream": raised(lambda: event().record(object())),
        "conformance": {found.id: found.result.value for found in check_backend(backend)},
    }


facts = {
    "sleeps": hasattr(mlu, "_sleep"),
    "theirs": of(plain, mlu.Event),
    "ours": of(ours, type(ours.new_event())),
    "refused": {
        "use_stream": raised(lambda: ours.use_stream(object())),
        "record": raised(lambda: ours.record(ours.new_event(), "mlu:0")),
        "wait": raised(lambda: ours.wait(None, ours.new_event())),
        "keep_alive": raised(lambda: ours.keep_alive(torch.ones(1, device="mlu"), "mlu:0")),
    },
}
with ours.use_stream(torch.Stream(device="mlu:0")):
    facts["generic streams"] = ours.stream_id(ours.current_stream()).stream_id != 0
print(json.dumps(facts))
