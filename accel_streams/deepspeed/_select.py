"""Make DeepSpeed use the accelerator of a backend, before it looks for one itself."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

import wrapt

from accel_streams import _registry, _settings
from accel_streams._backend import Backend
from accel_streams._errors import AccelStreamsError, BrokenBackendError
from accel_streams.deepspeed import _seams, _versions
from accel_streams.deepspeed._refusal import refuse_unreal_streams

__all__ = ["install", "on_real_accelerator"]

_REAL_ACCELERATOR = "deepspeed.accelerator.real_accelerator"

# In a checkout of DeepSpeed the same package can also be imported under this name, and then has
# an accelerator of its own.
_ALIAS = "accelerator.real_accelerator"

# The backend that install() has chosen; it wins over the environment.
_installed: Backend | None = None


def on_real_accelerator(module: ModuleType) -> None:
    """Set the accelerator that ``DS_ACCELERATOR`` asks for, when it asks for one of ours.

    ``module`` is DeepSpeed's module that keeps the accelerator, just imported: DeepSpeed has not
    looked for one yet. Raise a BackendError when the backend can't be used.
    """
    if _installed is not None:
        return
    request = _settings.ds_accelerator()
    if request is None:
        return
    if request.ours:
        _use(module, _registry.choose(request.backend))
    elif request.value not in getattr(module, "SUPPORTED_ACCELERATOR_LIST", ()):
        name = _registry.normalise(request.value)
        # Any other word is for DeepSpeed to refuse: it lists what it knows.
        if name in {info.name for info in _registry.registered()}:
            _use(module, _registry.choose(name))


def install(name: str | None = None) -> None:
    """Make DeepSpeed use the backend called ``name``; None: the one for this machine.

    For programs that don't set ``DS_ACCELERATOR``. This overrides it, and sets it for the processes
    that the program starts: one of them would otherwise train on what DeepSpeed finds by itself.
    Call it before DeepSpeed is imported, or at the latest before ``deepspeed.initialize``, and then
    only for the device that DeepSpeed has chosen already. Raise a BackendError when the backend
    can't be used.
    """
    backend = _registry.choose(name)
    module = sys.modules.get(_REAL_ACCELERATOR)
    if module is not None:
        _use(module, backend)
        _remember(backend)
        return
    if importlib.util.find_spec("deepspeed") is None:
        raise AccelStreamsError(
            f"accel_streams.install() has to make DeepSpeed use the backend {backend.name!r}, and "
            "DeepSpeed is not installed. Install it, for example with `pip install deepspeed`."
        )
    _remember(backend)
    wrapt.register_post_import_hook(_use_installed, _REAL_ACCELERATOR)


def _remember(backend: Backend) -> None:
    global _installed
    _installed = backend
    os.environ["DS_ACCELERATOR"] = f"accel_streams:{backend.name}"


def _use_installed(module: ModuleType) -> None:
    assert _installed is not None
    try:
        _use(module, _installed)
    except BaseException:
        # DeepSpeed's import fails with this error. A second attempt must fail as well, and not slip
        # through to another accelerator; wrapt calls a hook once, and at once for a known module.
        sys.modules.pop(_REAL_ACCELERATOR, None)
        wrapt.register_post_import_hook(_use_installed, _REAL_ACCELERATOR)
        raise


def _use(module: Any, backend: Backend) -> None:
    """Set a new accelerator of ``backend`` in DeepSpeed's ``module``."""
    current = getattr(module, "ds_accelerator", None)
    if current is not None:
        if getattr(current, "accel_streams_backend", None) is backend:
            return
        _refuse_other_device(current, backend)
    _settings.zero_mode()  # A misspelt value is an error now, not at the first backward.
    races_mode = _settings.races_mode()
    try:
        accelerator = backend.accelerator()
    except AccelStreamsError:
        raise
    except Exception as exc:
        raise BrokenBackendError(_why_not_made(backend, exc), name=backend.name) from exc
    refuse_unreal_streams(backend)
    _seams.hook_optimizers()
    module.set_accelerator(accelerator)
    wrapt.register_post_import_hook(lambda alias: _use_alias(alias, accelerator), _ALIAS)
    if races_mode != "off":
        from accel_streams.races._process import watch_process

        watch_process(backend.device_type, races_mode)


def _why_not_made(backend: Backend, error: Exception) -> str:
    origins = [info.origin for info in _registry.registered() if info.name == backend.name]
    origin = f" (of {origins[0]})" if origins else ""
    hint = ""
    # Python's own words for a class that lacks what its abstract base class asks for.
    if isinstance(error, TypeError) and "abstract" in str(error):
        hint = (
            "Its accelerator class was written for another release of DeepSpeed: install a version "
            "of the backend for this one, or a DeepSpeed that it was written for. "
        )
    return (
        f"The backend {backend.name!r}{origin} can't make an accelerator for DeepSpeed "
        f"{_versions.installed_version()}: {type(error).__name__}: {error}. {hint}"
        f"Report this to its authors: {backend.url}"
    )


def _use_alias(module: Any, accelerator: Any) -> None:
    # Other projects have a package called accelerator too.
    if hasattr(module, "set_accelerator") and hasattr(module, "SUPPORTED_ACCELERATOR_LIST"):
        module.set_accelerator(accelerator)


def _refuse_other_device(current: Any, backend: Backend) -> None:
    """Raise when DeepSpeed, imported earlier, has already built on another kind of device.

    It has bound that one's functions and op builders in many of its modules.
    """
    device_type = current._name
    if device_type != backend.device_type:
        raise AccelStreamsError(
            f"DeepSpeed has already been imported and uses the device {device_type!r}; it can't be "
            f"switched to {backend.device_type!r} of the backend {backend.name!r} any more. "
            f"Call accel_streams.install({backend.name!r}) before DeepSpeed is imported, or set "
            f"DS_ACCELERATOR=accel_streams:{backend.name}."
        )
