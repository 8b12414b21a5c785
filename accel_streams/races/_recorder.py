"""Numbers the records of a trace that is made in Python, and hands them over."""

from __future__ import annotations

import _thread
import itertools
import operator
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any, Final

import torch

from accel_streams.races._records import Access, Record, Source, StreamKey
from accel_streams.races._source import Sink

__all__ = ["Pending", "Recorder", "ThreadState", "place"]

_TORCH: Final = f"{Path(torch.__file__).parent}/"
_HERE: Final = f"{Path(__file__).parent}/"

# By the file of a code object: whether its frames are not the program's. Strings keep their hash,
# code objects compute it every time.
_foreign: dict[str, bool] = {}
_sources: dict[tuple[int, int], Source] = {}
_kept_code: dict[int, Any] = {}


class Pending:
    """An operation under way: what it reads and writes is known, but not yet recorded.

    It is recorded when its call returns, with what the call has allocated; before that if the call
    itself records an event on the stream or waits for it, because those cover it.
    """

    __slots__ = ("accesses", "collective", "name", "source", "stream")

    def __init__(
        self, name: str, accesses: list[Access], source: Source | None, stream: StreamKey | None
    ) -> None:
        self.name = name
        self.accesses = accesses
        self.source = source
        self.stream = stream
        # The stream on which a collective was issued, which may run on another one.
        self.collective: StreamKey | None = None


class ThreadState:
    """What is known of one host thread."""

    __slots__ = ("index", "last_collective", "node", "node_stream", "pending")

    def __init__(self, index: int) -> None:
        self.index = index
        self.pending: Pending | None = None
        self.last_collective: Any = None
        # The step of the backward pass that runs on the thread, and the stream it began on.
        self.node: Any = None
        self.node_stream: StreamKey | None = None


class Recorder:
    """Makes records in the order of submission.

    ``chunk`` is after how many of them `deliver_if_full` hands them over.
    """

    def __init__(self, sink: Sink, chunk: int) -> None:
        self.sink = sink
        self.chunk = chunk
        self.buffer: list[Record] = []
        self.numbers = itertools.count(1)
        # Held between the taking of a number and its record's joining the others. Reentrant, as a
        # garbage collection may run in between, and with it anything. Not from threading, whose
        # locks are watched: see _handover.
        self.lock = _thread.RLock()
        self._delivering = _thread.RLock()
        # What has died. Not recorded at once: memory may be freed anywhere, also under the lock.
        self.dead: deque[tuple[StreamKey | None, int]] = deque()
        # Freed, and not yet handed out again, by the stream that owns it.
        self._free: dict[StreamKey, list[int]] = {}
        self.local = threading.local()
        self._threads = itertools.count()

    @property
    def state(self) -> ThreadState:
        """The calling thread's state."""
        try:
            state: ThreadState = self.local.state
        except AttributeError:
            state = self.local.state = ThreadState(next(self._threads))
        return state

    def emit(self, kind: str, *fields: Any) -> int:
        """Record something that the calling thread does; return its number."""
        thread = self.state.index
        self.bury()
        with self.lock:
            seq = next(self.numbers)
            self.buffer.append((kind, seq, thread, *fields))
        return seq

    def bury(self) -> None:
        """Record the frees so far."""
        dead = self.dead
        if not dead:
            return
        thread = self.state.index
        with self.lock:
            self._note_frees(thread)

    def _note_frees(self, thread: int) -> None:
        # Under the lock.
        while self.dead:
            stream, block = self.dead.popleft()
            if stream is not None:
                self.buffer.append(("free", next(self.numbers), thread, stream, block))
                self._free.setdefault(stream, []).append(block)

    def _note_reuse(self, thread: int, stream: StreamKey) -> None:
        # Under the lock.
        for block in self._free.pop(stream, ()):
            self.buffer.append(("reuse", next(self.numbers), thread, stream, block))

    def hand_out(self, stream: StreamKey) -> None:
        """Record that memory is allocated on a stream: what is free there may be used for it.

        torch's allocators hand a block out to its own stream without waiting for any other one,
        except for those that record_stream has named.
        """
        self.bury()
        if stream in self._free:
            thread = self.state.index
            with self.lock:
                self._note_reuse(thread, stream)

    def allocate(
        self, state: ThreadState, stream: StreamKey, block: int, nbytes: int, source: Source | None
    ) -> None:
        """Record that the calling thread has been given a block: `hand_out` and `emit` in one."""
        thread = state.index
        with self.lock:
            if self.dead:
                self._note_frees(thread)
            if stream in self._free:
                self._note_reuse(thread, stream)
            seq = next(self.numbers)
            self.buffer.append(("alloc", seq, thread, stream, block, nbytes, source))

    def launch(self, pending: Pending, stream: StreamKey) -> None:
        """Record an operation's launch."""
        self.emit("launch", stream, pending.name, tuple(pending.accesses), pending.source)

    def launch_pending(self, state: ThreadState) -> None:
        """Record the operation under way now, because what comes next covers it."""
        pending = state.pending
        if pending is not None and pending.stream is not None:
            state.pending = None
            self.launch(pending, pending.stream)

    def edge(self, first: StreamKey, second: StreamKey, source: Source | None = None) -> None:
        """Record that one stream waits for all that another one was given."""
        if first != second:
            recorded = self.emit("record", first, source)
            self.emit("wait", second, recorded, source)
            self.emit("drop", recorded)

    def deliver(self) -> None:
        """Hand over what has gathered. What the sink raises is the caller's."""
        self.bury()
        with self._delivering:
            with self.lock:
                records, self.buffer = self.buffer, []
            if records:
                # Out of order only where a garbage collection came in between.
                records.sort(key=_number)
                self.sink(records)

    # What the hand-overs between host threads are told to; see _handover.Listener.

    def thread(self) -> int:
        """Return the number of the calling thread."""
        return self.state.index

    def released(self, token: int, thread: int) -> None:
        """Record that a thread's knowledge can be taken over."""
        with self.lock:
            self.buffer.append(("release", next(self.numbers), thread, token))

    def acquired(self, token: int) -> None:
        """Record that the calling thread has taken over another one's knowledge."""
        thread = self.state.index
        with self.lock:
            self.buffer.append(("acquire", next(self.numbers), thread, token))

    def deliver_if_full(self) -> None:
        """Hand over what has gathered if it is enough."""
        if len(self.buffer) >= self.chunk:
            self.deliver()


_number = operator.itemgetter(1)


def place() -> Source | None:
    """Return the innermost line of Python outside torch, else the step of the backward pass."""
    frame: Any = sys._getframe(2)  # The caller is one of us.
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        foreign = _foreign.get(file)
        if foreign is None:
            foreign = _foreign[file] = file.startswith((_TORCH, _HERE, "<"))
        if not foreign:
            key = (id(code), frame.f_lasti)
            source = _sources.get(key)
            if source is None:
                _kept_code[id(code)] = code  # So that its identity is not used again.
                source = _sources[key] = (file, frame.f_lineno, code.co_name)
            return source
        frame = frame.f_back
    node = torch._C._current_autograd_node()
    return None if node is None else ("autograd", 0, node.name())
