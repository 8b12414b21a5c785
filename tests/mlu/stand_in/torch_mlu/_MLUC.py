"""What is C++ in torch_mlu: the bases of its streams and events, and the bindings."""

from __future__ import annotations

from typing import Any

import torch

from accel_streams.fake._extension import extension
from torch_mlu import _branch

__all__: list[str] = []

_PRIVATE_USE_1 = 20  # c10::DeviceType
_POOL = 32  # streams of each priority and device
_GREATEST_PRIORITY = -3
# In a stream's handle, what makes it another number than 0, and what its id may be.
_HANDLE, _ANY_ID = 1 << 40, (1 << 32) - 1

# The ids of the streams in a pool, and how many have been handed out, by device and priority.
_pools: dict[tuple[int, int], list[int]] = {}
_handed_out: dict[tuple[int, int], int] = {}
_priorities: dict[tuple[int, int], int] = {}


def _from_pool(priority: int) -> tuple[int, int]:
    """Return the id and the device of the next stream in turn."""
    if priority > 0:
        raise RuntimeError(f"a stream's priority is 0 or less, got {priority}")
    device, priority = _mlu_getDevice(), max(priority, _GREATEST_PRIORITY)
    key = device, priority
    if key not in _pools:
        _pools[key] = [
            torch.Stream(device=torch.device("mlu", device)).stream_id for _ in range(_POOL)
        ]
        _priorities.update({(device, number): priority for number in _pools[key]})
    turn = _handed_out[key] = _handed_out.get(key, 0) + 1
    return _pools[key][(turn - 1) % _POOL], device


class _MLUStreamBase(torch.Stream):
    def __new__(
        cls,
        *,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> _MLUStreamBase:
        if stream_id or device_index or device_type:
            if device_type != _PRIVATE_USE_1:
                raise RuntimeError(f"expected the device type {_PRIVATE_USE_1}, got {device_type}")
        elif stream_ptr:
            if priority:
                raise RuntimeError("a stream made elsewhere has its priority already")
            stream_id, device_index = stream_ptr >> 8 & _ANY_ID, stream_ptr & 0xFF
        else:
            stream_id, device_index = _from_pool(priority)
        return super().__new__(
            cls, stream_id=stream_id, device_index=device_index, device_type=_PRIVATE_USE_1
        )

    @property
    def mlu_stream(self) -> int:
        """The handle: made up, and the same for all objects that mean one stream."""
        return _HANDLE | self.stream_id << 8 | self.device_index

    @property
    def priority(self) -> int:
        return _priorities.get((self.device_index, self.stream_id), 0)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, _GREATEST_PRIORITY

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, torch.Stream)
            and (self.stream_id, self.device) == (other.stream_id, other.device)
        )  # fmt: skip

    __hash__ = torch.Stream.__hash__


class _MLUEventBase:
    _timing: bool
    _event: torch.Event | None

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> _MLUEventBase:
        if blocking and _branch.has("blocking"):
            raise RuntimeError("events that block are not supported")
        self = super().__new__(cls)
        self._timing = enable_timing
        # As in torch_mlu, it belongs to a device from its first record on.
        self._event = None
        return self

    @property
    def device(self) -> torch.device | None:
        return None if self._event is None else self._event.device

    @property
    def mlu_event(self) -> int:
        return 0 if self._event is None else id(self._event)

    def record(self, stream: Any) -> None:
        stream = _as_in_c(stream)
        if self._event is None:
            event = torch.Event(device=stream.device, enable_timing=self._timing)
            event.record(stream)
            self._event = event
        else:
            self._event.record(stream)

    def wait(self, stream: Any) -> None:
        stream = _as_in_c(stream)
        if self._event is not None:
            self._event.wait(stream)

    def query(self) -> bool:
        return True if self._event is None else bool(self._event.query())

    def synchronize(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def elapsed_time(self, other: _MLUEventBase) -> float:
        if self._event is None or other._event is None:
            raise RuntimeError("both events must have been recorded")
        return float(self._event.elapsed_time(other._event))


def _as_in_c(stream: Any) -> Any:
    """Return the stream that C++ takes an argument for.

    It does not look whether it is one of its own, and of any other object reads what lies behind
    it in memory. What that gives is undefined; here it is a zero, which means the default stream.
    """
    if isinstance(stream, _MLUStreamBase):
        return stream
    if not _branch.has("unchecked"):
        raise TypeError(f"expected a torch.mlu.Stream, got {type(stream).__name__}")
    return _MLUStreamBase(device_type=_PRIVATE_USE_1)


def _mlu_init() -> None:
    pass


def _mlu_isInBadFork() -> bool:
    # The simulated device lives in memory: a forked child has its own copy.
    return False


def _mlu_getDevice() -> int:
    return int(extension().current_device())


def _mlu_setDevice(device: int) -> None:
    extension().set_device(device)


def _mlu_getDeviceCount() -> int:
    return int(extension().device_count())


def _mlu_synchronize() -> None:
    extension().synchronize_device(_mlu_getDevice())


def _mlu_getCurrentMLUStream(device: int) -> tuple[int, int, int]:
    return int(extension().current_stream(device)), device, _PRIVATE_USE_1


def _mlu_getDefaultStream(device: int) -> tuple[int, int, int]:
    return 0, device, _PRIVATE_USE_1


def _mlu_setStream(stream_id: int, device_index: int, device_type: int) -> None:
    extension().set_device(device_index)
    extension().exchange_stream(device_index, stream_id)


if not _branch.has("no_sleep"):

    def _mlu_sleep(cycles: int) -> None:
        """One cycle is a nanosecond of the virtual clock."""
        extension().spin(_mlu_getDevice(), cycles)
