"""Whether a backend's streams are streams at all: a look that takes a few milliseconds.

Where every stream is the same one, or an event says that pending work is done, everything this
package orders is ordered in appearance only, and training would go wrong without a word. The whole
proof is ``accel-streams check``; this is the part that can be asked for before every training.
"""

from __future__ import annotations

import time
from typing import Any

from accel_streams._backend import Backend, Ordering

__all__ = ["is_asleep", "unreal_streams"]

# Clock cycles that fill some tens of milliseconds.
_CYCLES = 40_000_000
# How much longer the work must go on after the event has said that it is done, in seconds, at each
# attempt. Less is no proof: a busy machine may take the processor from us in between.
_LIE_S = 5e-3
_ATTEMPTS = 3


def is_asleep(backend: Backend) -> bool:
    """Return whether the device waits for its first use, to be set up on the device then current.

    Asking for a stream would set it up now, on the first device, in every rank and the launcher.
    """
    module = _device_module(backend)
    initialised = getattr(module, "is_initialized", None)
    return initialised is not None and not initialised()


def unreal_streams(backend: Backend) -> str | None:
    """Return in one line why the streams of ``backend`` are not real ones, None if nothing says so.

    Only where the backend promises asynchronous streams: otherwise the device orders them itself.
    What the device raises is raised. An event is put to the test where a stream can be held
    (``backend.hold``), else where ``torch.<device type>`` has ``_sleep``.
    """
    if backend.capabilities.ordering is not Ordering.ASYNC:
        return None
    default = backend.default_stream()
    streams = [backend.new_stream(), backend.new_stream()]
    first, second = (backend.stream_id(stream) for stream in streams)
    if backend.stream_id(default) in (first, second):
        return f"a new stream has the id of the default stream, {_words(backend, default)}"
    if first == second and backend.capabilities.pool_size != 1:
        return f"two new streams have one id, {_words(backend, streams[0])}"
    return _lying_event(backend, streams[0])


def _lying_event(backend: Backend, stream: Any) -> str | None:
    lie = "an event says that it is done while the work before it is pending"
    hold = getattr(backend, "hold", None)
    if hold is not None:
        gate = hold(stream)
        try:
            event = backend.new_event()
            backend.record(event, stream)
            return f"{lie}, on a stream that is held" if backend.query(event) else None
        finally:
            gate.release()
    if getattr(_device_module(backend), "_sleep", None) is None:
        return None
    told = all(_lies_about_a_delay(backend, stream) for _ in range(_ATTEMPTS))
    return lie if told else None


def _lies_about_a_delay(backend: Backend, stream: Any) -> bool:
    event = backend.new_event()
    with backend.use_stream(stream):
        _device_module(backend)._sleep(_CYCLES)
        backend.record(event, stream)
    if not backend.query(event):
        return False
    asked = time.perf_counter()
    backend.synchronize(event)
    return time.perf_counter() - asked > _LIE_S


def _device_module(backend: Backend) -> Any:
    import torch

    return getattr(torch, backend.device_type, None)


def _words(backend: Backend, stream: Any) -> str:
    device_type, device_index, stream_id = backend.stream_id(stream)
    return f"{stream_id!r} on {device_type}:{device_index}"
