"""A complete DeepSpeedAccelerator for any device that has a ``torch.<device type>`` module.

Written against the union of what DeepSpeed 0.15.2 to 0.19.8 ask of an accelerator. Imported only
once DeepSpeed is, because the base class is DeepSpeed's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

from accel_streams._backend import Backend, Ordering
from accel_streams.deepspeed import _ops, _versions
from accel_streams.deepspeed._mixin import EXPORTED_VARIABLES, StreamsMixin

__all__ = ["DeviceBackend", "GenericAccelerator"]

_DeviceIndex = int | None


class DeviceBackend(Backend, Protocol):
    """A Backend that also says what DeepSpeed wants to know of a device."""

    communication_backend: str
    visible_devices_env: str
    compile_backend: str

    def device_module(self) -> Any:
        """Return ``torch.<device type>``, making sure that it works."""


class GenericAccelerator(StreamsMixin, DeepSpeedAccelerator):  # type: ignore[misc]
    """Drive a device through its torch module, and through torch.accelerator where that is enough.

    The device is loaded at once: ``import deepspeed`` asks for its event class, and a device that
    can't be loaded should be the error of that import, not of some later line.
    """

    def __init__(self, backend: DeviceBackend) -> None:
        super().__init__()
        self.accel_streams_backend: DeviceBackend = backend
        self._device_module = backend.device_module()
        self._name = backend.device_type
        self._communication_backend_name = backend.communication_backend
        self._compile_backend = backend.compile_backend

    # -- what kind of device it is ---------------------------------------------------------------

    def use_host_timers(self) -> bool:
        return self.is_synchronized_device()

    def handles_memory_backpressure(self) -> bool:
        return self.accel_streams_backend.capabilities.ordering is not Ordering.ASYNC

    def is_available(self) -> bool:
        return bool(self._device_module.is_available())

    # -- devices ---------------------------------------------------------------------------------

    def device_name(self, device_index: _DeviceIndex = None) -> str:
        return self._name if device_index is None else f"{self._name}:{device_index}"

    def device(self, device_index: _DeviceIndex = None) -> torch.device:
        return torch.device(self.device_name(device_index))

    def set_device(self, device_index: int) -> None:
        self._device_module.set_device(device_index)

    def current_device(self) -> int:
        return int(self._device_module.current_device())

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        return int(self._device_module.device_count())

    def synchronize(self, device_index: _DeviceIndex = None) -> None:
        synchronize = getattr(self._device_module, "synchronize", None)
        (synchronize or torch.accelerator.synchronize)(*_given(device_index))

    # -- random numbers --------------------------------------------------------------------------

    def random(self) -> Any:
        return torch.random

    def set_rng_state(self, new_state: torch.Tensor, device_index: _DeviceIndex = None) -> None:
        self._device_module.set_rng_state(new_state, *_given(device_index))

    def get_rng_state(self, device_index: _DeviceIndex = None) -> torch.Tensor:
        state: torch.Tensor = self._device_module.get_rng_state(*_given(device_index))
        return state

    def manual_seed(self, seed: int) -> None:
        self._device_module.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        self._device_module.manual_seed_all(seed)

    def initial_seed(self) -> int:
        return int(self._device_module.initial_seed())

    def default_generator(self, device_index: int) -> torch.Generator:
        generator: torch.Generator = self._device_module.default_generators[device_index]
        return generator

    # -- streams and events: the rest comes from StreamsMixin --------------------------------------

    @property
    def Stream(self) -> type:
        return getattr(self._device_module, "Stream", torch.Stream)

    @property
    def Event(self) -> type:
        own: type | None = getattr(self._device_module, "Event", None)
        # torch has one for every device from 2.4 on.
        found = getattr(torch, "Event", None) if own is None else own
        if found is None:
            raise NotImplementedError(
                f"torch.{self._name} has no Event, and torch {torch.__version__} has none for any "
                "device. Report this to the authors of the device's torch module."
            )
        return found

    # -- memory, in bytes --------------------------------------------------------------------------

    def empty_cache(self) -> None:
        self._memory_function("empty_cache", lambda: None)()

    def memory_allocated(self, device_index: _DeviceIndex = None) -> int:
        return self._memory("memory_allocated", device_index)

    def max_memory_allocated(self, device_index: _DeviceIndex = None) -> int:
        return self._memory("max_memory_allocated", device_index)

    def reset_max_memory_allocated(self, device_index: _DeviceIndex = None) -> None:
        self.reset_peak_memory_stats(device_index)

    def memory_cached(self, device_index: _DeviceIndex = None) -> int:
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: _DeviceIndex = None) -> int:
        return self.max_memory_reserved(device_index)

    def reset_max_memory_cached(self, device_index: _DeviceIndex = None) -> None:
        self.reset_peak_memory_stats(device_index)

    def memory_stats(self, device_index: _DeviceIndex = None) -> dict[str, Any]:
        stats = self._memory_function("memory_stats", lambda *device: {})(*_given(device_index))
        return dict(stats)

    def reset_peak_memory_stats(self, device_index: _DeviceIndex = None) -> None:
        self._memory_function("reset_peak_memory_stats", lambda *device: None)(
            *_given(device_index)
        )

    def memory_reserved(self, device_index: _DeviceIndex = None) -> int:
        return self._memory("memory_reserved", device_index)

    def max_memory_reserved(self, device_index: _DeviceIndex = None) -> int:
        return self._memory("max_memory_reserved", device_index)

    def total_memory(self, device_index: _DeviceIndex = None) -> int:
        module = self._device_module
        if hasattr(module, "get_device_properties"):
            index = self.current_device() if device_index is None else device_index
            return int(module.get_device_properties(index).total_memory)
        if hasattr(module, "mem_get_info"):
            return int(module.mem_get_info(*_given(device_index))[1])
        raise self._lacks("get_device_properties or mem_get_info")

    def available_memory(self, device_index: _DeviceIndex = None) -> int:
        module = self._device_module
        if hasattr(module, "mem_get_info"):
            return int(module.mem_get_info(*_given(device_index))[0])
        return self.total_memory(device_index) - self.memory_allocated(device_index)

    def _memory(self, name: str, device_index: _DeviceIndex) -> int:
        return int(self._memory_function(name, lambda *device: 0)(*_given(device_index)))

    def _memory_function(self, name: str, fallback: Callable[..., Any]) -> Callable[..., Any]:
        """Return the vendor's function: statistics it doesn't keep are read as nothing."""
        function: Callable[..., Any] = getattr(self._device_module, name, fallback)
        return function

    # -- data types ------------------------------------------------------------------------------

    def is_bf16_supported(self) -> bool:
        return self._supports("is_bf16_supported", torch.bfloat16)

    def is_fp16_supported(self) -> bool:
        return self._supports("is_fp16_supported", torch.float16)

    def supported_dtypes(self) -> list[torch.dtype]:
        dtypes = [torch.float]
        if self.is_fp16_supported():
            dtypes.append(torch.half)
        if self.is_bf16_supported():
            dtypes.append(torch.bfloat16)
        return dtypes

    def _supports(self, question: str, dtype: torch.dtype) -> bool:
        module = self._device_module
        if hasattr(module, question):
            return bool(getattr(module, question)())
        # What torch.autocast asks of every PrivateUse1 device; without it nothing is known.
        amp_dtypes = getattr(module, "get_amp_supported_dtype", None)
        return amp_dtypes is None or dtype in amp_dtypes()

    def amp(self) -> Any:
        return getattr(self._device_module, "amp", None)

    # -- tracing, initialisation, communication ----------------------------------------------------

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        return None

    def range_pop(self, domain: Any = None) -> None:
        return None

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        module = self._device_module
        return module._lazy_call(callback) if hasattr(module, "_lazy_call") else callback()

    def communication_backend_name(self) -> str:
        return self._communication_backend_name

    def is_triton_supported(self) -> bool:
        return False

    # -- graphs ----------------------------------------------------------------------------------

    def create_graph(self) -> NoReturn:
        self._has_no_graphs()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> NoReturn:
        self._has_no_graphs()

    def replay_graph(self, graph: Any) -> NoReturn:
        self._has_no_graphs()

    def _has_no_graphs(self) -> NoReturn:
        # Capturing nothing and replaying it, as DeepSpeed's CPU class does, gives stale results.
        raise NotImplementedError(
            f"Graph capture is not supported on the device {self._name!r}. "
            "Switch it off in DeepSpeed's configuration (enable_cuda_graph: false)."
        )

    # -- tensors ---------------------------------------------------------------------------------

    def _constructor(self, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        return functools.partial(torch.tensor, dtype=dtype, device=self.device_name())

    @property
    def BFloat16Tensor(self) -> Callable[..., torch.Tensor]:
        return self._constructor(torch.bfloat16)

    @property
    def ByteTensor(self) -> Callable[..., torch.Tensor]:
        return self._constructor(torch.uint8)

    @property
    def DoubleTensor(self) -> Callable[..., torch.Tensor]:
        return self._constructor(torch.double)

    @property
    def FloatTensor(self) -> Callable[..., torch.Tensor]:
        return self._constructor(torch.float)

    @property
    def HalfTensor(self) -> Callable[..., torch.Tensor]:
        return self._constructor(torch.half)

    @property
    def IntTensor(self) -> Callable[..., torch.Tensor]:
        return self._constructor(torch.int)

    @property
    def LongTensor(self) -> Callable[..., torch.Tensor]:
        return self._constructor(torch.long)

    if _versions.leaves_to_the_device(DeepSpeedAccelerator, "pin_memory"):

        def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
            return tensor.pin_memory()

    if _versions.leaves_to_the_device(DeepSpeedAccelerator, "is_pinned"):

        def is_pinned(self, tensor: torch.Tensor) -> bool:
            return tensor.is_pinned()

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    # -- op builders and the launcher --------------------------------------------------------------

    def op_builder_dir(self) -> str:
        return _ops.op_builder_package()

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    def get_op_builder(self, class_name: str) -> type:
        return _ops.op_builder(class_name, self._name)

    def build_extension(self) -> Any:
        from torch.utils.cpp_extension import BuildExtension

        return BuildExtension

    def export_envs(self) -> list[str]:
        # The base class's is abstract, so there is nothing to inherit.
        return [*EXPORTED_VARIABLES]

    def visible_devices_envs(self) -> list[str]:
        return [self.accel_streams_backend.visible_devices_env]

    def set_visible_devices_envs(
        self, current_env: dict[str, str], local_accelerator_ids: list[int]
    ) -> None:
        for variable in self.visible_devices_envs():
            current_env[variable] = ",".join(map(str, local_accelerator_ids))

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(
                f"{backend!r} is not a torch.compile backend that can be used on the device "
                f"{self._name!r}. Choose one of {', '.join(known)}."
            )
        self._compile_backend = backend

    def _lacks(self, function: str) -> NotImplementedError:
        return NotImplementedError(
            f"torch.{self._name} has no {function}, which DeepSpeed needs to know the size of the "
            f"device's memory. Report this to the authors of the device's torch module."
        )


def _given(device_index: _DeviceIndex) -> tuple[int, ...]:
    """Return the argument for a device, if any: not every vendor's function takes a None."""
    return () if device_index is None else (device_index,)
