"""Recording what is submitted: one trace of the device, for everybody who wants it.

``start_trace`` is for the one who records; any number of others may ``listen`` meanwhile.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from accel_streams import _handover
from accel_streams.fake._extension import extension

__all__ = ["flush_trace", "listen", "start_trace", "stop_trace"]

Records: TypeAlias = list[tuple[Any, ...]]
Sink: TypeAlias = Callable[[Records], None]

# Records handed to a trace's sink at a time: enough to make the call's cost vanish, few enough to
# stay in the processor's cache (some 2 MB).
_SINK_RECORDS = 4096


class _Sharing:
    """Who gets the records. Its lock is held while they are handed out, so they come in order."""

    def __init__(self) -> None:
        # Reentrant: a sink may stop listening.
        self.lock = threading.RLock()
        self.recording = False
        self.sources = True
        self.brief = False
        self.sink: Sink | None = None
        # What was handed out while somebody records without a sink.
        self.kept: Records = []
        self.listeners: list[Sink] = []
        self.on = False

    @property
    def handing_out(self) -> bool:
        return self.sink is not None or bool(self.listeners)

    def deliver(self) -> None:
        """Give what has gathered to all who want it."""
        with self.lock:
            # Records make no cycles, and to look through them for some again and again takes
            # longer than to analyse them.
            paused = gc.isenabled()
            gc.disable()
            try:
                records: Records = extension().trace_take()
                if self.recording:
                    (self.sink or self.kept.extend)(records)
                for listener in list(self.listeners):
                    listener(records)
            finally:
                if paused:
                    gc.enable()

    def configure(self) -> None:
        """Have the device record for those who are there now."""
        module = extension()
        on = self.recording or bool(self.listeners)
        module.trace_sources(self.sources or bool(self.listeners))
        module.trace_sink(self.deliver if self.handing_out else None, _SINK_RECORDS)
        # Listeners look for races and need no more.
        module.trace_brief(self.brief or not self.recording)
        if on and not self.on:
            module.trace_enable(True)
            _handover.start(_threads)
            module.trace_backward(_handover.note_backward)
        elif self.on and not on:
            module.trace_backward(None)
            _handover.stop(_threads)
            module.trace_enable(False)
        self.on = on


class _Threads:
    """Notes the hand-overs between host threads in the trace."""

    def thread(self) -> int:
        return int(extension().host_thread())

    def released(self, token: int, thread: int) -> None:
        extension().trace_release(token, thread)

    def acquired(self, token: int) -> None:
        extension().trace_acquire(token)


_threads = _Threads()
_sharing = _Sharing()


def start_trace(*, sources: bool = True, brief: bool = False, sink: Sink | None = None) -> None:
    """Record what is submitted and what runs, from now on.

    Args:
        sources: Note for each operation the innermost line of Python outside torch.
        brief: Leave out what the search for races does not need: what runs, and when, and memory
            that one stream uses and that soon ends. For a sink that is an analyser; pictures need
            all.
        sink: Called with records as they gather, so that a long run needs no memory for them. It is
            called by one thread at a time, whichever queues work, with Python's collector of
            reference cycles paused.

    """
    with _sharing.lock:
        _sharing.recording = False
        if _sharing.listeners:
            _sharing.deliver()
        else:
            extension().trace_take()
        _sharing.recording, _sharing.sources, _sharing.sink = True, sources, sink
        _sharing.brief = brief
        _sharing.kept = []
        _sharing.configure()


def stop_trace() -> Records:
    """Stop recording and return the records.

    With a sink, hand it the rest and return an empty list.
    """
    module = extension()
    module.drain()
    with _sharing.lock:
        if _sharing.handing_out or _sharing.kept:
            _sharing.deliver()
            records = _sharing.kept
        else:
            records = module.trace_take()
        _sharing.recording, _sharing.sources, _sharing.sink = False, True, None
        _sharing.kept = []
        _sharing.configure()
    return records


def listen(sink: Sink) -> Callable[[], None]:
    """Have ``sink`` called with records from now on, whoever else records; return what ends that.

    It gets what the search for races needs (see ``brief`` of ``start_trace``), or more. It is
    called as ``start_trace`` calls its sink. Nothing that is queued has to run for it.
    """
    with _sharing.lock:
        if _sharing.handing_out or _sharing.recording:
            _sharing.deliver()  # To those before it.
        else:
            extension().trace_take()
        _sharing.listeners.append(sink)
        _sharing.configure()

    def stop() -> None:
        with _sharing.lock:
            # By identity: two listeners may be equal, such as bound methods of equal objects.
            left = [other for other in _sharing.listeners if other is not sink]
            if len(left) == len(_sharing.listeners):
                return
            _sharing.deliver()
            _sharing.listeners = left
            _sharing.configure()

    return stop


def flush_trace() -> None:
    """Hand over what has gathered for a sink or a listener, without waiting for more."""
    with _sharing.lock:
        if _sharing.handing_out:
            _sharing.deliver()
