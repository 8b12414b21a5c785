"""Collectives: operations on a communicator's stream, over when their ``Work`` was waited for."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from typing import Any, Final, NamedTuple

import torch

from accel_streams.races._operators import Plan
from accel_streams.races._patching import Patches
from accel_streams.races._recorder import Pending, Recorder, place
from accel_streams.races._records import READ, WRITE, Access, StreamKey
from accel_streams.races._storages import Storages, span

__all__ = ["Collectives"]

_BOTH: Final = READ | WRITE

# What each does to its arguments that hold tensors, in their order; their schemas do not say.
_ACCESSES: Final[dict[str, tuple[int, ...]]] = {
    "_allgather_base_": (WRITE, READ),
    "_reduce_scatter_base_": (WRITE, READ),
    "allgather_": (WRITE, READ),
    "allgather_coalesced_": (WRITE, READ),
    "allgather_into_tensor_coalesced_": (WRITE, READ),
    "allreduce_": (_BOTH,),
    "allreduce_coalesced_": (_BOTH,),
    "alltoall_": (WRITE, READ),
    "alltoall_base_": (WRITE, READ),
    "barrier": (_BOTH,),
    "broadcast_": (_BOTH,),
    "gather_": (WRITE, READ),
    "monitored_barrier_": (0,),
    "recv_": (WRITE,),
    "recv_any_source_": (WRITE,),
    "reduce_": (_BOTH,),
    "reduce_scatter_": (WRITE, READ),
    "reduce_scatter_tensor_coalesced_": (WRITE, READ),
    "scatter_": (WRITE, READ),
    "send": (READ,),
}
# What makes a Work from Python.
_METHODS: Final = (
    "_allgather_base",
    "_reduce_scatter_base",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)


class _Ended(NamedTuple):
    """A collective that was launched: the recording at its end, on the communicator's stream."""

    name: str
    recorded: int
    device: int


class Collectives:
    """Records collectives, and the waits for them."""

    def __init__(self, recorder: Recorder, streams: Any, storages: Storages) -> None:
        self._recorder = recorder
        self._streams = streams
        self._storages = storages
        self._patches = Patches()
        self._communicators: dict[int, StreamKey] = {}
        self._kept: list[Any] = []
        self._numbers = itertools.count(1)
        self._by_work: weakref.WeakKeyDictionary[Any, list[_Ended]] = weakref.WeakKeyDictionary()
        self._by_block: dict[int, _Ended] = {}
        # Started by C++ code, whose waits for them can't be seen where torch does not report them.
        self.unlinked: set[str] = set()

    def install(self) -> None:
        """Watch the waits for collectives, where torch does not report them itself."""
        distributed: Any = getattr(torch._C, "_distributed_c10d", None)
        if self._streams.traced or distributed is None or not torch.distributed.is_available():
            return
        group_class, work_class = distributed.ProcessGroup, distributed.Work
        for name in _METHODS:
            if hasattr(group_class, name):
                self._wrap_start(group_class, name)
        for name in ("wait", "synchronize", "block_current_stream"):
            if hasattr(work_class, name):
                self._wrap_wait(work_class, name)

    def uninstall(self) -> None:
        """Watch no more."""
        self._patches.undo()

    def _wrap_start(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def start(*args: Any, **kwargs: Any) -> Any:
            state = self._recorder.state
            state.last_collective = []
            work = original(*args, **kwargs)
            ended, state.last_collective = state.last_collective, None
            if ended and work is not None:
                with contextlib.suppress(TypeError):  # Nothing to remember it by.
                    self._by_work[work] = ended
                for each in ended:
                    self.unlinked.discard(each.name)
            return work

        self._patches.replace(owner, name, start)

    def _wrap_wait(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            for ended in self._by_work.get(work, ()):
                self._wait_for(ended)
            return result

        self._patches.replace(owner, name, wait)

    def _wait_for(self, ended: _Ended) -> None:
        stream = self._streams.current(ended.device)
        self._recorder.emit("wait", stream, ended.recorded, place())

    def run(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator of torch.distributed, and record it."""
        name = plan.name.removeprefix("c10d::").partition(".")[0]
        accesses, device, group = self._look(name, args)
        if device < 0:
            return func(*args, **kwargs)
        stream = self._streams.current(device)
        called = f"{_library(group)}::{name.strip('_')}"
        state = self._recorder.state
        if self._streams.in_backward:
            self._streams.note_node(state)
        if self._streams.traced:
            return self._run_traced(called, func, args, kwargs, accesses, stream)
        communicator = self._communicator(group, device)
        source = place()
        self._recorder.edge(stream, communicator, source)
        self._recorder.emit("launch", communicator, called, tuple(accesses), source)
        ended = _Ended(called, self._recorder.emit("record", communicator, source), device)
        if state.last_collective is None:
            self.unlinked.add(called)
        else:
            state.last_collective.append(ended)
        for number, _, _, mode, *_ in accesses:
            if mode & WRITE:
                self._by_block[number] = ended
            self._keep(communicator, number)
        result = func(*args, **kwargs)
        self._recorder.deliver_if_full()
        return result

    def _run_traced(
        self,
        called: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        accesses: list[Access],
        stream: StreamKey,
    ) -> Any:
        """Run one whose stream and waits torch reports while it is called."""
        state = self._recorder.state
        pending = state.pending = Pending(called, accesses, place(), None)
        pending.collective = stream
        try:
            result = func(*args, **kwargs)
        finally:
            left, state.pending = state.pending, None
        if left is pending:
            self._recorder.launch(pending, pending.stream or stream)
        for number, *_ in accesses:
            self._keep(pending.stream or stream, number)
        self._recorder.deliver_if_full()
        return result

    def _keep(self, stream: StreamKey, block: int) -> None:
        """Note that the library keeps a collective's memory from reuse, or its tensors alive."""
        self._recorder.emit("record_stream", stream, block)

    def run_wait_tensor(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the wait of a functional collective."""
        block = self._storages.find(args[0])
        result = func(*args, **kwargs)
        ended = None if block is None else self._by_block.get(block.number)
        if ended is not None and not self._streams.traced:
            self._wait_for(ended)
        return result

    def _look(self, name: str, args: tuple[Any, ...]) -> tuple[list[Access], int, Any]:
        """Return what a collective accesses, its device, and its process group."""
        modes = iter(_ACCESSES.get(name, ()))
        accesses: list[Access] = []
        device, group = -1, None
        for value in args:
            if isinstance(value, torch.ScriptObject) and group is None:
                group = value
                continue
            tensors = _tensors(value)
            if not tensors:
                continue
            mode = next(modes, _BOTH)
            for tensor in tensors:
                block = self._storages.find(tensor)
                if block is None or not mode:
                    continue
                device = block.device
                access = span(tensor, block, mode)
                if access is not None:
                    accesses.append(access)
        return accesses, device, group

    def _communicator(self, group: Any, device: int) -> StreamKey:
        """Return the stream that stands for a process group's own on a device."""
        name = _group_name(group)
        key = self._communicators.get(hash((name, device)))
        if key is None:
            # Numbers that no stream of the device has.
            key = (device, -next(self._numbers))
            self._communicators[hash((name, device))] = key
            self._streams.name(key, f"{_library(group)} {-key[1]}")
        return key


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


def _unboxed(group: Any) -> Any:
    with contextlib.suppress(Exception):
        return torch.distributed.ProcessGroup.unbox(group)
    return None


def _group_name(group: Any) -> str:
    return str(getattr(_unboxed(group), "group_name", ""))


def _library(group: Any) -> str:
    """Return what a collective's library is called: ``nccl``."""
    with contextlib.suppress(Exception):
        return str(torch.distributed.get_backend(_unboxed(group)))
    return "c10d"
