"""Wrap the methods of DeepSpeed's ZeRO-1 and ZeRO-2 optimizer.

The class is hooked once, when DeepSpeed's module has been imported. An optimizer is guarded only if
the accelerator in use is one of this package's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import wrapt

from accel_streams import _settings
from accel_streams._backend import Ordering
from accel_streams._errors import UnsupportedDeepSpeedError
from accel_streams.deepspeed import _labels, _versions, _zero3_seams
from accel_streams.deepspeed._mixin import backend_in_use
from accel_streams.deepspeed._ordering import Guard, ZeroOrdering, ZeroSynchronizing
from accel_streams.deepspeed._region import REGION
from accel_streams.deepspeed._versions import Seam

__all__ = ["hook_optimizers"]

_MODULE = "deepspeed.runtime.zero.stage_1_and_2"
_GUARDS = "_accel_streams_guards"

_Arguments = tuple[Any, ...]
_Keywords = Mapping[str, Any]
_Wrapped = Callable[..., Any]

_registered = False


def hook_optimizers() -> None:
    """Have the optimizer class hooked as soon as DeepSpeed has defined it; once a process."""
    global _registered
    if not _registered:
        _registered = True
        wrapt.register_post_import_hook(_hook, _MODULE)
        _zero3_seams.hook_zero3()


def _hook(module: ModuleType) -> None:
    optimizer_class = getattr(module, _versions.OPTIMIZER, None)
    if not isinstance(optimizer_class, type):
        error = _versions.unsupported([f"{module.__name__}.{_versions.OPTIMIZER}"], safe_mode=False)
        # Nothing to hook, so refuse where training would begin.
        wrapt.register_post_import_hook(lambda package: _refuse(package, error), "deepspeed")
        return
    _wrap(optimizer_class, "__init__", _around_init)
    for seam, wrapper in _WRAPPERS.items():
        name = _versions.find_seam(optimizer_class, seam)
        if name is not None:
            _wrap(optimizer_class, name, wrapper)
    accumulate = _versions.find_seam(optimizer_class, _versions.ACCUMULATE)
    if accumulate is not None and not _versions.hooks_accumulate(optimizer_class):
        _wrap(optimizer_class, accumulate, _telling_of("accumulation"))


def _refuse(package: Any, error: UnsupportedDeepSpeedError) -> None:
    def refuse(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
        raise error

    wrapt.wrap_function_wrapper(package, "initialize", refuse)


# -- making the guards ----------------------------------------------------------------------


def _around_init(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    # Before anything of the model is moved: what can't be protected must not get going.
    _require_seams(type(instance))
    result = wrapped(*args, **kwargs)
    _guards_of(instance)
    return result


def _guards_of(optimizer: Any) -> tuple[Guard, ...]:
    """Return what guards the optimizer: nothing if the accelerator isn't one of this package's."""
    guards: tuple[Guard, ...] | None = optimizer.__dict__.get(_GUARDS)
    if guards is None:
        backend = backend_in_use()
        if backend is None:
            return ()  # Not remembered: install() may still follow.
        _require_seams(type(optimizer))
        guards = _make_guards(optimizer, backend)
        setattr(optimizer, _GUARDS, guards)
        _wrap_overrides(type(optimizer))
    return guards


def _make_guards(optimizer: Any, backend: Any) -> tuple[Guard, ...]:
    mode = _settings.zero_mode()
    guards: list[Guard] = []
    if backend.capabilities.ordering is Ordering.ASYNC:
        if mode == "track":
            buckets = _versions.buckets_of(optimizer)
            replaces_waits = _versions.waits_are_for_what_is_tracked(optimizer)
            guards.append(ZeroOrdering(backend, buckets, replaces_waits=replaces_waits))
        elif mode == "sync":
            guards.append(ZeroSynchronizing(backend, _buckets_if_known(optimizer)))
    labelled = _buckets_if_known(optimizer) if _labels.can_label(backend) else None
    if labelled is not None:
        labels = _Labelling(backend, labelled)
        labels.update(optimizer)
        guards.append(labels)
    return tuple(guards)


def _buckets_if_known(optimizer: Any) -> _versions.Buckets | None:
    try:
        return _versions.buckets_of(optimizer)
    except UnsupportedDeepSpeedError:
        return None


def _require_seams(optimizer_class: type) -> None:
    """Raise UnsupportedDeepSpeedError when a seam that the mode needs isn't there."""
    backend = backend_in_use()
    mode = _settings.zero_mode()
    if mode == "off" or backend is None or backend.capabilities.ordering is not Ordering.ASYNC:
        return
    needed = _NEEDED_TO_SYNCHRONIZE if mode == "sync" else tuple(_WRAPPERS)
    missing = [seam for seam in needed if _versions.find_seam(optimizer_class, seam) is None]
    if missing:
        raise _versions.unsupported(
            [str(seam) for seam in missing],
            safe_mode=mode == "track" and not set(missing) & set(_NEEDED_TO_SYNCHRONIZE),
        )


def _wrap_overrides(optimizer_class: type) -> None:
    """Wrap the seams that a subclass, ZenFlow's or the user's, defines anew."""
    for owner in optimizer_class.__mro__:
        if owner.__name__ == _versions.OPTIMIZER:
            return
        for seam, wrapper in _WRAPPERS.items():
            for name in seam.names:
                if name in vars(owner) and name == _versions.find_seam(optimizer_class, seam):
                    _wrap(owner, name, wrapper)


def _wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    if not isinstance(inspect.getattr_static(owner, name), wrapt.FunctionWrapper):
        wrapt.wrap_function_wrapper(owner, name, wrapper)


class _Labelling(_labels.Labels, Guard):
    """Labels as a guard: names are given when there is something new to name."""

    def after_allocation(self, optimizer: Any) -> None:
        self.update(optimizer)

    def before_reduction(self, optimizer: Any, comm_dtype: Any) -> None:
        # Where the allocation has no hook of its own, this is the first time to see the buffers.
        self.update(optimizer)

    def after_reduction(self, optimizer: Any) -> None:
        self.update(optimizer)


# -- the wrappers ---------------------------------------------------------------------------


def _telling_of(what: str) -> Callable[..., Any]:
    """Return a wrapper that tells the guards before and after ``what``."""

    def around(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
        guards = _guards_of(instance)
        for guard in guards:
            getattr(guard, f"before_{what}")(instance)
        result = wrapped(*args, **kwargs)
        for guard in guards:
            getattr(guard, f"after_{what}")(instance)
        return result

    return around


def _around_write(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    guards = _guards_of(instance)
    param = args[0] if args else kwargs["param"]
    for guard in guards:
        guard.before_write(instance, param)
    try:
        result = _call(guards, wrapped, args, kwargs)
    except BaseException:
        for guard in guards:
            guard.abandon_write(instance)
        raise
    for guard in guards:
        guard.after_write(instance, param)
    return result


def _around_reduction(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    guards = _guards_of(instance)
    comm_dtype = args[0] if args else kwargs.get("comm_dtype")
    for guard in guards:
        guard.before_reduction(instance, comm_dtype)
    try:
        result = _call(guards, wrapped, args, kwargs)
    except BaseException:
        for guard in guards:
            guard.abandon_reduction(instance)
        raise
    for guard in guards:
        guard.after_reduction(instance)
    return result


def _around_epilogue(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    guards = _guards_of(instance)
    for guard in guards:
        guard.before_epilogue(instance)
    try:
        return _call(guards, wrapped, args, kwargs)
    finally:
        for guard in guards:
            guard.after_epilogue(instance)


def _call(guards: tuple[Guard, ...], wrapped: _Wrapped, args: _Arguments, kwargs: _Keywords) -> Any:
    """Call a seam of the backward, without DeepSpeed's own waits if they are not needed."""
    if not guards or not guards[0].replaces_waits:
        return wrapped(*args, **kwargs)
    REGION.depth += 1
    try:
        return wrapped(*args, **kwargs)
    finally:
        REGION.depth -= 1


_WRAPPERS: dict[Seam, Callable[..., Any]] = {
    _versions.ALLOCATE: _telling_of("allocation"),
    _versions.WRITE: _around_write,
    _versions.REDUCE: _around_reduction,
    _versions.EPILOGUE: _around_epilogue,
    _versions.STEP: _telling_of("step"),
}

# Without these two, not even waiting for the whole device would be right.
_NEEDED_TO_SYNCHRONIZE = (_versions.ALLOCATE, _versions.REDUCE)
