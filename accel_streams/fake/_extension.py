"""The loaded extension, in one place."""

from __future__ import annotations

from typing import Any

from accel_streams._errors import FakeDeviceError

__all__ = ["extension", "is_loaded", "set_extension"]

_loaded: Any = None


def set_extension(module: Any) -> None:
    """Remember the loaded extension."""
    global _loaded
    _loaded = module


def is_loaded() -> bool:
    """Tell whether the extension is loaded."""
    return _loaded is not None


def extension() -> Any:
    """Return the extension.

    Raises:
        FakeDeviceError: The device has not been enabled.

    """
    if _loaded is None:
        raise FakeDeviceError(
            "The fake device is not enabled in this process: call accel_streams.fake.enable() "
            "first."
        )
    return _loaded
