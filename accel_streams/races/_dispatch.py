"""A trace of any device, made by looking at every operator that torch dispatches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel_streams import _handover
from accel_streams.races._collectives import Collectives
from accel_streams.races._declare import declaring, note_triton
from accel_streams.races._operators import LIST, Plan, plan_of
from accel_streams.races._patching import Patches
from accel_streams.races._race import StreamNames
from accel_streams.races._recorder import Pending, Recorder, ThreadState, place
from accel_streams.races._records import READ, WRITE, Access, StreamKey
from accel_streams.races._source import Sink
from accel_streams.races._storages import HOST, Block, Storages, span
from accel_streams.races._streams import Streams, streams_of

__all__ = ["DispatchSource"]

_CHUNK: Final = 512
_TENSOR: Final = torch.Tensor


class DispatchSource:
    """Makes the records of what this process does on a device, wherever torch can see it."""

    sink_may_raise = True

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self._recorder: Recorder | None = None
        self._mode: Mode | None = None
        self._streams: Streams | None = None
        self._patches = Patches()
        self._running = False

    def start(self, sink: Sink, *, promptly: bool = False) -> None:
        """Look at what the calling thread does from now on, and the threads that start later."""
        recorder = Recorder(sink, 1 if promptly else _CHUNK)
        streams = streams_of(self.device_type, recorder)
        self._recorder, self._streams = recorder, streams
        self._mode = Mode(recorder, streams, Storages(recorder, self.device_type))
        _handover.start(recorder)
        streams.install()
        self._mode.collectives.install()
        self._follow_threads()
        note_triton()
        declaring.append(self._mode)
        self._mode.others = threading.active_count() - 1
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._running = True

    def flush(self) -> None:
        """Hand over what has gathered."""
        if self._recorder is not None:
            self._recorder.deliver()

    def stop(self) -> None:
        """Look no more, and hand over the rest. Called by the thread that started."""
        if not self._running or self._mode is None or self._streams is None:
            return
        self._running = False
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        declaring.remove(self._mode)
        self._patches.undo()
        self._mode.collectives.uninstall()
        self._streams.uninstall()
        if self._recorder is not None:
            _handover.stop(self._recorder)
        self._mode.active = False
        self.flush()

    def stream_names(self) -> StreamNames:
        """Return what to call streams."""
        return {} if self._streams is None else self._streams.names()

    def unseen(self) -> list[str]:
        """Return what the records do not hold."""
        return [] if self._mode is None else self._mode.unseen()

    def _follow_threads(self) -> None:
        """Look at threads that start from now on, too: a mode holds for one thread only.

        Autograd's threads take it over from the one that calls ``backward``.
        """
        mode, start = self._mode, threading.Thread.start

        def start_looking(thread: threading.Thread) -> None:
            run = thread.run

            def run_looking() -> None:
                if mode is None or not mode.active:
                    run()
                    return
                with mode:
                    run()

            thread.run = run_looking  # type: ignore[method-assign]
            start(thread)

        self._patches.replace(threading.Thread, "start", start_looking)


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each operator's launch: what it reads and writes, on which stream, from where."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder, streams: Streams, storages: Storages) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.streams = streams
        self.storages = storages
        self.collectives = Collectives(recorder, streams, storages)
        self.active = True
        # Threads that ran before: nobody sees what they do.
        self.others = 0
        self.opaque: Counter[str] = Counter()
        self.undeclared: Counter[str] = Counter()
        self.failed = 0
        self._plans: dict[int, Plan] = {}
        self._backward = streams.backward
        self._pinned: dict[int, Block] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Have torch not wrap each call to keep its compiler out: no compiler runs under a mode."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Have torch.compile run its functions eagerly: inside them nothing could be seen."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, and record it."""
        # Not by the operator itself: its hash is computed in Python.
        plan = self._plans.get(id(func))
        if plan is None:
            plan = self._plan(func)
        if plan.kind == "view":
            if self._backward.running:
                # Some steps of a backward pass do nothing else.
                self.streams.note_node(self.recorder.state)
            return plan.call(*args, **kwargs) if kwargs else plan.call(*args)
        by_storage = self.storages.by_storage
        accesses: list[Access] = []
        device = -1
        for value, mode in zip(args, plan.modes):  # noqa: B905  (defaults are left out)
            if mode and value is not None:
                if mode < LIST:
                    try:
                        block = by_storage.get(id(value.untyped_storage()))
                    except (AttributeError, NotImplementedError, RuntimeError):
                        continue  # A number; a sparse or wrapped tensor.
                    if block is None:
                        block = self._find(value)
                        if block is None:
                            continue
                    if device < 0:
                        device = block.device
                    if value.is_contiguous() and value.nbytes == block.nbytes:
                        accesses.append(block.whole[mode])
                    else:
                        access = span(value, block, mode)
                        if access is not None:
                            accesses.append(access)
                else:
                    device = self._list(value, mode - LIST, accesses, device)
        if kwargs and plan.keywords:
            for name, mode in plan.keywords.items():
                value = kwargs.get(name)
                if value is not None:
                    values = value if mode >= LIST else (value,)
                    device = self._list(values, mode & ~LIST, accesses, device)
        if plan.kind != "plain" or device < 0:
            return self._special(plan, func, args, kwargs or {}, accesses, device)
        stream = self.streams.current(device)
        return self._run(plan, args, kwargs, accesses, stream)

    def _run(
        self,
        plan: Plan,
        args: tuple[Any, ...],
        kwargs: Any,
        accesses: list[Access],
        stream: StreamKey,
        *,
        host_waits: bool = False,
    ) -> Any:
        recorder = self.recorder
        source = place()
        try:
            state = recorder.local.state
        except AttributeError:
            state = recorder.state
        streams = self.streams
        if self._backward.running:
            streams.note_node(state)
            streams.note_operation(state, stream, source, accesses, self.storages)
        pending: Pending | None = None
        if streams.traced:
            pending = state.pending = Pending(plan.name, accesses, source, stream)
        try:
            result = plan.call(*args, **kwargs) if kwargs else plan.call(*args)
        except BaseException:
            state.pending = None
            self.failed += 1
            raise
        if pending is not None:
            if state.pending is not pending:
                accesses = []  # Recorded already.
            state.pending = None
        if plan.makes:
            self._results(plan, result, accesses, stream, source, state)
        if accesses or pending is None:
            if recorder.dead:
                recorder.bury()
            thread = state.index
            with recorder.lock:
                recorder.buffer.append(
                    (
                        "launch",
                        next(recorder.numbers),
                        thread,
                        stream,
                        plan.name,
                        tuple(accesses),
                        source,
                    )
                )
        if (host_waits or plan.host_waits) and not streams.traced:
            recorder.emit("sync_stream", stream, plan.name, source)
        if len(recorder.buffer) >= recorder.chunk:
            recorder.deliver()
        return result

    def _results(
        self,
        plan: Plan,
        result: Any,
        accesses: list[Access],
        stream: StreamKey,
        source: Any,
        state: ThreadState,
    ) -> None:
        storages = self.storages
        for value in (result,) if isinstance(result, _TENSOR) else _flat(result):
            try:
                storage = value.untyped_storage()
            except (NotImplementedError, RuntimeError):
                continue  # Sparse and wrapped tensors: those they consist of are seen.
            block = storages.by_storage.get(id(storage))
            if block is None:
                block = storages.allocated(
                    storage, value.device, stream, source, state, backward=state.node is not None
                )
                if block is None:
                    continue
                if plan.writes_results and value.nbytes == block.nbytes:
                    accesses.append(block.whole[WRITE])  # All of it, however it is laid out.
                    continue
            if plan.writes_results:
                access = span(value, block, WRITE)
                if access is not None and access not in accesses:
                    accesses.append(access)

    def _special(
        self,
        plan: Plan,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        accesses: list[Access],
        device: int,
    ) -> Any:
        """Do what is not a plain operator on the device."""
        kind = plan.kind
        if kind == "collective":
            return self.collectives.run(plan, func, args, kwargs)
        if kind == "wait_tensor":
            return self.collectives.run_wait_tensor(func, args, kwargs)
        if kind == "record_stream":
            block = self.storages.find(args[0])
            if block is not None:
                self.recorder.emit("record_stream", self.streams.key_of(args[1]), block.number)
            return func(*args, **kwargs)
        if kind == "moves":
            return self._run_moving(plan, func, args, kwargs)
        if kind == "copy":
            return self._run_copy(plan, func, args, kwargs, accesses)
        if kind == "opaque":
            return self._run_opaque(plan, func, args, kwargs)
        if device < 0:
            return self._run_without_inputs(plan, func, args, kwargs)
        host_waits = kind == "index" and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        stream = self.streams.current(device)
        return self._run(plan, args, kwargs, accesses, stream, host_waits=host_waits)

    def _run_without_inputs(
        self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run what has no tensor of the device among its arguments: it may make one, or not."""
        if self._pinned:
            self._host_uses(plan, args, kwargs)
        result = func(*args, **kwargs)
        made = [value for value in _flat(result) if self.storages.index_of(value.device) >= 0]
        if plan.makes and made:
            stream = self.streams.current(made[0].device.index)
            state, source, accesses = self.recorder.state, place(), list[Access]()
            self._results(plan, made, accesses, stream, source, state)
            if accesses:
                self.recorder.emit("launch", stream, plan.name, tuple(accesses), source)
            self.recorder.deliver_if_full()
        return result

    def _run_moving(
        self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = func(*args, **kwargs)
        tensor = args[0]
        index = self.storages.index_of(tensor.device)
        if index >= 0:
            stream = self.streams.current(index)
            self.storages.moved(tensor, stream, place())
        return result

    def _run_copy(
        self,
        plan: Plan,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        accesses: list[Access],
    ) -> Any:
        """Run a copy, which may be between devices, or between the device and the host."""
        own = self.storages.device_type
        if plan.name.startswith("aten::_to_copy"):
            source = args[0]
            wanted = kwargs.get("device")
            target_type = source.device.type if wanted is None else torch.device(wanted).type
            target = None
        else:
            target, source = args[0], args[1]
            if plan.name.startswith("aten::_copy_from"):
                target, source = source, target
            target_type = target.device.type
        source_type = source.device.type
        if own not in (source_type, target_type):
            return self._run_without_inputs(plan, func, args, kwargs)
        non_blocking = bool(kwargs.get("non_blocking", False)) or (len(args) > 2 and bool(args[2]))
        here = source.device if source_type == own else None
        there = None
        if target is not None and target_type == own:
            there = target.device
        elif target is None and target_type == own:
            there = torch.device(kwargs["device"]) if kwargs.get("device") is not None else here
        index = here.index if here is not None else self._index(there)
        stream = self.streams.current(index)
        other = self.streams.current(self._index(there)) if there is not None else stream
        if non_blocking:
            for tensor in (source, target):
                if tensor is not None and tensor.device.type == "cpu" and tensor.is_pinned():
                    block = self.storages.pinned(tensor)
                    self._pinned[block.number] = block
                    access = span(tensor, block, READ if tensor is source else WRITE)
                    if access is not None:
                        accesses.append(access)
        if other != stream and not self.streams.traced:
            self.recorder.edge(other, stream, place())
        waits = target_type == "cpu" and not non_blocking
        result = self._run(plan, args, kwargs, accesses, stream, host_waits=waits)
        if other != stream and not self.streams.traced:
            self.recorder.edge(stream, other, place())
        return result

    def _index(self, device: Any) -> int:
        if device is None or device.index is None:
            return self.streams.current_device()
        return int(device.index)

    def _host_uses(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record what an operator of the CPU does to memory that the device copies from or to."""
        accesses: list[Access] = []
        modes = [*zip(args, plan.modes)]  # noqa: B905  (defaults are left out)
        modes += [(kwargs.get(name), mode) for name, mode in plan.keywords.items()]
        for value, mode in modes:
            if value is None or not mode:
                continue
            for tensor in _flat(value if mode >= LIST else (value,)):
                try:
                    block = self.storages.by_storage.get(id(tensor.untyped_storage()))
                except (NotImplementedError, RuntimeError):
                    continue
                access = None if block is None else span(tensor, block, mode & ~LIST)
                if access is not None:
                    accesses.append(access)
        if accesses:
            source = place()
            host = (HOST, self.recorder.state.index)
            self.recorder.emit("launch", host, plan.name, tuple(accesses), source)
            self.recorder.emit("sync_stream", host, "", source)

    def _run_opaque(
        self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.opaque[plan.name] += 1
        return func(*args, **kwargs)

    def _find(self, value: Any) -> Block | None:
        if value.is_cpu:
            return None
        return self.storages.find(value)

    def _list(self, values: Any, mode: int, accesses: list[Access], device: int) -> int:
        for value in values:
            if not isinstance(value, _TENSOR):
                continue
            block = self.storages.find(value)
            if block is None or block.device == HOST:
                continue
            if device < 0:
                device = block.device
            access = span(value, block, mode)
            if access is not None:
                accesses.append(access)
        return device

    def _plan(self, func: Any) -> Plan:
        if isinstance(func, torch._ops.OpOverload):
            plan = plan_of(func)
        else:
            # A higher-order operator: what it runs inside may or may not come by here.
            plan = Plan(str(getattr(func, "name", lambda: func)()))
            plan.kind = "opaque"
        plan.func = func  # So that its identity is not used again.
        plan.call = func._op if type(func) is torch._ops.OpOverload else func
        self._plans[id(func)] = plan
        return plan

    def declare(
        self, name: str, reads: list[Any], writes: list[Any], stream: Any
    ) -> Callable[[], None]:
        """Record a kernel that nobody dispatches; return what to call when it is launched."""
        accesses: list[Access] = []
        device = self._list(reads, READ, accesses, -1)
        device = self._list(writes, WRITE, accesses, device)
        if device < 0:
            return lambda: None
        key = self.streams.current(device) if stream is None else self.streams.key_of(stream)
        state, source = self.recorder.state, place()
        if self.streams.in_backward:
            self.streams.note_node(state)
        self.recorder.emit("launch", key, name, tuple(accesses), source)
        return self.recorder.deliver_if_full

    def launched_unseen(self, name: str) -> None:
        """Note a kernel that nobody declared."""
        self.undeclared[name] += 1

    def unseen(self) -> list[str]:
        """Say what could not be seen."""
        told = []
        for name, count in sorted(self.opaque.items()):
            times = f" ({count:,} times)" if count > 1 else ""
            told.append(f"what {name} accesses{times}: it has no schema that says so")
        for name, count in sorted(self.undeclared.items()):
            told.append(
                f"what the Triton kernel {name} accesses ({count:,} launches): declare it with "
                "accel_streams.races.kernel"
            )
        if self.collectives.unlinked:
            names = ", ".join(sorted(self.collectives.unlinked))
            told.append(f"where the host or a stream waits for {names}, started from C++")
        if self.failed:
            told.append(
                f"whether {self.failed:,} operations that raised an error had been launched before"
            )
        if self.others:
            told.append(f"the work of {self.others} threads that ran before the watch began")
        told += self.streams.unseen()
        told.append(
            "kernels that do not go through torch's dispatcher (Triton, custom extensions), unless "
            "declared with accel_streams.races.kernel"
        )
        told.append(
            "what becomes of memory from before the watch, and what the host does to pinned memory "
            "other than by torch's operators"
        )
        return told


def _flat(value: Any) -> list[Any]:
    if isinstance(value, _TENSOR):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in _flat(each)]
    return []
