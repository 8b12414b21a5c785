"""Which memory an access touches: blocks numbered by allocation, bytes inside them."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, TypeAlias

import torch

from accel_streams.races._recorder import Recorder, ThreadState
from accel_streams.races._records import READ, WRITE, Access, StreamKey
from accel_streams.races._strides import access

__all__ = ["HOST", "Block", "Storages", "span"]

HOST = -1
"""The device index of pinned host memory, and of the host where it uses that memory."""

_Mode: TypeAlias = int


class Block:
    """One allocation. ``owner`` is the stream that it was made on, None if nobody saw that."""

    __slots__ = (
        "device",
        "nbytes",
        "number",
        "owner",
        "pointer",
        "reference",
        "whole",
    )

    def __init__(self, number: int, device: int, nbytes: int, pointer: int) -> None:
        self.number = number
        self.device = device
        self.nbytes = nbytes
        self.pointer = pointer
        self.owner: StreamKey | None = None
        self.reference: Any = None
        # By mode: the access to all of it.
        self.whole: tuple[Access, ...] = (
            (number, 0, nbytes, 0),
            (number, 0, nbytes, READ),
            (number, 0, nbytes, WRITE),
            (number, 0, nbytes, READ | WRITE),
        )


class Storages:
    """The blocks of one kind of device by the storages that torch has for them.

    A storage's Python object lives as long as the storage, which makes its identity a key that
    costs nothing; a weak reference says when it is gone.
    """

    def __init__(self, recorder: Recorder, device_type: str) -> None:
        self._recorder = recorder
        self.device_type = device_type
        self._numbers = itertools.count(1)
        self.by_storage: dict[int, Block] = {}
        # Those that a step of a backward pass has allocated: autograd itself tells the allocator
        # which streams use them.
        self._gradients: dict[int, StreamKey] = {}
        self._indices: dict[torch.device, int] = {}
        # How many blocks were used that nobody saw being allocated.
        self.adopted = 0

    def find(self, tensor: torch.Tensor) -> Block | None:
        """Return the tensor's block; None if it is not on the device, or has no memory."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None  # Sparse and wrapped tensors: those they consist of are seen.
        block = self.by_storage.get(id(storage))
        if block is None:
            index = self.index_of(tensor.device)
            if index >= 0:
                block = self._new(storage, index)
                self.adopted += 1
        return block

    def index_of(self, device: torch.device) -> int:
        """Return a device's index; -1 if it is of another kind."""
        index = self._indices.get(device)
        if index is None:
            mine = device.type == self.device_type
            index = self._indices[device] = (device.index or 0) if mine else -1
        return index

    def allocated(
        self,
        storage: torch.UntypedStorage,
        device: torch.device,
        stream: StreamKey,
        source: Any,
        state: ThreadState,
        *,
        backward: bool,
    ) -> Block | None:
        """Return a new block, of the result of an operation, and record its allocation.

        ``state`` is the calling thread's. None if the storage is not on the device.
        """
        index = self._indices.get(device)
        if index is None:
            index = self.index_of(device)
        if index < 0:
            return None
        block = self._new(storage, index)
        if block.nbytes:
            block.owner = stream
            if backward:
                self._gradients[block.number] = stream
            self._recorder.allocate(state, stream, block.number, block.nbytes, source)
        return block

    def owner_of_gradient(self, number: int) -> StreamKey | None:
        """Return the stream that owns a block that a step of a backward pass has allocated."""
        return self._gradients.get(number)

    def pinned(self, tensor: torch.Tensor) -> Block:
        """Return the block of a tensor in pinned host memory."""
        storage = tensor.untyped_storage()
        return self.by_storage.get(id(storage)) or self._new(storage, HOST)

    def moved(self, tensor: torch.Tensor, stream: StreamKey, source: Any) -> None:
        """Note that the tensor's storage may have got other memory."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        block = self.by_storage.get(id(storage))
        if block is None or (block.pointer, block.nbytes) == _memory(storage):
            return
        self._forget(id(storage), block)
        state = self._recorder.state
        self.allocated(storage, tensor.device, stream, source, state, backward=False)

    def _new(self, storage: torch.UntypedStorage, device: int) -> Block:
        pointer, nbytes = _memory(storage)
        block = Block(next(self._numbers), device, nbytes, pointer)
        key = id(storage)
        block.reference = weakref.ref(storage, lambda _: self._forget(key, block))
        self.by_storage[key] = block
        return block

    def _forget(self, key: int, block: Block) -> None:
        # Called wherever the last reference goes: nothing here may wait for anything.
        block.reference = None  # Which refers back to the block.
        if self.by_storage.get(key) is block:
            del self.by_storage[key]
            self._gradients.pop(block.number, None)
            self._recorder.dead.append((block.owner, block.number))


def _memory(storage: torch.UntypedStorage) -> tuple[int, int]:
    return storage.data_ptr(), storage.nbytes()


def span(tensor: torch.Tensor, block: Block, mode: _Mode) -> Access | None:
    """Return the access to all of a tensor; None if it has no elements."""
    if tensor.is_contiguous():
        nbytes = tensor.nbytes
        if nbytes == block.nbytes:
            return block.whole[mode]
        if not nbytes:
            return None
        lo = int(tensor.storage_offset()) * tensor.itemsize
        return (block.number, lo, lo + nbytes, mode)
    offset = int(tensor.storage_offset())
    return access(block.number, offset, tensor.shape, tensor.stride(), tensor.itemsize, mode)
