"""Where work is queued and what waits for what, on a device that does not trace itself.

What differs between devices is how their streams and events can be watched: `CudaStreams` is told
by torch's own callbacks, `PatchedStreams` replaces the methods by which a program waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, Protocol

import torch

from accel_streams.races._backward import Backward
from accel_streams.races._patching import Patches
from accel_streams.races._race import StreamNames
from accel_streams.races._recorder import Recorder, ThreadState, place
from accel_streams.races._records import Access, Source, StreamKey
from accel_streams.races._storages import HOST, Storages

__all__ = ["CudaStreams", "PatchedStreams", "Streams", "labels", "streams_of"]

labels: dict[tuple[str, int, int], str] = {}
"""Names that the program gave to streams, by device type, index and stream id."""


class Streams(Protocol):
    """What the looker at the dispatcher needs to know of streams."""

    backward: Backward
    """The backward passes under way."""

    @property
    def traced(self) -> bool:
        """Whether waits inside an operator are recorded as well."""

    @property
    def in_backward(self) -> bool:
        """Whether some backward pass is under way."""

    def install(self) -> None:
        """Begin to record waits."""

    def uninstall(self) -> None:
        """Record no more."""

    def current(self, device: int) -> StreamKey:
        """Return the calling thread's current stream on a device."""

    def current_device(self) -> int:
        """Return the calling thread's current device."""

    def key_of(self, stream: Any) -> StreamKey:
        """Return the identity of a stream object."""

    def name(self, key: StreamKey, label: str) -> None:
        """Call a stream by a name, unless the program has given it one."""

    def names(self) -> StreamNames:
        """Return what to call streams."""

    def note_node(self, state: ThreadState) -> None:
        """Find out whether another step of the backward pass has begun on this thread."""

    def note_operation(
        self,
        state: ThreadState,
        stream: StreamKey,
        source: Source | None,
        accesses: Sequence[Access],
        storages: Storages,
    ) -> None:
        """Learn of an operation that is about to be launched during a backward pass."""

    def unseen(self) -> list[str]:
        """Say what can't be seen of this device's streams."""


def streams_of(device_type: str, recorder: Recorder) -> Streams:
    """Return what watches the streams of a kind of device."""
    if device_type == "cuda":
        return CudaStreams(recorder, Cuda())
    return PatchedStreams(device_type, recorder)


class _Common:
    """What both ways of watching share."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.patches = Patches()
        self.backward = Backward(recorder, self)
        self._names: dict[StreamKey, str] = {}

    @property
    def in_backward(self) -> bool:
        return self.backward.running > 0

    def note_node(self, state: ThreadState) -> None:
        self.backward.note_node(state)

    def note_operation(
        self,
        state: ThreadState,
        stream: StreamKey,
        source: Source | None,
        accesses: Sequence[Access],
        storages: Storages,
    ) -> None:
        self.backward.note_operation(state, stream, source, accesses, storages)

    def name(self, key: StreamKey, label: str) -> None:
        self._names.setdefault(key, label)

    def current(self, device: int) -> StreamKey:
        raise NotImplementedError

    traced = False


class PatchedStreams(_Common):
    """Any device with a ``torch.<device type>`` module, watched where Python calls it."""

    def __init__(self, device_type: str, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.device_type = device_type
        self._module: Any = getattr(torch, device_type)
        # By event: the number of its latest recording.
        self._recorded: dict[int, int] = {}
        self._kept: dict[int, Any] = {}
        self._get_stream = _stream_getter(self._module, device_type)

    def install(self) -> None:
        """Replace what makes one thing wait for another."""
        streams = _classes(self._module, "Stream", torch.Stream)
        events = _classes(self._module, "Event", torch.Event)
        for stream_class in streams:
            self._wrap(stream_class, "wait_event", self._wait_event)
            self._wrap(stream_class, "wait_stream", self._wait_stream)
            self._wrap(stream_class, "record_event", self._record_event)
            self._wrap(stream_class, "synchronize", self._synchronize_stream)
            self._wrap(stream_class, "query", self._query_stream)
            self._wrap(stream_class, "__enter__", self._enter)
        for event_class in events:
            self._wrap(event_class, "record", self._record)
            self._wrap(event_class, "wait", self._wait)
            self._wrap(event_class, "synchronize", self._synchronize_event)
            self._wrap(event_class, "query", self._query_event)
        self._wrap(self._module, "synchronize", self._synchronize_device)
        self._wrap(self._module, "stream", self._enter)
        self._wrap(self._module, "set_stream", self._enter)
        self._wrap(self._module, "current_stream", self._enter)
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is not None:
            self._wrap(accelerator, "synchronize", self._synchronize_device)
        self.backward.install(self.patches)

    def uninstall(self) -> None:
        """Put back what was replaced."""
        self.patches.undo()
        self._recorded.clear()
        self._kept.clear()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        # Where it is defined, as long as that is not a class of everybody's.
        original = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name, None)
        if original is None:
            return
        function = getattr(owner, name)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            return around(function, *args, **kwargs)

        self.patches.replace(owner, name, replacement)

    # What the replacements do. Methods that are written in terms of each other, as many vendors'
    # are, must not count twice: an operation under way is marked.

    def _mine(self, thing: Any) -> bool:
        device = getattr(thing, "device", None)
        return device is None or device.type == self.device_type

    def _around(self, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, bool]:
        """Call the original; return its result, and whether this was the outermost call."""
        state = self.recorder.state
        inner = _inside.depth
        _inside.depth = inner + 1
        try:
            if self.in_backward:
                self.note_node(state)
            return function(*args, **kwargs), inner == 0
        finally:
            _inside.depth = inner

    def _enter(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.in_backward:
            self.note_node(self.recorder.state)
        return function(*args, **kwargs)

    def _record_event(
        self, function: Callable[..., Any], stream: Any, event: Any = None, **kwargs: Any
    ) -> Any:
        given = () if event is None else (event,)
        result, outermost = self._around(function, (stream, *given), kwargs)
        if outermost and self._mine(stream):
            self._note_recording(result if event is None else event, self.key_of(stream))
        return result

    def _record(
        self, function: Callable[..., Any], event: Any, stream: Any = None, **kwargs: Any
    ) -> Any:
        given = () if stream is None else (stream,)
        result, outermost = self._around(function, (event, *given), kwargs)
        if outermost and self._mine(event):
            key = self.current(self.current_device()) if stream is None else self.key_of(stream)
            self._note_recording(event, key)
        return result

    def _note_recording(self, event: Any, key: StreamKey) -> None:
        seq = self.recorder.emit("record", key, place())
        before = self._recorded.get(id(event))
        if before is not None:
            self.recorder.emit("drop", before)
        if id(event) not in self._kept:
            # So that its identity is not used again; an event is small.
            self._kept[id(event)] = event
        self._recorded[id(event)] = seq

    def _wait_event(
        self, function: Callable[..., Any], stream: Any, event: Any, **kwargs: Any
    ) -> Any:
        result, outermost = self._around(function, (stream, event), kwargs)
        if outermost and self._mine(stream):
            self._note_wait(event, self.key_of(stream))
        return result

    def _wait(
        self, function: Callable[..., Any], event: Any, stream: Any = None, **kwargs: Any
    ) -> Any:
        given = () if stream is None else (stream,)
        result, outermost = self._around(function, (event, *given), kwargs)
        if outermost and self._mine(event):
            key = self.current(self.current_device()) if stream is None else self.key_of(stream)
            self._note_wait(event, key)
        return result

    def _note_wait(self, event: Any, key: StreamKey) -> None:
        recorded = self._recorded.get(id(event))
        # One that was never recorded, or before the watch, orders nothing that is known of.
        if recorded is not None:
            self.recorder.emit("wait", key, recorded, place())

    def _wait_stream(
        self, function: Callable[..., Any], stream: Any, other: Any, **kwargs: Any
    ) -> Any:
        result, outermost = self._around(function, (stream, other), kwargs)
        if outermost and self._mine(stream):
            self.recorder.edge(self.key_of(other), self.key_of(stream), place())
        return result

    def _synchronize_stream(self, function: Callable[..., Any], stream: Any) -> Any:
        result, outermost = self._around(function, (stream,), {})
        if outermost and self._mine(stream):
            self.recorder.emit("sync_stream", self.key_of(stream), "", place())
        return result

    def _query_stream(self, function: Callable[..., Any], stream: Any) -> Any:
        result, outermost = self._around(function, (stream,), {})
        if result and outermost and self._mine(stream):
            self.recorder.emit("sync_stream", self.key_of(stream), "", place())
        return result

    def _synchronize_event(self, function: Callable[..., Any], event: Any) -> Any:
        result, outermost = self._around(function, (event,), {})
        if outermost and self._mine(event):
            self._note_seen(event)
        return result

    def _query_event(self, function: Callable[..., Any], event: Any) -> Any:
        result, outermost = self._around(function, (event,), {})
        if result and outermost and self._mine(event):
            self._note_seen(event)
        return result

    def _note_seen(self, event: Any) -> None:
        recorded = self._recorded.get(id(event))
        if recorded is not None:
            self.recorder.emit("sync_event", recorded, place())

    def _synchronize_device(
        self, function: Callable[..., Any], device: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        given = () if device is None else (device,)
        result, outermost = self._around(function, (*given, *args), kwargs)
        if outermost:
            self.recorder.emit("sync_device", self._device_index(device), place())
        return result

    def _device_index(self, device: Any) -> int:
        if isinstance(device, int):
            return device if device >= 0 else self.current_device()
        index = None if device is None else torch.device(device).index
        return self.current_device() if index is None else int(index)

    # What the looker asks

    def current(self, device: int) -> StreamKey:
        """Return the calling thread's current stream on a device."""
        return (device, self._get_stream(device).stream_id)

    def current_device(self) -> int:
        """Return the calling thread's current device."""
        return int(self._module.current_device())

    def key_of(self, stream: Any) -> StreamKey:
        """Return the identity of a stream object."""
        return (stream.device_index, stream.stream_id)

    def names(self) -> StreamNames:
        """Return what to call streams."""
        return {**_HOSTS, **self._names, **_given_names(self.device_type)}

    def unseen(self) -> list[str]:
        """Say what can't be seen of this device's streams."""
        return ["waits that code in C++ makes by itself, other than autograd's"]


class _Inside(threading.local):
    """How many replaced methods of a thread are under way."""

    depth = 0


_inside = _Inside()


class Cuda:
    """What is asked of torch.cuda; apart, so that a test can stand in for it."""

    def current_device(self) -> int:
        """Return the calling thread's current device."""
        return int(torch._C._cuda_getDevice())

    def current_handle(self, device: int) -> int:
        """Return the CUDA handle of a device's current stream; 0 is the default stream."""
        return int(torch._C._cuda_getCurrentRawStream(device))

    def handle_of(self, stream: Any) -> tuple[int, int]:
        """Return a stream object's device and CUDA handle."""
        handle = getattr(stream, "cuda_stream", None)
        if handle is None:
            stream_class: Any = torch.cuda.Stream
            handle = stream_class(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            ).cuda_stream
        return stream.device_index, handle

    def activate(self) -> Any:
        """Have torch call back; return the module that keeps the callbacks."""
        import torch.cuda._gpu_trace as gpu_trace

        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch._C._activate_gpu_trace()
        return gpu_trace


class CudaStreams(_Common):
    """CUDA's streams and events, as torch itself reports their use, from C++ and Python alike.

    The callbacks name streams by their handles, which are 0 for the default stream of every device;
    the device is the one that is current in the callback.
    """

    traced = True

    def __init__(self, recorder: Recorder, cuda: Cuda) -> None:
        super().__init__(recorder)
        self._cuda = cuda
        self._numbers: dict[tuple[int, int], StreamKey] = {}
        self._recorded: dict[int, int] = {}
        self._callbacks: list[tuple[Any, Callable[..., None]]] = []

    def install(self) -> None:
        """Have torch call back, and watch the questions that it does not report."""
        trace = self._cuda.activate()
        for registry, callback in (
            (trace.EventRecordCallbacks, self._record),
            (trace.EventWaitCallbacks, self._wait),
            (trace.EventDeletionCallbacks, self._delete),
            (trace.EventSynchronizationCallbacks, self._synchronize_event),
            (trace.StreamSynchronizationCallbacks, self._synchronize_stream),
            (trace.DeviceSynchronizationCallbacks, self._synchronize_device),
            (trace.MemoryAllocationCallbacks, self._allocate),
        ):
            registry.add_callback(callback)
            self._callbacks.append((registry, callback))
        self._watch_queries()
        self.backward.install(self.patches)

    def _watch_queries(self) -> None:
        event_query: Any = torch.cuda.Event.query
        stream_query: Any = torch.cuda.Stream.query

        def query_event(event: Any) -> bool:
            done = bool(event_query(event))
            if done:
                self._synchronize_event(int(event.cuda_event))
            return done

        def query_stream(stream: Any) -> bool:
            done = bool(stream_query(stream))
            if done:
                self.recorder.emit("sync_stream", self.key_of(stream), "", place())
            return done

        self.patches.replace(torch.cuda.Event, "query", query_event)
        self.patches.replace(torch.cuda.Stream, "query", query_stream)

    def uninstall(self) -> None:
        """Have torch call back no more."""
        for registry, callback in self._callbacks:
            registry.callback_list.remove(callback)
        self._callbacks.clear()
        self.patches.undo()

    # The callbacks. An exception in one would be logged and lost, so none delivers records.

    def _prepare(self) -> ThreadState:
        state = self.recorder.state
        if self.in_backward:
            self.note_node(state)
        return state

    def _record(self, event: int, handle: int) -> None:
        state = self._prepare()
        key = self._key(self._cuda.current_device(), handle)
        if state.pending is not None and state.pending.stream == key:
            self.recorder.launch_pending(state)
        self._delete(event)
        self._recorded[event] = self.recorder.emit("record", key, place())

    def _wait(self, event: int, handle: int) -> None:
        state = self._prepare()
        key = self._key(self._cuda.current_device(), handle)
        recorded = self._recorded.get(event)
        if recorded is not None:
            self.recorder.emit("wait", key, recorded, place())
        pending = state.pending
        if pending is not None and pending.stream is None and key != pending.collective:
            # The communicator's stream waits for the inputs: there the collective will run.
            pending.stream = key

    def _delete(self, event: int) -> None:
        before = self._recorded.pop(event, None)
        if before is not None:
            self.recorder.emit("drop", before)

    def _synchronize_event(self, event: int) -> None:
        self._prepare()
        recorded = self._recorded.get(event)
        if recorded is not None:
            self.recorder.emit("sync_event", recorded, place())

    def _synchronize_stream(self, handle: int) -> None:
        state = self._prepare()
        key = self._key(self._cuda.current_device(), handle)
        if state.pending is not None and state.pending.stream == key:
            self.recorder.launch_pending(state)
        name = "" if state.pending is None else state.pending.name
        self.recorder.emit("sync_stream", key, name, place())

    def _synchronize_device(self) -> None:
        state = self._prepare()
        device = self._cuda.current_device()
        pending = state.pending
        if pending is not None and pending.stream is not None and pending.stream[0] == device:
            self.recorder.launch_pending(state)
        self.recorder.emit("sync_device", device, place())

    def _allocate(self, address: int) -> None:
        # Its size isn't told; what matters here is whose memory may be used for it.
        self.recorder.hand_out(self.current(self._cuda.current_device()))

    # What the looker asks

    def current(self, device: int) -> StreamKey:
        """Return the calling thread's current stream on a device."""
        handle = self._cuda.current_handle(device)
        return self._numbers.get((device, handle)) or self._key(device, handle)

    def current_device(self) -> int:
        """Return the calling thread's current device."""
        return self._cuda.current_device()

    def key_of(self, stream: Any) -> StreamKey:
        """Return the identity of a stream object."""
        return self._key(*self._cuda.handle_of(stream))

    def _key(self, device: int, handle: int) -> StreamKey:
        """Number streams in the order in which they come up; handles are addresses."""
        key = self._numbers.get((device, handle))
        if key is None:
            others = [known for known in self._numbers if known[0] == device and known[1]]
            number = len(others) + 1 if handle else 0
            key = self._numbers[device, handle] = (device, number)
            source = place()
            if number and source is not None and source[1]:
                where = f"{PurePath(source[0]).name}:{source[1]}"
                self._names[key] = f"stream {number} (first used at {where})"
        return key

    def names(self) -> StreamNames:
        """Return what to call streams."""
        by_handle = {
            self._numbers[device, handle]: label
            for (kind, device, handle), label in labels.items()
            if kind == "cuda" and (device, handle) in self._numbers
        }
        return {**_HOSTS, **self._names, **by_handle}

    def unseen(self) -> list[str]:
        """Say what can't be seen of CUDA's streams."""
        return ["waits made by calling CUDA directly, not through torch"]


_HOSTS = {(HOST, index): f"host thread {index}" for index in range(64)}


def _given_names(device_type: str) -> dict[StreamKey, str]:
    return {
        (device, stream): label
        for (kind, device, stream), label in labels.items()
        if kind == device_type
    }


def _classes(module: Any, name: str, general: type) -> list[type]:
    """Return the classes whose methods a device's streams or events have."""
    own = getattr(module, name, None)
    return [cls for cls in (own, general) if isinstance(cls, type)]


def _stream_getter(module: Any, device_type: str) -> Callable[[int], Any]:
    """Return the fastest way to a device's current stream."""
    accelerator = getattr(torch, "accelerator", None)
    current = None if accelerator is None else accelerator.current_accelerator()
    fast: Any = getattr(torch._C, "_accelerator_getStream", None)
    if fast is not None and current is not None and current.type == device_type:
        return fast  # type: ignore[no-any-return]
    own: Any = getattr(module, "current_stream", None)
    if own is None:
        raise RuntimeError(f"torch.{device_type} has no current_stream to ask for")
    return own  # type: ignore[no-any-return]
