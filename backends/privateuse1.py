"""The base class of a backend for a vendor's PrivateUse1 device.

A vendor's backend is a subclass with a handful of class attributes::

    from accel_streams.backends.privateuse1 import PrivateUse1Backend

    class NovaBackend(PrivateUse1Backend):
        name = "nova"
        device_type = "nova"
        module = "torch_nova"
        communication_backend = "nccl_nova"
        visible_devices_env = "NOVA_VISIBLE_DEVICES"
        description = "Nova accelerators through torch_nova"
        url = "https://example.com/torch_nova"

and an entry point in the group ``accel_streams.backends`` that names it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, cast

from accel_streams._backend import Capabilities, Device, Event, Ordering, Stream, StreamId

if TYPE_CHECKING:
    import torch
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

__all__ = ["PrivateUse1Backend", "place_taken"]


class PrivateUse1Backend:
    """Drive a device through ``torch.<device_type>``, else through what torch has for any device.

    The vendor's own classes come first, because they work on every torch since 2.1;
    ``torch.Stream`` and ``torch.accelerator`` fill in for a vendor that has only registered its
    device with torch.
    """

    name: str
    device_type: str
    description: str
    url: str
    api_version = 1
    capabilities = Capabilities(Ordering.ASYNC)

    module: str | None = None
    """The package to import before ``torch.<device_type>`` exists; None when torch has it."""

    communication_backend: str
    """The ``torch.distributed`` backend of the device."""

    visible_devices_env: str
    """The variable that restricts a process to some of the devices, as comma-separated numbers."""

    compile_backend = "inductor"
    """The ``torch.compile`` backend that DeepSpeed uses unless told otherwise."""

    def device_module(self) -> Any:
        """Return ``torch.<device_type>``, importing the vendor's package first.

        Raise ImportError when that package is missing, AttributeError when it registers nothing.
        """
        import torch

        if self.module is not None:
            importlib.import_module(self.module)
        return getattr(torch, self.device_type)

    def probe(self) -> str | None:
        """Return None when torch reports a device, else why it doesn't."""
        try:
            module = self.device_module()
        except ImportError as exc:
            return f"{self.module or 'torch'} can't be imported ({exc})"
        except AttributeError:
            nothing = f"{self.module or 'torch'} registers no torch.{self.device_type}"
            return place_taken(self.device_type) or nothing
        except RuntimeError:  # Torch's, for a second device from outside.
            taken = place_taken(self.device_type)
            if taken is None:
                raise
            return taken
        if not module.is_available():
            return f"torch.{self.device_type} finds no device"
        return None

    def current_stream(self, device: Device = None, /) -> Stream:
        """Return the current stream of ``device``."""
        current = getattr(self.device_module(), "current_stream", None)
        if current is not None:
            return current(device)
        import torch

        return torch.accelerator.current_stream(device)

    def default_stream(self, device: Device = None, /) -> Stream:
        """Return the default stream of ``device``."""
        default = getattr(self.device_module(), "default_stream", None)
        if default is not None:
            return default(device)
        import torch

        # The default stream has the id 0 on every device that torch knows.
        current = torch.accelerator.current_stream(device)
        return torch.Stream(
            stream_id=0, device_index=current.device_index, device_type=current.device_type
        )

    def new_stream(self, device: Device = None, /, *, priority: int = 0) -> Stream:
        """Return a new stream on ``device``, from the vendor's pool."""
        import torch

        stream_class = getattr(self.device_module(), "Stream", torch.Stream)
        return stream_class(device=self._device(device), priority=priority)

    def use_stream(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make ``stream`` current inside the ``with`` block."""
        scope = getattr(self.device_module(), "stream", None)
        if scope is not None:
            return cast("AbstractContextManager[Any]", scope(stream))
        # From torch 2.7 on, a torch.Stream is itself such a context manager.
        return stream if hasattr(stream, "__enter__") else _current(stream)

    def new_event(self, *, timing: bool = False) -> Event:
        """Return an event that has not been recorded."""
        event_class = getattr(self.device_module(), "Event", None)
        if event_class is not None:
            return event_class(enable_timing=timing)
        import torch

        return torch.Event(self.device_type, enable_timing=timing)

    def record(self, event: Event, stream: Stream) -> None:
        """Make ``event`` stand for everything submitted to ``stream`` so far."""
        event.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of ``stream`` wait for ``event``."""
        stream.wait_event(event)

    def query(self, event: Event) -> bool:
        """Return whether everything that ``event`` stands for has finished."""
        return bool(event.query())

    def synchronize(self, event: Event | None = None, /) -> None:
        """Make the host wait for ``event``, or for all work of the current device."""
        if event is not None:
            event.synchronize()
            return
        synchronize = getattr(self.device_module(), "synchronize", None)
        if synchronize is None:
            import torch

            synchronize = torch.accelerator.synchronize
        synchronize()

    def stream_id(self, stream: Stream) -> StreamId:
        """Return the identity of ``stream``."""
        return StreamId(self.device_type, stream.device_index, stream.stream_id)

    def keep_alive(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep the memory of ``tensor`` from reuse until the work now on ``stream`` is done."""
        tensor.record_stream(stream)

    @property
    def hold(self) -> Any:
        """The function ``hold`` of ``torch.<device_type>``, if it has one, for tests.

        ``hold(stream)`` keeps what is submitted to the stream from then on waiting, and returns an
        object whose ``release()`` lets it go on. Raise AttributeError if there is none.
        """
        return self.device_module().hold

    @property
    def delay(self) -> Any:
        """The function ``delay`` of ``torch.<device_type>``, if it has one, for tests.

        ``delay(stream, milliseconds)`` keeps the stream busy that long, by the clock of its events.
        Raise AttributeError if there is none; then ``_sleep`` or matrix products are used.
        """
        return self.device_module().delay

    def accelerator(self) -> DeepSpeedAccelerator:
        """Return a DeepSpeed accelerator over ``torch.<device_type>``."""
        from accel_streams.deepspeed._accelerator import GenericAccelerator

        return GenericAccelerator(self)

    def _device(self, device: Device) -> torch.device:
        import torch

        if device is None:
            return torch.device(self.device_type)
        if isinstance(device, int):
            return torch.device(self.device_type, device)
        return torch.device(device)


@contextmanager
def _current(stream: Stream) -> Iterator[None]:
    import torch

    # Setting a stream sets its device too: what was current on both devices comes back.
    former = (torch.accelerator.current_stream(stream.device), torch.accelerator.current_stream())
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        for earlier in former:
            torch.accelerator.set_stream(earlier)


def place_taken(device_type: str) -> str | None:
    """Return a line that says so when another type has torch's one place for a device from outside.

    None when it is free, is held by ``device_type``, or torch can't be imported.
    """
    try:
        import torch
    except ImportError:
        return None
    holder: str = torch._C._get_privateuse1_backend_name()
    if holder in ("privateuseone", device_type):
        return None
    return (
        f"torch has one place for a device from outside, and {holder!r} has taken it in this "
        "process"
    )
