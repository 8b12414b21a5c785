"""Backends that give memory away too soon, or never; and a backward that tells nobody."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from accel_streams._backend import Device
from accel_streams.conformance.mutants._mutant import killed_by
from accel_streams.conformance.mutants._wrapped import Wrapped, unwrapped

__all__: list[str] = []

_BACKWARD: Any = torch.Tensor.backward


@killed_by("MEM-01", "MEM-02", "MEM-03")
class KeepAliveDoesNothing(Wrapped):
    """Memory may be reused as soon as it is freed, whoever uses it."""

    def keep_alive(self, tensor: Any, stream: Any) -> None:
        pass


class _KeepingLate(Wrapped):
    """Tells the allocator only when the tensor goes, which is soon enough."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.kept: dict[int, tuple[Any, Any, list[Any]]] = {}

    def keep_alive(self, tensor: Any, stream: Any) -> None:
        key = id(tensor)
        if key not in self.kept:
            # The alias keeps the memory until it is told for whom.
            self.kept[key] = (weakref.ref(tensor, lambda _: self.tell(key)), tensor.detach(), [])
        streams = self.kept[key][2]
        streams[:] = self.chosen([*streams, unwrapped(stream)])

    def chosen(self, streams: list[Any]) -> list[Any]:
        raise NotImplementedError

    def tell(self, key: int) -> None:
        _, alias, streams = self.kept.pop(key)
        for stream in streams:
            self.real.keep_alive(alias, stream)


@killed_by("MEM-02")
class KeepAliveForTheLast(_KeepingLate):
    """Memory is kept for the last of the streams that it was to be kept for."""

    def chosen(self, streams: list[Any]) -> list[Any]:
        return streams[-1:]


@killed_by("MEM-02")
class KeepAliveForTheFirst(_KeepingLate):
    """Memory is kept for the first of the streams that it was to be kept for."""

    def chosen(self, streams: list[Any]) -> list[Any]:
        return streams[:1]


@killed_by("MEM-03")
class KeepAliveByAddress(Wrapped):
    """Memory is looked up by a tensor's address, which a view's is not."""

    def keep_alive(self, tensor: Any, stream: Any) -> None:
        if tensor.storage_offset() == 0:
            super().keep_alive(tensor, stream)


@killed_by("MEM-04")
class KeepAliveForEver(Wrapped):
    """Memory that was kept alive never comes back."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.kept: list[Any] = []

    def keep_alive(self, tensor: Any, stream: Any) -> None:
        self.kept.append(tensor.detach())


@killed_by("MEM-06")
class KeepAliveIsAFence(Wrapped):
    """Keeping memory alive for a stream makes it wait for the current one."""

    def keep_alive(self, tensor: Any, stream: Any) -> None:
        super().keep_alive(tensor, stream)
        unwrapped(stream).wait_stream(self.real.current_stream())


class _Calls(TorchFunctionMode):
    """Hands the calls of torch's functions to a mutant."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self._call(function, *args, **(kwargs or {}))


class _Calling(Wrapped):
    """Sees what torch is asked to do inside a stream's context."""

    @contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        with super().use_stream(stream), _Calls(self.call):
            yield

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


@killed_by("MEM-07")
class PinnedCopiesBlock(_Calling):
    """A copy that should not block does, though its memory is pinned."""

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if function is torch.Tensor.copy_ and kwargs.get("non_blocking"):
            self.real.current_stream().synchronize()
        return result


@killed_by("AGD-02")
class BackwardTellsNobody(_Calling):
    """The stream that calls backward() isn't ordered after it: the engine has seen another one."""

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        if function is not _BACKWARD:
            return function(*args, **kwargs)
        caller = self.real.current_stream()
        other = self.real.new_stream(caller.device)
        other.wait_stream(caller)
        with self.real.use_stream(other):
            return function(*args, **kwargs)


@killed_by("AGD-01", "AGD-03")
class HooksSeeTheDefault(Wrapped):
    """In a backward pass the current stream is said to be the default one."""

    def current_stream(self, device: Device = None, /) -> Any:
        if torch._C._current_autograd_node() is not None:
            return self.default_stream(device)
        return super().current_stream(device)
