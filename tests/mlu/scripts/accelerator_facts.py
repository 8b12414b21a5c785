"""Print what DeepSpeed's accelerator for MLUs does on the stand-in, and this package's, as JSON."""

from __future__ import annotations

import json
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import mlu_accelerator

from accel_streams.backends.mlu import MluBackend
from accel_streams.deepspeed._interface import interface_faults

backend = MluBackend()
mlu = backend.device_module()
theirs, ours = mlu_accelerator.MLU_Accelerator(), backend.accelerator()


def default_is_current(accelerator: Any) -> bool:
    """Tell whether the default stream is another one under another."""
    with accelerator.stream(accelerator.Stream()):
        return bool(accelerator.default_stream() == accelerator.current_stream())


mlu.manual_seed(11)
facts: dict[str, Any] = {
    "deepspeed": deepspeed.__version__.strip(),
    "faults": {
        name: [fault.method for fault in interface_faults(accelerator)]
        for name, accelerator in (("theirs", theirs), ("ours", ours))
    },
    "default is current": {
        "theirs": default_is_current(theirs),
        "ours": default_is_current(ours),
    },
    "ours": {
        "is DeepSpeed's": isinstance(ours, mlu_accelerator.MLU_Accelerator),
        "events are torch_mlu's": issubclass(ours.Event, mlu.Event)
        and type(backend.new_event()) is ours.Event,
        "blocking": ours.Event(blocking=True).query(),
        "device": [str(ours.device(1)), str(ours.device())],
        "seed": ours.initial_seed(),
        "graph": type(ours.create_graph()).__name__,
        "pinned": ours.is_pinned(ours.pin_memory(torch.ones(4), 1)),
        "ranges": [ours.range_push("a", domain=None), ours.range_pop()],
        "communication": ours.communication_backend_name(),
        "exported": ours.export_envs(),
    },
}
with torch.autocast("mlu", dtype=torch.bfloat16):
    product = torch.ones(4, 4, device="mlu") @ torch.ones(4, 4, device="mlu")
facts["autocast"] = str(product.dtype)
weight = torch.ones(4, device="mlu", requires_grad=True)
scaler, sgd = torch.amp.GradScaler("mlu"), torch.optim.SGD([weight], lr=1.0)
scaler.scale(weight.sum()).backward()  # type: ignore[no-untyped-call]
scaler.step(sgd)
facts["scaled step"] = weight.tolist()
print(json.dumps(facts))
