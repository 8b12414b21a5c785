"""What torch_mlu's streams and events leave to be desired, and what differs between its branches.

Written against the sources of Cambricon/torch_mlu; docs/mlu.md has the branches and commits.

============================================  =============================================
Fault                                         Branches
============================================  =============================================
``default_stream()`` returns the current one  r1.22_pt2.1.0
``Event(blocking=True)`` raises               r1.22_pt2.1.0, r1.22_pt2.3.0, r1.22_pt2.4.0,
                                              r2.3_develop
no ``_sleep``                                 the same four
events take any object for an mlu stream      all
============================================  =============================================

Nothing here asks for a version: what is right for the branch that has a fault is right for all.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from accel_streams._backend import Device

__all__ = ["as_mlu_stream", "default_stream", "event_class"]


def default_stream(device: Device) -> Any:
    """Return the default stream of ``device``, whichever stream is current.

    In one branch ``torch.mlu.default_stream`` asks the binding for the current stream. The binding
    that it should have asked is there in every branch.
    """
    import torch
    import torch_mlu

    mlu: Any = torch.mlu  # type: ignore[attr-defined]
    binding = getattr(torch_mlu._MLUC, "_mlu_getDefaultStream", None)
    if binding is None:
        return mlu.default_stream(device)
    mlu._lazy_init()
    stream_id, device_index, device_type = binding(_index(mlu, device))
    return mlu.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def as_mlu_stream(stream: Any) -> Any:
    """Return ``stream`` as a ``torch.mlu.Stream``.

    torch_mlu's events don't look at what they are given: of a plain ``torch.Stream``, such as
    ``torch.accelerator.current_stream()`` returns, they read memory behind its end.

    Raises:
        TypeError: It is not a stream of an MLU.

    """
    import torch

    mlu: Any = torch.mlu  # type: ignore[attr-defined]
    if isinstance(stream, mlu.Stream):
        return stream
    if isinstance(stream, torch.Stream) and stream.device.type == "mlu":
        return mlu.Stream(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
    raise TypeError(f"Expected a stream of an MLU, got {stream!r}.")


@cache
def event_class(base: type) -> Any:
    """Return ``torch.mlu.Event``, which is ``base``, with two faults mended.

    ``blocking`` is accepted and dropped: it says how the host waits, not for what. Streams are
    checked.
    """

    class Event(base):  # type: ignore[misc]
        """An event of an MLU; ``torch.mlu.Event``, made safe."""

        def __new__(
            cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
        ) -> Any:
            return super().__new__(cls, enable_timing=enable_timing, interprocess=interprocess)

        def record(self, stream: Any = None) -> None:
            """Stand for everything submitted to ``stream``, None: to the current one, so far."""
            super().record(None if stream is None else as_mlu_stream(stream))

        def wait(self, stream: Any = None) -> None:
            """Make later work of ``stream``, None: of the current one, wait for this event."""
            super().wait(None if stream is None else as_mlu_stream(stream))

    return Event


def _index(mlu: Any, device: Device) -> int:
    """Return the index of ``device``, of the current device when it is left open."""
    if isinstance(device, int):
        return device
    if device is not None:
        import torch

        # torch types the index as a number, and leaves it None for "the current device".
        index = cast("int | None", torch.device(device).index)
        if index is not None:
            return index
    return int(mlu.current_device())
