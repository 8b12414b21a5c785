"""Where the records of a trace come from: the device itself, or a look at torch's dispatcher."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from accel_streams._errors import AccelStreamsError
from accel_streams.races._race import StreamNames
from accel_streams.races._records import Record

if TYPE_CHECKING:
    import torch

__all__ = ["FakeSource", "Sink", "TraceSource", "choose_source"]

Sink: TypeAlias = Callable[[Sequence[Record]], None]


class TraceSource(Protocol):
    """Gives the records of what a process does on one kind of device."""

    device_type: str

    sink_may_raise: bool
    """Whether what the sink raises reaches the program, at the operation that it just did."""

    def start(self, sink: Sink, *, promptly: bool = False) -> None:
        """Hand records to ``sink`` from now on; ``promptly``: at every operation, if possible."""

    def flush(self) -> None:
        """Hand over what has gathered."""

    def stop(self) -> None:
        """Hand over the rest, and no more. A second call does nothing."""

    def stream_names(self) -> StreamNames:
        """Return what to call streams."""

    def unseen(self) -> list[str]:
        """Return, in plain words, what the records do not hold."""


class FakeSource:
    """The simulated device, which keeps the trace itself."""

    device_type = "fake"
    # It is called from the device's own code, which can't pass an exception on.
    sink_may_raise = False

    def __init__(self, *, full: bool = False) -> None:
        """``full``: with what pictures need besides, for which nobody else may record."""
        self._full = full
        self._stop: Callable[[], object] | None = None

    def start(self, sink: Sink, *, promptly: bool = False) -> None:
        """Hand records to ``sink`` from now on, in chunks in any case."""
        from accel_streams import fake

        fake.enable()
        if self._full:
            fake.start_trace(sink=sink)
            self._stop = fake.stop_trace
        else:
            self._stop = fake.listen(sink)

    def flush(self) -> None:
        """Hand over what has gathered."""
        from accel_streams import fake

        if self._stop is not None:
            fake.flush_trace()

    def stop(self) -> None:
        """Hand over the rest, and no more."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def stream_names(self) -> StreamNames:
        """Return the names of streams."""
        from accel_streams import fake

        return fake.stream_names()

    def unseen(self) -> list[str]:
        """Return what the simulated device does not trace."""
        return [
            "what the host does to pinned memory while the device copies from it or to it",
        ]


def choose_source(device: torch.device | str | None = None) -> TraceSource:
    """Return the source for a device; None: the simulated one if enabled, else torch's.

    Raise AccelStreamsError when there is no device whose work could race.
    """
    device_type = _device_type(device)
    if device_type == "fake":
        return FakeSource()
    from accel_streams.races._dispatch import DispatchSource

    return DispatchSource(device_type)


def _device_type(device: torch.device | str | None) -> str:
    import torch

    if device is not None:
        text = device if isinstance(device, str) else device.type
        device_type = text.partition(":")[0]
        if device_type in ("cpu", "meta"):
            raise AccelStreamsError(
                f"There are no streams on the device {device_type!r}, so nothing can race there. "
                "Watch an accelerator, or the simulated device: device='fake'."
            )
        return device_type
    fake: Any = sys.modules.get("accel_streams.fake")
    if fake is not None and fake.is_enabled():
        return "fake"
    current = getattr(getattr(torch, "accelerator", None), "current_accelerator", lambda: None)()
    if current is not None:
        return str(current.type)
    if torch.cuda.is_available():
        return "cuda"
    raise AccelStreamsError(
        "torch finds no accelerator to watch. Call accel_streams.fake.enable() first to use the "
        "simulated device, or say which device to watch: watch(device='...')."
    )
