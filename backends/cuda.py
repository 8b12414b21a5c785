"""NVIDIA GPUs, and AMD GPUs under ROCm, through ``torch.cuda``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accel_streams._backend import Capabilities, Device, Event, Ordering, Stream, StreamId

if TYPE_CHECKING:
    import torch
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

__all__ = ["CudaBackend"]


class _CurrentStream:
    """Make a stream current; like torch.cuda.stream, and quicker for one of the current device."""

    __slots__ = ("_entered", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        # What to go back to, of each time it was entered: a stream, or torch's own context.
        self._entered: list[Any] = []

    def __enter__(self) -> None:
        import torch

        cuda: Any = torch.cuda  # Partly untyped.
        stream = self._stream
        device = torch._C._cuda_getDevice() if cuda.is_initialized() else -1
        if stream.device_index == device:
            self._entered.append(torch._C._cuda_getCurrentStream(device))
            _set_current(stream.stream_id, stream.device_index, stream.device_type)
        else:
            context = cuda.stream(stream)
            context.__enter__()
            self._entered.append(context)

    def __exit__(self, *exc_info: object) -> None:
        entered = self._entered.pop()
        if isinstance(entered, tuple):
            _set_current(*entered)
        else:
            entered.__exit__(*exc_info)


def _set_current(stream_id: int, device_index: int, device_type: int) -> None:
    import torch

    torch._C._cuda_setStream(
        stream_id=stream_id, device_index=device_index, device_type=device_type
    )


class CudaBackend:
    """Drive CUDA devices; DeepSpeed keeps its own CUDA accelerator as the base class."""

    name = "cuda"
    device_type = "cuda"
    api_version = 1
    # torch has 32 streams for each priority and device, and hands them out in turn.
    capabilities = Capabilities(Ordering.ASYNC, pool_size=32)
    description = "NVIDIA GPUs, and AMD GPUs under ROCm, through torch.cuda"
    url = "https://pytorch.org/docs/stable/cuda.html"

    def probe(self) -> str | None:
        """Return None when torch finds a GPU, else why not."""
        try:
            import torch
        except ImportError as exc:
            return f"torch can't be imported ({exc})"
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {torch.__version__} is built without CUDA"
        if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
            return "torch.cuda finds no GPU"
        return None

    def current_stream(self, device: Device = None, /) -> Stream:
        """Return the current stream of ``device``."""
        import torch

        cuda: Any = torch.cuda  # Partly untyped.
        if device is None and cuda.is_initialized():
            # As torch.cuda.current_stream does, which takes ten times as long to find the device.
            stream_id, device_index, device_type = torch._C._cuda_getCurrentStream(
                torch._C._cuda_getDevice()
            )
            return cuda.Stream(
                stream_id=stream_id, device_index=device_index, device_type=device_type
            )
        return torch.cuda.current_stream(device)

    def default_stream(self, device: Device = None, /) -> Stream:
        """Return the default stream of ``device``."""
        import torch

        return torch.cuda.default_stream(device)

    def new_stream(self, device: Device = None, /, *, priority: int = 0) -> Stream:
        """Return the next stream of torch's pool for ``device``."""
        import torch

        stream_class: Any = torch.cuda.Stream  # torch leaves its constructor untyped.
        return stream_class(device=device, priority=priority)

    def use_stream(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make ``stream`` current inside the ``with`` block."""
        return _CurrentStream(stream)

    def new_event(self, *, timing: bool = False) -> Event:
        """Return an event that has not been recorded."""
        import torch

        event_class: Any = torch.cuda.Event
        return event_class(enable_timing=timing)

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
        import torch

        if event is None:
            torch.cuda.synchronize()
        else:
            event.synchronize()

    def stream_id(self, stream: Stream) -> StreamId:
        """Return the identity of ``stream``."""
        return StreamId("cuda", stream.device_index, stream.stream_id)

    def keep_alive(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep the memory of ``tensor`` from reuse until the work now on ``stream`` is done."""
        tensor.record_stream(stream)

    def accelerator(self) -> DeepSpeedAccelerator:
        """Return DeepSpeed's CUDA accelerator with its streams taken from here."""
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

        from accel_streams.deepspeed._mixin import with_streams

        return with_streams(CUDA_Accelerator, self)
