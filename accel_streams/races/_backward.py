"""What autograd does by itself in a backward pass: waits between streams, and who uses memory.

Autograd runs each step of a backward pass on the stream of its forward, and makes the streams wait
for each other where a gradient goes from one to another. It does so in C++. On CUDA torch reports
these waits; for other devices they are recorded here by the engine's own rules:

- a step's stream waits for the streams of the steps that its gradients come from, as they were when
  those ended; the first step's stream waits for the caller's;
- when the pass ends, the caller's stream waits for the streams of the last steps.

Everywhere autograd tells the allocator of each stream that a gradient goes to, which is not
reported on any device.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from accel_streams import _handover
from accel_streams.races._patching import Patches
from accel_streams.races._recorder import Recorder, ThreadState, place
from accel_streams.races._records import Access, Source, StreamKey
from accel_streams.races._storages import Storages

__all__ = ["Backward"]


class _Streams(Protocol):
    @property
    def traced(self) -> bool: ...

    def current(self, device: int) -> StreamKey: ...


class Backward:
    """The backward passes under way in this process."""

    def __init__(self, recorder: Recorder, streams: _Streams) -> None:
        self.running = 0
        self._recorder = recorder
        self._streams = streams
        self._lock = _thread.allocate_lock()
        # By step that has not begun: the recordings that its stream will wait for.
        self._expected: dict[Any, list[tuple[StreamKey, int]]] = {}
        # The caller's streams at the start of a pass, and where its last steps ran.
        self._roots: list[tuple[StreamKey, int]] = []
        self._leaves: dict[StreamKey, None] = {}
        self._states: list[ThreadState] = []

    def install(self, patches: Patches) -> None:
        """Learn where backward passes begin and end."""
        graph: Any = torch.autograd.graph
        original = graph._engine_run_backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            return self._around_pass(original, args, kwargs)

        patches.replace(graph, "_engine_run_backward", run_backward)
        # It is imported by name there.
        patches.replace(torch.autograd, "_engine_run_backward", run_backward)

    def _around_pass(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        outermost = self.running == 0
        self.running += 1
        caller = self._caller_streams(args)
        if not self._streams.traced and outermost:
            self._roots = [(key, self._recorder.emit("record", key, place())) for key in caller]
        try:
            result = original(*args, **kwargs)
        finally:
            self.running -= 1
            if outermost:
                for state in self._states:
                    self._end_node(state)
                leaves = list(self._leaves)
                self._states, self._roots = [], []
                self._expected, self._leaves = {}, {}
        if not self._streams.traced and outermost:
            for key in caller:
                for leaf in leaves:
                    if leaf[0] == key[0]:
                        self._recorder.edge(leaf, key, place())
        return result

    def _caller_streams(self, args: Any) -> list[StreamKey]:
        roots = args[0] if args else ()
        devices = {
            root.device.index
            for root in (roots if isinstance(roots, (tuple, list)) else (roots,))
            if isinstance(root, torch.Tensor) and root.device.type not in ("cpu", "meta")
        }
        return [self._streams.current(device) for device in sorted(devices)]

    def note_node(self, state: ThreadState) -> None:
        """Find out whether another step has begun on this thread; record what it waits for."""
        _handover.note_backward()
        node: Any = torch._C._current_autograd_node()
        if node is state.node or (node is None and state.node is None):
            return
        self._end_node(state)
        state.node = node
        if node is None:
            state.node_stream = None
            return
        with self._lock:
            expected = self._expected.pop(node, None)
            if state not in self._states:
                self._states.append(state)
        if expected is None:
            expected = self._roots
        device = expected[0][0][0] if expected else 0
        state.node_stream = stream = self._streams.current(device)
        self._wait(stream, expected)

    def _wait(self, stream: StreamKey, recordings: Sequence[tuple[StreamKey, int]]) -> None:
        if self._streams.traced:
            return
        for other, recorded in recordings:
            if other != stream:
                self._recorder.emit("wait", stream, recorded, None)

    def _end_node(self, state: ThreadState) -> None:
        """Note for whom a step's end matters."""
        node, stream = state.node, state.node_stream
        state.node = state.node_stream = None
        if node is None or stream is None:
            return
        followers = [follower for follower, _ in node.next_functions if follower is not None]
        if not followers:
            self._leaves[stream] = None
        if self._streams.traced or not followers:
            return
        recorded = self._recorder.emit("record", stream, None)
        with self._lock:
            for follower in followers:
                self._expected.setdefault(follower, []).append((stream, recorded))

    def note_operation(
        self,
        state: ThreadState,
        stream: StreamKey,
        source: Source | None,
        accesses: Sequence[Access],
        storages: Storages,
    ) -> None:
        """Learn of an operation that is about to be launched."""
        own = state.node_stream
        if own is None:
            return
        if stream != own and source is not None and not source[1] and not self._streams.traced:
            # Autograd itself, on another stream than the step's: it adds up the gradients of
            # several steps where the next one will use them.
            self._recorder.edge(own, stream)
            for follower, _ in state.node.next_functions:
                if follower is not None:
                    self._wait(stream, self._expected.get(follower, ()))
        if stream == own or (source is not None and not source[1]):
            for number, *_ in accesses:
                owner = storages.owner_of_gradient(number)
                if owner is not None and owner != stream:
                    self._recorder.emit("record_stream", stream, number)
