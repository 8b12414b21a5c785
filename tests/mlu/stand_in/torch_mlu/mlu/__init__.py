"""``torch.mlu``: the names of torch_mlu's module that DeepSpeed, torch and this package use."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import torch_mlu
from accel_streams import fake
from accel_streams.fake import _device as _simulated
from accel_streams.fake._extension import extension
from torch_mlu import _branch

from . import amp, cncl, cnpx
from ._devices import (
    current_device,
    device,
    device_count,
    device_of,
    index_of,
    set_device,
    synchronize,
)
from .streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "Event",
    "ExternalStream",
    "MLUGraph",
    "Stream",
    "StreamContext",
    "amp",
    "cncl",
    "cnpx",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "set_device",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
]

_MAJOR = 5  # of the devices that have bfloat16

_initialized = False
_initializing = threading.RLock()
_queued_calls: list[Callable[[], None]] = []
# Filled when the device is initialised.
default_generators: Any = ()


def init() -> None:
    _lazy_init()


def is_initialized() -> bool:
    return _initialized and not _is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    return torch_mlu._MLUC._mlu_isInBadFork()


def _lazy_init() -> None:
    global _initialized, default_generators
    with _initializing:
        if _initialized:
            return
        torch_mlu._MLUC._mlu_init()
        _initialized, default_generators = True, _simulated.default_generators
        for call in _queued_calls:
            call()


def _lazy_call(callback: Callable[[], None], **kwargs: Any) -> None:
    if is_initialized():
        callback()
    else:
        _queued_calls.append(callback)


def is_available() -> bool:
    return device_count() > 0


def is_bf16_supported() -> bool:
    return bool(get_device_properties(current_device()).major >= _MAJOR)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def get_device_properties(device: Any) -> SimpleNamespace:
    _lazy_init()
    index = index_of(device)
    if not 0 <= index < device_count():
        raise AssertionError(f"there is no mlu:{index}")
    memory = _simulated.get_device_properties(index).total_memory
    return SimpleNamespace(name="stand-in", major=_MAJOR, minor=0, total_memory=memory)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_device_name(device: Any = None) -> str:
    return str(get_device_properties(device).name)


if not _branch.has("no_sleep"):

    def _sleep(cycles: int) -> None:
        torch_mlu._MLUC._mlu_sleep(cycles)


# -- not torch_mlu's: what the suite asks of the simulated device ----------------------------------

hold = fake.hold


def delay(stream: Any, milliseconds: float) -> None:
    """Put work on ``stream`` that lasts so long by the virtual clock."""
    with torch.mlu.stream(stream):  # type: ignore[attr-defined]
        extension().spin(stream.device_index, round(milliseconds * 1e6))


# -- memory: as the simulated device has it ------------------------------------------------------

empty_cache = _simulated.empty_cache
max_memory_allocated = _simulated.max_memory_allocated
max_memory_reserved = _simulated.max_memory_reserved
mem_get_info = _simulated.mem_get_info
memory_allocated = _simulated.memory_allocated
memory_reserved = _simulated.memory_reserved
memory_stats = _simulated.memory_stats
reset_peak_memory_stats = _simulated.reset_peak_memory_stats


def _renamed(old: str, new: Callable[..., Any]) -> Callable[..., Any]:
    def call(device: Any = None) -> Any:
        message = f"torch.mlu.{old} is now torch.mlu.{new.__name__}"
        warnings.warn(message, FutureWarning, stacklevel=2)
        return new(device)

    return call


memory_cached = _renamed("memory_cached", memory_reserved)
max_memory_cached = _renamed("max_memory_cached", max_memory_reserved)
reset_max_memory_allocated = _renamed("reset_max_memory_allocated", reset_peak_memory_stats)
reset_max_memory_cached = _renamed("reset_max_memory_cached", reset_peak_memory_stats)

# -- random numbers ------------------------------------------------------------------------------


def get_rng_state(device: Any = "mlu") -> torch.Tensor:
    _lazy_init()
    state: torch.Tensor = default_generators[index_of(device)].get_state()
    return state


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "mlu") -> None:
    copy = new_state.clone()
    _lazy_call(lambda: default_generators[index_of(device)].set_state(copy))


def manual_seed(seed: int) -> None:
    _lazy_call(lambda: default_generators[current_device()].manual_seed(int(seed)))


def manual_seed_all(seed: int) -> None:
    def call() -> None:
        for index in range(device_count()):
            default_generators[index].manual_seed(int(seed))

    _lazy_call(call)


def seed() -> None:
    _lazy_call(lambda: default_generators[current_device()].seed())


def initial_seed() -> int:
    _lazy_init()
    return int(default_generators[current_device()].initial_seed())


# -- graphs --------------------------------------------------------------------------------------


class MLUGraph:
    """A graph; the simulated device captures none."""

    def replay(self) -> None:
        raise RuntimeError("nothing was captured")


class graph:
    """Capture what runs inside the block, which the simulated device can't."""

    def __init__(self, mlu_graph: MLUGraph, pool: Any = None, stream: Any = None) -> None:
        raise RuntimeError("the stand-in for torch_mlu captures no graphs")
