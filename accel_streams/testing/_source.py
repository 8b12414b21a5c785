"""Write a program as Python: what is printed is what runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from accel_streams._backend import Backend
from accel_streams.testing._program import (
    Add,
    Allocate,
    Collective,
    Copy,
    Fill,
    Finish,
    Free,
    Multiply,
    Operation,
    Program,
    ReadBack,
    Record,
    RecordStream,
    SyncDevice,
    SyncEvent,
    SyncStream,
    Wait,
)

__all__ = ["as_function", "run", "script"]

_FUNCTION = '''\
def program(backend):
    """Return what the host has read, and what is in the buffers at the end."""
    streams = [backend.default_stream(), *(backend.new_stream() for _ in range({more}))]
    device = backend.device_type
    events, works, seen = {{}}, {{}}, []
{buffers}
    backend.synchronize()
{body}
    backend.synchronize()
    return seen, [None if buffer is None else buffer.tolist() for buffer in buffers]
'''

_RECORDED = '''\
def recorded(backend, stream):
    """Return a new event that stands for what `stream` has been given."""
    event = backend.new_event()
    backend.record(event, stream)
    return event


'''

_THREADS = """\
from concurrent.futures import ThreadPoolExecutor

threads = [ThreadPoolExecutor(1) for _ in range({threads})]


"""


_EMPTY = "torch.empty({size}, dtype=torch.int64, device=device)"


def script(program: Program, backend: str) -> str:
    """Return the whole program; `backend` is ``module:class``."""
    module, _, name = backend.partition(":")
    gap = "" if _threads(program) > 1 else "\n\n"
    return (
        f"import torch\n\nfrom {module} import {name}\n{gap}{_definition(program)}\n\n"
        f"print(program({name}()))\n"
    )


def as_function(program: Program, backend: Backend) -> Callable[[], Any]:
    """Return a function that runs the program on `backend`, anew with each call.

    It returns what the host has read, and the contents of the buffers at the end.
    """
    import torch

    scope: dict[str, Any] = {"torch": torch}
    exec(compile(_definition(program), "<program>", "exec"), scope)
    function = scope["program"]
    return lambda: function(backend)


def run(program: Program, backend: Backend) -> Any:
    """Run the program once on `backend`."""
    return as_function(program, backend)()


def _definition(program: Program) -> str:
    performed = program.performed
    body = [line for operation in performed for line in _statements(operation, program.size)]
    made = [
        f"torch.full(({program.size},), {index + 1}, dtype=torch.int64, device=device)"
        for index in range(program.buffers)
    ]
    buffers = ["    buffers = [", *(f"        {one}," for one in made), "    ]"]
    collectives = any(isinstance(operation, Collective) for operation in performed)
    if collectives:
        buffers.insert(0, "    communicator = backend.new_stream()")
    text = _FUNCTION.format(
        more=program.streams - 1,
        buffers="\n".join(buffers),
        body="\n".join(f"    {line}" for line in body) or "    pass",
    )
    if collectives or any(isinstance(operation, SyncStream) for operation in performed):
        text = _RECORDED + text
    if _threads(program) > 1:
        text = _THREADS.format(threads=_threads(program)) + text
    return text


def _threads(program: Program) -> int:
    return 1 + max((operation.thread for operation in program.performed), default=0)


def _statements(operation: Operation, size: int) -> Iterator[str]:
    """Give the lines of one operation; another thread gets them as a function."""
    lines = list(_lines(operation, size))
    if operation.thread == 0:
        yield from lines
        return
    yield "def step():"
    yield from (f"    {line}" for line in lines)
    yield f"threads[{operation.thread}].submit(step).result()"


def _lines(operation: Operation, size: int) -> Iterator[str]:
    match operation:
        case Fill(stream, buffer, lo, hi, value):
            yield from _on(stream, f"buffers[{buffer}][{lo}:{hi}].fill_({value})")
        case Add(stream, buffer, lo, hi, value):
            yield from _on(stream, f"buffers[{buffer}][{lo}:{hi}].add_({value})")
        case Multiply(stream, buffer, lo, hi, value):
            yield from _on(stream, f"buffers[{buffer}][{lo}:{hi}].mul_({value})")
        case Copy(stream, buffer, lo, hi, source):
            part = f"[{lo}:{hi}]"
            yield from _on(stream, f"buffers[{buffer}]{part}.copy_(buffers[{source}]{part})")
        case Collective(stream, buffer, lo, hi, work):
            yield f"backend.wait(communicator, recorded(backend, streams[{stream}]))"
            yield "with backend.use_stream(communicator):"
            yield f"    buffers[{buffer}][{lo}:{hi}].mul_(2)"
            yield f"works[{work}] = recorded(backend, communicator)"
        case Finish(stream, work):
            yield f"if {work} in works:"
            yield f"    backend.wait(streams[{stream}], works[{work}])"
        case Record(stream, event):
            yield f"events.setdefault({event}, backend.new_event())"
            yield f"backend.record(events[{event}], streams[{stream}])"
        case Wait(stream, event):
            yield f"if {event} in events:"
            yield f"    backend.wait(streams[{stream}], events[{event}])"
        case Allocate(stream, buffer):
            yield f"buffers[{buffer}] = None"
            yield from _on(stream, f"buffers[{buffer}] = {_EMPTY.format(size=size)}")
        case Free(buffer):
            yield f"buffers[{buffer}] = None"
        case RecordStream(buffer, stream):
            yield f"backend.keep_alive(buffers[{buffer}], streams[{stream}])"
        case ReadBack(stream, buffer):
            yield from _on(stream, f"seen.append(buffers[{buffer}].tolist())")
        case SyncStream(stream):
            yield f"backend.synchronize(recorded(backend, streams[{stream}]))"
        case SyncEvent(event):
            yield f"if {event} in events:"
            yield f"    backend.synchronize(events[{event}])"
        case SyncDevice():
            yield "backend.synchronize()"


def _on(stream: int, statement: str) -> Iterator[str]:
    yield f"with backend.use_stream(streams[{stream}]):"
    yield f"    {statement}"
