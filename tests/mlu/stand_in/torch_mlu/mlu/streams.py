"""Streams and events as torch_mlu has them."""

from __future__ import annotations

from typing import Any

import torch

import torch_mlu
from torch_mlu import _branch

from ._devices import current_device, device, index_of

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]


class Stream(torch_mlu._MLUC._MLUStreamBase):
    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        made: Any
        if device is None or ("stream_id" in kwargs and "device_index" in kwargs):
            made = super().__new__(cls, priority=priority, **kwargs)
        else:
            with torch.mlu.device(device):  # type: ignore[attr-defined]
                made = super().__new__(cls, priority=priority, **kwargs)
        stream: Stream = made
        return stream

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.mlu_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.mlu.Stream device={self.device} mlu_stream={self.mlu_stream:#x}>"


class ExternalStream(Stream):
    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
        made: Any
        with torch.mlu.device(device):  # type: ignore[attr-defined]
            made = super().__new__(cls, stream_ptr=stream_ptr, **kwargs)
        stream: ExternalStream = made
        return stream


class Event(torch_mlu._MLUC._MLUEventBase):
    def record(self, stream: Any = None) -> None:
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        super().wait(current_stream() if stream is None else stream)

    def __repr__(self) -> str:
        return f"<torch.mlu.Event {self.mlu_event:#x}>"


def _stream(data: tuple[int, int, int]) -> Stream:
    return Stream(stream_id=data[0], device_index=data[1], device_type=data[2])


def current_stream(device: Any = None) -> Stream:
    torch.mlu._lazy_init()  # type: ignore[attr-defined]
    return _stream(torch_mlu._MLUC._mlu_getCurrentMLUStream(index_of(device)))


def default_stream(device: Any = None) -> Stream:
    if _branch.has("default_stream"):
        return current_stream(device)
    torch.mlu._lazy_init()  # type: ignore[attr-defined]
    return _stream(torch_mlu._MLUC._mlu_getDefaultStream(index_of(device)))


def set_stream(stream: Any) -> None:
    if stream is None:
        return
    torch_mlu._MLUC._mlu_setStream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


class StreamContext:
    """Make a stream, and its device, current inside the block; None changes nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.src_prev_stream: Stream | None = None
        self.dst_prev_stream: Stream | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self.src_prev_stream = current_stream(current_device())
        if self.src_prev_stream.device != self.stream.device:
            with device(self.stream.device):
                self.dst_prev_stream = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self.stream is None or self.src_prev_stream is None:
            return
        if self.src_prev_stream.device != self.stream.device:
            set_stream(self.dst_prev_stream)
        set_stream(self.src_prev_stream)


def stream(stream: Any) -> StreamContext:
    return StreamContext(stream)
