"""Correct stream ordering for DeepSpeed's ZeRO on every accelerator.

Importing this package imports neither torch nor DeepSpeed; the public names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from accel_streams import _bootstrap

if TYPE_CHECKING:
    from accel_streams._backend import (
        API_VERSION,
        Backend,
        Capabilities,
        Ordering,
        StreamId,
    )
    from accel_streams._errors import (
        AccelStreamsError,
        BackendConflictError,
        BackendError,
        BackendWarning,
        BrokenBackendError,
        BuildError,
        FakeDeviceError,
        IncompatibleBackendError,
        NothingWatchedError,
        RaceError,
        RaceWarning,
        SettingError,
        TraceFormatError,
        UnavailableBackendError,
        UnknownBackendError,
        UnsupportedDeepSpeedError,
    )
    from accel_streams._registry import BackendInfo, choose, load, registered
    from accel_streams._tracker import EventPool, ProducerTracker
    from accel_streams._version import __version__
    from accel_streams.deepspeed import install

__all__ = [
    "API_VERSION",
    "AccelStreamsError",
    "Backend",
    "BackendConflictError",
    "BackendError",
    "BackendInfo",
    "BackendWarning",
    "BrokenBackendError",
    "BuildError",
    "Capabilities",
    "EventPool",
    "FakeDeviceError",
    "IncompatibleBackendError",
    "NothingWatchedError",
    "Ordering",
    "ProducerTracker",
    "RaceError",
    "RaceWarning",
    "SettingError",
    "StreamId",
    "TraceFormatError",
    "UnavailableBackendError",
    "UnknownBackendError",
    "UnsupportedDeepSpeedError",
    "__version__",
    "choose",
    "install",
    "load",
    "registered",
]

# Where each public name lives. Nothing is imported until it is asked for: this file is part of
# every `import torch` on a machine that has the package.
_HOMES = {
    "_backend": ("API_VERSION", "Backend", "Capabilities", "Ordering", "StreamId"),
    "_errors": (
        "AccelStreamsError",
        "BackendConflictError",
        "BackendError",
        "BackendWarning",
        "BrokenBackendError",
        "BuildError",
        "FakeDeviceError",
        "IncompatibleBackendError",
        "NothingWatchedError",
        "RaceError",
        "RaceWarning",
        "SettingError",
        "TraceFormatError",
        "UnavailableBackendError",
        "UnknownBackendError",
        "UnsupportedDeepSpeedError",
    ),
    "_registry": ("BackendInfo", "choose", "load", "registered"),
    "_tracker": ("EventPool", "ProducerTracker"),
    "_version": ("__version__",),
    "deepspeed": ("install",),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            value: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The same as torch's entry point does, for processes in which torch doesn't run entry points.
_bootstrap.watch_for_deepspeed()
