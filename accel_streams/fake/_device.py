"""``torch.fake``: the module by which torch and its users reach the device."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch

from accel_streams._errors import FakeDeviceError
from accel_streams.fake._extension import extension

__all__ = ["DEVICE_TYPE", "make_module", "registered_type"]

if not hasattr(torch, "accelerator"):
    raise ImportError(
        f"The simulated device needs torch 2.6 or newer; torch {torch.__version__} is installed."
    )

DEVICE_TYPE = "fake"
_TOTAL_MEMORY = 16 << 30  # bytes; nothing enforces it


def registered_type() -> str:
    """Return the device type that the enabled device has in this process.

    It is another than ``fake`` where the device stands in for a vendor's.
    """
    return str(torch._C._get_privateuse1_backend_name())


def _index(device: Any = None) -> int:
    if device is None:
        return int(extension().current_device())
    if isinstance(device, int):
        return device if device >= 0 else int(extension().current_device())
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != registered_type():
            raise FakeDeviceError(f"Expected a device of type {registered_type()!r}, got {device}.")
        return int(extension().current_device()) if device.index is None else int(device.index)
    raise FakeDeviceError(f"Expected a device, its index or None, got {device!r}.")


def is_available() -> bool:
    """Tell whether the device can be used; it can, once it is enabled."""
    return True


def is_initialized() -> bool:
    """Tell whether the device is initialised; nothing has to be."""
    return True


def init() -> None:
    """Initialise the device; there is nothing to do."""


def _lazy_init() -> None:
    """Initialise the device; there is nothing to do."""


def _is_in_bad_fork() -> bool:
    # The device lives in memory: a forked child has its own copy, with what was queued.
    return False


def device_count() -> int:
    """Return the number of device indices."""
    return int(extension().device_count())


def current_device() -> int:
    """Return the index of the calling thread's current device."""
    return int(extension().current_device())


def set_device(device: Any) -> None:
    """Make ``device`` the calling thread's current device."""
    extension().set_device(_index(device))


class device:
    """Context manager that makes a device current; -1 or None changes nothing."""

    def __init__(self, device: Any) -> None:
        self._index = -1 if device is None else _index(device)
        self._previous = -1

    def __enter__(self) -> device:
        if self._index >= 0:
            self._previous = current_device()
            extension().set_device(self._index)
        return self

    def __exit__(self, *_: object) -> None:
        if self._index >= 0:
            extension().set_device(self._previous)


def get_device_name(device: Any = None) -> str:
    """Return the device's name."""
    return f"fake device {_index(device)}"


def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    """Return name and total memory in bytes."""
    return types.SimpleNamespace(name=get_device_name(device), total_memory=_TOTAL_MEMORY)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return (0, 0): the device has no hardware generation."""
    _index(device)
    return (0, 0)


def synchronize(device: Any = None) -> None:
    """Wait until all work queued on a device has run."""
    extension().synchronize_device(_index(device))


class _InstanceCheck(type):
    """Lets ``isinstance`` see torch's own objects as the device's, which they are."""

    def __instancecheck__(cls, instance: object) -> bool:
        kind: type = cls.kind  # type: ignore[attr-defined]
        if not isinstance(instance, kind):
            return False
        device: torch.device = instance.device  # type: ignore[attr-defined]
        return device.type == registered_type()


# As torch.cuda has them: the least one first, and a lower number is a higher priority.
_PRIORITIES = (0, -1)
_priorities: dict[tuple[int, int], int] = {}


class _Stream(torch.Stream):
    """A ``torch.Stream`` that tells its priority."""

    @property
    def priority(self) -> int:
        """The stream's priority, 0 or -1. No schedule heeds it."""
        return _priorities.get((self.device_index, self.stream_id), 0)


class Stream(metaclass=_InstanceCheck):
    """Make a queue of work on a fake device, by default the current one.

    What it gives is a ``torch.Stream``: torch compares and accepts those by what they are.
    """

    kind = torch.Stream

    def __new__(cls, device: Any = None, priority: int = 0) -> torch.Stream:  # type: ignore[misc]
        """Return a new ``torch.Stream`` of a fake device, of the nearest priority there is."""
        least, greatest = _PRIORITIES
        nearest = min(max(priority, greatest), least)
        place = torch.device(registered_type(), _index(device))
        made = _Stream(device=place, priority=nearest)
        if nearest != least:
            _priorities[made.device_index, made.stream_id] = nearest
        return made

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority."""
        return _PRIORITIES


class ExternalStream(metaclass=_InstanceCheck):
    """Take a stream that somebody else has made, by its ``native_handle``."""

    kind = torch.Stream

    def __new__(cls, stream_ptr: int, device: Any = None) -> torch.Stream:  # type: ignore[misc]
        """Return it as a ``torch.Stream``; raise RuntimeError where there is no such stream."""
        index = _index(device)
        # Refuses one that does not exist.
        extension().exchange_stream(index, extension().exchange_stream(index, int(stream_ptr)))
        return _stream(index, int(stream_ptr))


class Event(metaclass=_InstanceCheck):
    """Make a point in a stream's work, a plain ``torch.Event``; times are the virtual clock's."""

    kind = torch.Event

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        """Return a new ``torch.Event`` of the fake device."""
        if interprocess:
            raise FakeDeviceError("Events of the fake device can't be shared between processes.")
        return torch.Event(device=registered_type(), enable_timing=enable_timing, blocking=blocking)


_DEVICE_TYPE_NUMBER = 20  # c10::DeviceType::PrivateUse1


def _stream(device_index: int, stream_id: int) -> torch.Stream:
    return _Stream(stream_id=stream_id, device_index=device_index, device_type=_DEVICE_TYPE_NUMBER)


def current_stream(device: Any = None) -> torch.Stream:
    """Return the calling thread's current stream of a device."""
    index = _index(device)
    return _stream(index, int(extension().current_stream(index)))


def default_stream(device: Any = None) -> torch.Stream:
    """Return a device's default stream."""
    return _stream(_index(device), 0)


def set_stream(stream: torch.Stream | None) -> None:
    """Make ``stream`` current, and its device; None changes nothing."""
    if stream is None:
        return
    extension().exchange_stream(stream.device_index, stream.stream_id)
    extension().set_device(stream.device_index)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[torch.Stream | None]:
    """Make ``stream`` and its device current for a while; None changes nothing."""
    if stream is None:
        yield None
        return
    module = extension()
    device_before = module.current_device()
    module.set_device(stream.device_index)
    stream_before = module.exchange_stream(stream.device_index, stream.stream_id)
    try:
        yield stream
    finally:
        module.exchange_stream(stream.device_index, stream_before)
        module.set_device(device_before)


def _sleep(nanoseconds: int) -> None:
    """Queue work that takes this long on the virtual clock and nothing in real time."""
    extension().spin(current_device(), nanoseconds)


def empty_cache() -> None:
    """Give memory that is free and kept for reuse back to the host."""
    extension().empty_cache()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the allocator's counters, under the names CUDA uses."""
    stats = extension().memory_stats(_index(device))
    return {
        "allocated_bytes.all.current": stats["allocated"],
        "allocated_bytes.all.peak": stats["peak_allocated"],
        "reserved_bytes.all.current": stats["reserved"],
        "reserved_bytes.all.peak": stats["peak_reserved"],
        "allocation.all.allocated": stats["allocations"],
    }


def memory_allocated(device: Any = None) -> int:
    """Return the bytes in use by tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes that were in use by tensors."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Return the bytes held from the host."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    """Return the most bytes that were held from the host."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peaks anew from what is in use now."""
    extension().reset_peak_memory_stats(_index(device))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes of a nominal memory."""
    return _TOTAL_MEMORY - memory_allocated(device), _TOTAL_MEMORY


def _generator(device: Any = None) -> torch.Generator:
    return default_generators[_index(device)]


class _Generators:
    """The default generators, by device index."""

    def __getitem__(self, index: int) -> torch.Generator:
        if not 0 <= index < device_count():
            raise IndexError(
                f"fake:{index} does not exist: there are {device_count()} fake devices"
            )
        found = _generators.get(index)
        if found is None:
            found = _generators[index] = extension().default_generator(index)
        return found

    def __len__(self) -> int:
        return device_count()


_generators: dict[int, torch.Generator] = {}
default_generators = _Generators()


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator."""
    for index in range(device_count()):
        default_generators[index].manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator from the machine's entropy."""
    return _generator().seed()


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return _generator().initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of a device's generator (a byte tensor on the CPU)."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Set the state of a device's generator."""
    _generator(device).set_state(new_state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types that torch.autocast may use."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Tell whether bfloat16 works; it does."""
    return True


_PUBLIC = [
    "Event",
    "ExternalStream",
    "Stream",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "set_device",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
    "_is_in_bad_fork",
    "_lazy_init",
    "_sleep",
]


def make_module(device_type: str = DEVICE_TYPE) -> types.ModuleType:
    """Return the module that becomes ``torch.<device_type>``."""
    module = types.ModuleType(f"torch.{device_type}", __doc__)
    for name in _PUBLIC:
        setattr(module, name, globals()[name])
    # Activation checkpointing saves a device's random state only where it finds this.
    module._initialized = True  # type: ignore[attr-defined]
    return module
