"""The contract between this package and a device: the Backend protocol.

Everything that is derived from these methods is derived once, elsewhere in the core. Importing this
module imports neither torch nor anything of a vendor's, so a backend's module can import it freely.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, Union

if TYPE_CHECKING:
    import torch
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

__all__ = [
    "API_VERSION",
    "Backend",
    "Capabilities",
    "Device",
    "Event",
    "Ordering",
    "Stream",
    "StreamId",
]

API_VERSION = 1
"""The version of the Backend protocol. It grows when a backend has to change to stay right."""

# Opaque on purpose: torch.Stream, torch.cuda.Stream or a vendor's own class. Only the backend that
# made one looks inside; two are compared by Backend.stream_id, never by identity or ==.
Stream: TypeAlias = Any
Event: TypeAlias = Any
Device: TypeAlias = Union["torch.device", int, str, None]


class Ordering(str, Enum):
    """What a device orders by itself."""

    ASYNC = "async"
    """Streams run independently; only events order them (CUDA, MLU, NPU, XPU, the fake device)."""

    STREAM_ORDERED = "stream_ordered"
    """Asynchronous to the host, but the streams are ordered among themselves (HPU)."""

    SYNCHRONOUS = "synchronous"
    """Work is done when the call returns (CPU)."""


class Capabilities(NamedTuple):
    """What a backend's device can do.

    ``pool_size``: how many distinct streams ``new_stream`` can give before it hands out earlier
    ones again; None when there is no such limit, or it isn't known.
    """

    ordering: Ordering
    pool_size: int | None = None


class StreamId(NamedTuple):
    """The identity of a stream. Two streams are the same when their ids are equal.

    ``stream_id`` alone is not enough: the default streams of all devices have the same one.
    """

    device_type: str
    device_index: int
    stream_id: Hashable


class Backend(Protocol):
    """One kind of device, as the rest of this package sees it.

    Registered by an entry point in the group ``accel_streams.backends`` whose value is a class with
    a constructor that takes no arguments. The module that defines the class imports neither torch
    nor a vendor's package at top level, because listing the backends imports it; the methods may.

    A backend may have more, for ``accel-streams check``:

    ``declared``: a mapping from ids of properties, such as ``"ORD-15"``, to why the device deviates
    there; what fails then is reported as ``declared``.
    ``hold(stream)``: keep what is submitted to the stream from now on waiting, and return an object
    whose ``release()`` lets it go on. Without it a stream is kept busy for a measured time.
    ``delay(stream, milliseconds)``: keep the stream busy that long, by the clock of its events.
    ``device_module()``: return ``torch.<device_type>``, importing what it takes.
    """

    name: str
    """The registered name, a word ``[a-z][a-z0-9_]*``."""

    device_type: str
    """The torch device type, as in ``torch.device(device_type)``."""

    api_version: int
    """The API_VERSION that the backend was written for, as a literal."""

    capabilities: Capabilities

    description: str
    """One line for people: what the device is."""

    url: str
    """Where to report a fault of the backend."""

    def probe(self) -> str | None:
        """Return None when the device is usable here, else one line of why not."""

    def current_stream(self, device: Device = None, /) -> Stream:
        """Return the current stream of ``device`` (None: of the current device)."""

    def default_stream(self, device: Device = None, /) -> Stream:
        """Return the default stream of ``device``, whichever stream is current."""

    def new_stream(self, device: Device = None, /, *, priority: int = 0) -> Stream:
        """Return a stream other than the default one; lower ``priority`` numbers run first."""

    def use_stream(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make ``stream`` current inside the ``with`` block, and the former one again after it."""

    def new_event(self, *, timing: bool = False) -> Event:
        """Return an event that has not been recorded."""

    def record(self, event: Event, stream: Stream) -> None:
        """Make ``event`` stand for everything submitted to ``stream`` so far.

        An event may be recorded again; waits issued before that keep their meaning.
        """

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of ``stream`` wait for ``event``. The host does not wait."""

    def query(self, event: Event) -> bool:
        """Return whether everything that ``event`` stands for has finished."""

    def synchronize(self, event: Event | None = None, /) -> None:
        """Make the host wait for ``event``, or (None) for all work of the current device."""

    def stream_id(self, stream: Stream) -> StreamId:
        """Return the identity of ``stream``."""

    def keep_alive(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep the memory of ``tensor`` until the work now on ``stream`` has finished."""

    def accelerator(self) -> DeepSpeedAccelerator:
        """Return a new DeepSpeed accelerator object that runs on this backend."""
