"""Print what torch_mlu's stand-in does, by itself and through this package's backend, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import mlu_accelerator

from accel_streams import fake
from accel_streams.backends.mlu import MluBackend
from accel_streams.deepspeed._interface import interface_faults
from stand_in_backends import PlainMlu

plain, ours = PlainMlu(), MluBackend()
mlu = plain.device_module()
theirs, accelerator = mlu_accelerator.MLU_Accelerator(), ours.accelerator()


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
    with fake.hold(stream), mlu.stream(stream):
        torch.ones(4, device="mlu")
        error = raised(lambda: event.record(torch.accelerator.current_stream()))
        return error or ("done" if event.query() else "pending")


def default_inside(backend: Any, device: Any) -> Any:
    """Return the id of the default stream, asked for under another."""
    with mlu.stream(mlu.Stream(device=1 if device in (1, "mlu:1") else 0)):
        return backend.stream_id(backend.default_stream(device))


def of(backend: Any, event: Callable[..., Any], accelerator: Any) -> dict[str, Any]:
    """Return what a user of the backend and of the accelerator meets."""
    outside = backend.stream_id(backend.default_stream())
    stream = backend.new_stream()
    with accelerator.stream(stream):
        under_another = accelerator.default_stream() == accelerator.current_stream()
    return {
        "default stream": default_inside(backend, None) == outside,
        "default stream of another device": default_inside(backend, "mlu:1") == ("mlu", 1, 0),
        "default stream of DeepSpeed's": not under_another,
        "blocking": raised(lambda: event(blocking=True)) == "",
        "foreign": recorded_on_torchs_own(event()),
        "no stream": raised(lambda: event().record(object())),
        "faults": [fault.method for fault in interface_faults(accelerator)],
    }


mlu.manual_seed(11)
facts = {
    "deepspeed": deepspeed.__version__.strip(),
    "sleeps": hasattr(mlu, "_sleep"),
    "theirs": of(plain, mlu.Event, theirs),
    "ours": of(ours, accelerator.Event, accelerator),
    "accelerator": {
        "is DeepSpeed's": isinstance(accelerator, mlu_accelerator.MLU_Accelerator),
        "events are torch_mlu's": issubclass(accelerator.Event, mlu.Event)
        and type(ours.new_event()) is accelerator.Event,
        "seed": accelerator.initial_seed(),
        "graph": type(accelerator.create_graph()).__name__,
        "pinned": accelerator.is_pinned(accelerator.pin_memory(torch.ones(4), 1)),
        "ranges": accelerator.range_push("a", domain=None) is not None
        and accelerator.range_pop() is not None,
        "backend": accelerator.communication_backend_name(),
        "exported": accelerator.export_envs(),
    },
    "refused": {
        name: raised(call)
        for name, call in {
            "use_stream": lambda: ours.use_stream(object()),
            "record": lambda: ours.record(ours.new_event(), "mlu:0"),
            "wait": lambda: ours.wait(None, ours.new_event()),
            "keep_alive": lambda: ours.keep_alive(torch.ones(1, device="mlu"), "mlu:0"),
        }.items()
    },
}
with ours.use_stream(torch.Stream(device="mlu:0")):
    facts["generic streams"] = ours.stream_id(ours.current_stream()).stream_id != 0
with torch.autocast("mlu", dtype=torch.bfloat16):
    product = torch.ones(4, 4, device="mlu") @ torch.ones(4, 4, device="mlu")
facts["autocast"] = str(product.dtype)
weight = torch.ones(4, device="mlu", requires_grad=True)
scaler, sgd = torch.amp.GradScaler("mlu"), torch.optim.SGD([weight], lr=1.0)
scaler.scale(weight.sum()).backward()  # type: ignore[no-untyped-call]
scaler.step(sgd)
facts["scaled step"] = weight.tolist()
print(json.dumps(facts))
