"""What a vendor has: the package that gives torch the device. Here it is the simulated one."""

import torch
import torch.distributed as dist

from accel_streams import fake
from accel_streams.fake import _api, _collectives, _device


def _register_collectives() -> None:
    dist.Backend.register_backend("nova_ccl", _collectives._create, devices=["cpu", "nova"])


def _delay(stream: torch.Stream, milliseconds: float) -> None:
    with _module.stream(stream):
        _module._sleep(int(milliseconds * 1e6))


_module = _device.make_module("nova")
# For `accel-streams check`: a stream can be held, and kept busy by the clock of its events.
_module.hold, _module.delay = fake.hold, _delay
_api.enable_as("nova", _module, _register_collectives)
