"""Backends for the stand-in: this package's, and one with nothing but torch_mlu's names.

Both can hold a stream, which nothing in torch_mlu can; the simulated device under it does.
"""

from __future__ import annotations

from accel_streams import fake
from accel_streams._backend import Stream
from accel_streams.backends.mlu import MluBackend
from accel_streams.backends.privateuse1 import PrivateUse1Backend

__all__ = ["HeldMlu", "HeldPlainMlu", "PlainMlu"]


class _Held:
    """What the suite asks of the simulated device rather than of torch_mlu."""

    def hold(self, stream: Stream) -> fake.Gate:
        """Hold ``stream`` until the gate is released."""
        return fake.hold(stream)

    def delay(self, stream: Stream, milliseconds: float) -> None:
        """Put work on ``stream`` that lasts so long by the virtual clock."""
        from accel_streams.fake._extension import extension

        with self.use_stream(stream):  # type: ignore[attr-defined]
            extension().spin(stream.device_index, round(milliseconds * 1e6))


class HeldMlu(_Held, MluBackend):
    """The backend of this package."""


class PlainMlu(PrivateUse1Backend):
    """What a vendor's backend is that has nothing of its own."""

    name = "mlu"
    device_type = "mlu"
    module = "torch_mlu"
    communication_backend = "cncl"
    visible_devices_env = "MLU_VISIBLE_DEVICES"
    capabilities = MluBackend.capabilities
    description = "MLUs through torch_mlu, taken as it is"
    url = "https://github.com/Cambricon/torch_mlu"


class HeldPlainMlu(_Held, PlainMlu):
    """The same, for the suite."""
