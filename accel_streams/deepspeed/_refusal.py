"""Refuse a backend whose streams are not real, before anything is trained on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import wrapt

from accel_streams import _registry
from accel_streams._backend import Backend
from accel_streams._errors import BrokenBackendError
from accel_streams._real_streams import is_asleep, unreal_streams

__all__ = ["refuse_unreal_streams"]

_ENGINE = "deepspeed.runtime.engine"

# Those two pass the whole suite in this project's tests, and another stream than the program's own
# would shift the numbers by which schedules and reports of the simulated device name streams.
_TRUSTED = ("accel_streams.backends.cuda", "accel_streams.backends.cpu_fake")


def refuse_unreal_streams(backend: Backend) -> None:
    """Raise BrokenBackendError, with the reason, when the streams of ``backend`` are not real.

    A device that waits for its first use is looked at when DeepSpeed's engine has been made, and so
    has chosen the rank's device; the error is then the one of ``deepspeed.initialize``.
    """
    if type(backend).__module__ in _TRUSTED:
        return
    if not is_asleep(backend):
        _refuse(backend)
        return

    def hook(module: ModuleType) -> None:
        def around_init(
            wrapped: Callable[..., Any], engine: Any, args: tuple[Any, ...], kw: Mapping[str, Any]
        ) -> Any:
            result = wrapped(*args, **kw)
            _refuse(backend)
            return result

        wrapt.wrap_function_wrapper(module, "DeepSpeedEngine.__init__", around_init)

    wrapt.register_post_import_hook(hook, _ENGINE)


def _refuse(backend: Backend) -> None:
    try:
        reason = unreal_streams(backend)
    except Exception:
        return  # Without any streams nothing trains in silence: what asks for one gets this error.
    if reason is None:
        return
    origins = [info.origin for info in _registry.registered() if info.name == backend.name]
    origin = f" of {origins[0]}" if origins else ""
    raise BrokenBackendError(
        f"The backend {backend.name!r}{origin} is refused, because its streams are not real: "
        f"{reason}. Training on it would read memory that is still being written, without an "
        f"error. `accel-streams check {backend.name}` shows everything that does not hold; report "
        f"it to the backend's authors: {backend.url}. A device that does its work before a call "
        "returns declares Ordering.SYNCHRONOUS in its capabilities.",
        name=backend.name,
        distributions=origins,
        reason=f"its streams are not real: {reason}",
    )
