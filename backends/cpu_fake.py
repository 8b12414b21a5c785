"""The simulated device of this package: torch device type ``fake``, run on the CPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from accel_streams._backend import Stream
from accel_streams._errors import BuildError
from accel_streams.backends.privateuse1 import PrivateUse1Backend, place_taken

if TYPE_CHECKING:
    import torch
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

    from accel_streams.fake import Gate

__all__ = ["CpuFakeBackend"]

_OLDEST_TORCH = (2, 6)


class CpuFakeBackend(PrivateUse1Backend):
    """Drive the simulated device; its extension is built when the device is first used."""

    name = "cpu_fake"
    device_type = "fake"
    communication_backend = "fccl"
    visible_devices_env = "FAKE_VISIBLE_DEVICES"
    compile_backend = "aot_eager"
    description = "a simulated asynchronous accelerator on the CPU, for tests and demonstrations"
    url = "https://pypi.org/project/accel-streams/"

    def device_module(self) -> Any:
        """Return ``torch.fake``, building and registering the device first."""
        import torch

        from accel_streams import fake

        fake.enable()
        return torch.fake  # type: ignore[attr-defined]

    def probe(self) -> str | None:
        """Return None when the extension can be built here, else what is missing. Build nothing."""
        try:
            import torch
        except ImportError as exc:
            return f"torch can't be imported ({exc})"
        version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
        if version < _OLDEST_TORCH:
            oldest = ".".join(map(str, _OLDEST_TORCH))
            return f"torch {torch.__version__} is too old for it, it needs {oldest} or newer"
        from accel_streams.fake import _build

        try:
            _build.find_compiler()
        except BuildError as exc:
            return str(exc).rstrip(".")
        return place_taken(self.device_type)

    def accelerator(self) -> DeepSpeedAccelerator:
        """Return the accelerator; without a launcher, the script is the only rank."""
        from accel_streams.deepspeed import _launch

        _launch.run_alone_without_launcher()
        return super().accelerator()

    def hold(self, stream: Stream) -> Gate:
        """Hold ``stream`` from here on until ``release()`` of what this returns."""
        from accel_streams import fake

        self.device_module()
        return fake.hold(stream)

    def delay(self, stream: Stream, milliseconds: float) -> None:
        """Put work on ``stream`` that takes so long by the clock that its events have."""
        module = self.device_module()
        with module.stream(stream):
            module._sleep(int(milliseconds * 1e6))

    def annotate_stream(self, stream: Stream, label: str) -> None:
        """Have race reports call ``stream`` by this name."""
        from accel_streams import fake

        fake.name_stream(stream, label)

    def annotate_storage(self, tensor: torch.Tensor, label: str) -> None:
        """Have race reports call the memory of ``tensor`` by this name."""
        from accel_streams import fake

        fake.name_storage(tensor, label)
