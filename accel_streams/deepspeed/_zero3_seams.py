"""Wrap what ZeRO-3 does with parameters and gradients, and what sequence parallelism waits for.

Hooked once, when DeepSpeed's modules have been imported. Whether anything is done is decided at
each call, because parameters are partitioned before there is an engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import wrapt

from accel_streams import _settings
from accel_streams._backend import Ordering
from accel_streams.deepspeed import _versions
from accel_streams.deepspeed._mixin import backend_in_use
from accel_streams.deepspeed._ordering import skip_edges
from accel_streams.deepspeed._region import default_is_current
from accel_streams.deepspeed._zero3 import Zero3Ordering

__all__ = ["SEQUENCE_EDGE", "hook_zero3"]

SEQUENCE_EDGE = "sequence parallelism: compute stream"
"""What orders sequence parallelism: that the stream it computes on is the current one."""

_OPTIMIZER_MODULE = "deepspeed.runtime.zero.stage3"
_COORDINATOR_MODULE = "deepspeed.runtime.zero.partitioned_param_coordinator"
_PARAMETERS_MODULE = "deepspeed.runtime.zero.partition_parameters"
_ULYSSES_MODULE = "deepspeed.sequence.layer"
_FPDT_MODULE = "deepspeed.sequence.fpdt_layer"

_Arguments = tuple[Any, ...]
_Keywords = Mapping[str, Any]
_Wrapped = Callable[..., Any]

_registered = False
_orderings: dict[int, tuple[Any, Zero3Ordering]] = {}


def hook_zero3() -> None:
    """Have DeepSpeed's methods hooked as soon as it has defined them; once a process."""
    global _registered
    if _registered:
        return
    _registered = True
    wrapt.register_post_import_hook(_hook_optimizer, _OPTIMIZER_MODULE)
    wrapt.register_post_import_hook(_hook_coordinator, _COORDINATOR_MODULE)
    wrapt.register_post_import_hook(_hook_parameters, _PARAMETERS_MODULE)
    wrapt.register_post_import_hook(_hook_ulysses, _ULYSSES_MODULE)
    wrapt.register_post_import_hook(_hook_fpdt, _FPDT_MODULE)


def _backend_to_order() -> Any:
    """Return the backend in use, None when nothing has to be ordered."""
    backend = backend_in_use()
    if backend is None or backend.capabilities.ordering is not Ordering.ASYNC:
        return None
    return None if _settings.zero_mode() == "off" else backend


def _ordering() -> Zero3Ordering | None:
    backend = _backend_to_order()
    if backend is None:
        return None
    known = _orderings.get(id(backend))
    if known is None:
        known = _orderings[id(backend)] = (backend, Zero3Ordering(backend))
    return known[1]


# -- hooking ----------------------------------------------------------------------------------


def _hook_optimizer(module: ModuleType) -> None:
    _wrap_all(module, _versions.ZERO3_OPTIMIZER, _AROUND_OPTIMIZER)
    optimizer_class = getattr(module, _versions.ZERO3_OPTIMIZER, None)
    if isinstance(optimizer_class, type):
        wrapt.wrap_function_wrapper(optimizer_class, "__init__", _around_init)


def _hook_coordinator(module: ModuleType) -> None:
    _wrap_all(module, _versions.ZERO3_COORDINATOR, _AROUND_COORDINATOR)


def _hook_parameters(module: ModuleType) -> None:
    _wrap_all(module, _versions.ZERO3_INIT, _AROUND_PARAMETERS)
    if hasattr(module, _versions.ZERO3_FREE):
        wrapt.wrap_function_wrapper(module, _versions.ZERO3_FREE, _around_free)


def _hook_fpdt(module: ModuleType) -> None:
    for owner, names in _versions.fpdt_methods(module):
        for name in names:
            wrapt.wrap_function_wrapper(owner, name, _around_sequence)


def _wrap_all(module: ModuleType, owner: str, wrappers: Mapping[str, Callable[..., Any]]) -> None:
    found = getattr(module, owner, None)
    for name, wrapper in wrappers.items():
        if callable(inspect.getattr_static(found, name, None)):
            wrapt.wrap_function_wrapper(found, name, wrapper)


def _around_init(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    if _backend_to_order() is not None:
        missing = _versions.missing_for_zero3()
        if missing:
            raise _versions.unsupported(missing, safe_mode=False)
    return wrapped(*args, **kwargs)


# -- the optimizer ------------------------------------------------------------------------------


def _around_step(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    ordering = _ordering()
    try:
        return wrapped(*args, **kwargs)
    finally:
        if ordering is not None:
            ordering.partitions_written()


def _around_add(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    ordering = _ordering()
    if ordering is None:
        return wrapped(*args, **kwargs)
    parameter = args[0] if args else kwargs["param"]
    address = parameter.grad.data_ptr()
    with ordering.adding_gradient():
        result = wrapped(*args, **kwargs)
    ordering.gradient_added(instance.reduce_and_partition_stream, parameter.grad, address)
    return result


def _around_overflow(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    ordering = _ordering()
    if ordering is None:
        return wrapped(*args, **kwargs)
    with ordering.checking_overflow():
        return wrapped(*args, **kwargs)


# -- the parameters -----------------------------------------------------------------------------


def _around_gather(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    ordering = _ordering()
    if ordering is not None:
        ordering.before_gather(_versions.gathering_stream(instance))
    return wrapped(*args, **kwargs)


def _around_use(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    ordering = _ordering()
    if ordering is not None:
        layer = args[0] if args else next(iter(kwargs.values()))
        ordering.parameters_used(_versions.parameters_of(layer))
    return wrapped(*args, **kwargs)


def _around_partition(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    ordering = _ordering()
    writes = ordering is not None and _versions.writes_partition(args, kwargs)
    result = wrapped(*args, **kwargs)
    if ordering is not None and writes:
        ordering.partitions_written()
    return result


def _around_free(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    ordering = _ordering()
    if ordering is not None:
        ordering.before_free(args[0] if args else kwargs["param"])
    return wrapped(*args, **kwargs)


# -- sequence parallelism -------------------------------------------------------------------------


def _around_sequence(wrapped: _Wrapped, instance: Any, args: _Arguments, kwargs: _Keywords) -> Any:
    if _backend_to_order() is None or SEQUENCE_EDGE in skip_edges:
        return wrapped(*args, **kwargs)
    with default_is_current():
        return wrapped(*args, **kwargs)


class _ComputeStream:
    """The attribute in which a layer remembers the default stream, once and for all.

    It waits for that stream, and lets that stream wait, where it means the one that it computes on.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        try:
            remembered = vars(instance)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None
        backend = _backend_to_order()
        if backend is None or SEQUENCE_EDGE in skip_edges:
            return remembered
        return backend.current_stream()

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = value


def _hook_ulysses(module: ModuleType) -> None:
    owner, names = _versions.ulysses_stream(module)
    if owner is not None:
        for name in names:
            setattr(owner, name, _ComputeStream(name))


_AROUND_OPTIMIZER: dict[str, Callable[..., Any]] = {
    _versions.ZERO3_STEP: _around_step,
    _versions.ZERO3_ADD: _around_add,
    _versions.ZERO3_OVERFLOW: _around_overflow,
}
_AROUND_COORDINATOR: dict[str, Callable[..., Any]] = {
    _versions.ZERO3_GATHER: _around_gather,
    _versions.ZERO3_FETCH: _around_use,
    _versions.ZERO3_RELEASE: _around_use,
}
_AROUND_PARAMETERS: dict[str, Callable[..., Any]] = {_versions.ZERO3_PARTITION: _around_partition}
