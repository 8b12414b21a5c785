"""IDN: which stream is which, and which one is current."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from accel_streams.conformance._caller import Caller
from accel_streams.conformance._property import checks
from accel_streams.conformance._results import needs, premise, require

if TYPE_CHECKING:
    from accel_streams._backend import Stream, StreamId
    from accel_streams.conformance._bench import Bench

# As many streams as a pool would have that says nothing of its size.
_UNLIMITED = 64
_NO_DEVICE_TYPE = 77
_LIMIT_S = 5.0


@checks("IDN-01", "eq_hash")
def eq_hash(bench: Bench) -> None:
    """Objects for one stream are equal and have one hash; a stream equals nothing else."""
    a, b = bench.streams(2)
    with bench.on(a):
        first, again = bench.backend.current_stream(), bench.backend.current_stream()
    require(_id(bench, first) == _id(bench, again), "the current stream has changed its id")
    for other in (again, a):
        require(first == other, "two objects for one stream are unequal")
        require(not _unequal(first, other), "two objects for one stream are equal and unequal")
        require(hash(first) == hash(other), "two objects for one stream have two hashes")
    require(len({first, again, a}) == 1, "a set holds one stream more than once")
    strangers = [b, bench.backend.default_stream(bench.device(0))]
    if bench.device_count > 1:
        strangers.append(bench.backend.default_stream(bench.device(1)))
        require(strangers[1] != strangers[2], "the default streams of two devices are not unequal")
    for stranger in strangers:
        require(not _equal(first, stranger), "two streams are equal")
        require(_unequal(first, stranger), "two streams are neither equal nor unequal")
    for stranger in (None, 1, _id(bench, first).stream_id, "stream"):
        # Whether it is unequal as well is not asked: torch's own classes say no of None.
        require(not _equal(first, stranger), f"a stream equals {stranger!r}")
    for smaller, larger in ((first, b), (b, first)):
        # What torch's own classes answer is False; TypeError is as good.
        with suppress(TypeError):
            require(not smaller < larger, "one stream is less than another one")


@checks("IDN-02", "current")
def current(bench: Bench) -> None:
    """Inside a stream's context it is the current one, to whoever asks, and work goes to it."""
    a, b = bench.streams(2)
    for stream in (a, b, a):
        with bench.on(stream):
            _require_current(bench, stream, "inside its context")
            found = bench.backend.current_stream()
            require(found == stream, "the current stream does not equal the one that was entered")
            require(
                _raw(found) == _raw(stream), "the raw handles of one stream's two objects differ"
            )
    _require_work_lands(bench, a, a, "work inside a stream's context")


@checks("IDN-03", "default_stable")
def default_stable(bench: Bench) -> None:
    """A device's default stream is the same one inside any context and in any thread."""
    for index in range(min(bench.device_count, 2)):
        device = bench.device(index)

        def found(device: Any = device) -> StreamId:
            return _id(bench, bench.backend.default_stream(device))

        before = found()
        (a,) = bench.streams(1, index)
        with bench.on(a):
            require(found() == before, "inside a context, the default stream is another one")
            require(
                _in_thread(found) == before, "in another thread, the default stream is another one"
            )
        there = _in_thread(partial(_inside, bench, a, found))
        require(there == before, "in another thread's context the default stream is another one")
        require(found() == before, "after a context, the default stream is another one")


@checks("IDN-04", "default_distinct")
def default_distinct(bench: Bench) -> None:
    """No new stream is the default one, and two devices have two default streams."""
    defaults = set()
    for index in range(min(bench.device_count, 2)):
        device = bench.device(index)
        default = _id(bench, bench.backend.default_stream(device))
        require(default.device_index == index, "a default stream is one of another device")
        require(default not in defaults, "two devices have one default stream")
        defaults.add(default)
        for _ in range(4):
            new = _id(bench, bench.backend.new_stream(device))
            require(new != default, "a new stream is the default stream")
            require(new.device_index == index, "a new stream is one of another device")


@checks("IDN-05", "restore")
def restore(bench: Bench) -> None:
    """After a context the former stream and device are back: also after an error, or nested."""
    a, b = bench.streams(2)
    default = bench.backend.current_stream()
    device = bench.module.current_device()

    def back(expected: Stream, when: str) -> None:
        _require_current(bench, expected, when)
        require(bench.module.current_device() == device, f"the device is another one {when}")

    with bench.on(a):
        with bench.on(b):
            with bench.on(a):
                back(a, "inside a context for the second time")
            back(b, "after an inner context")
        back(a, "after a context in between")
        with bench.on(a):
            pass
        back(a, "after a context of the stream that was current")
    back(default, "after a context")

    caught = False
    try:
        with bench.on(a), bench.on(b):
            raise _Expected
    except _Expected:
        caught = True
    require(caught, "a context swallows an exception")
    back(default, "after an exception")

    context = bench.on(a)
    with context:
        pass
    # Not every such object may be used again; one that may has to do it right.
    with suppress(RuntimeError, AttributeError, TypeError), bench.on(b):
        with context:
            back(a, "inside a context object used again")
        back(b, "after a context object used again")
    back(default, "after all contexts")


class _Expected(Exception):
    """Raised inside a context, and to come out of it."""


@checks("IDN-06", "cross_device_ctx", devices=2)
def cross_device_ctx(bench: Bench) -> None:
    """Entering a stream of another device switches the device, and only that one's stream."""
    (a,), (b,) = bench.streams(1, 0), bench.streams(1, 1)
    cell = bench.cell(device=1)
    backend = bench.backend
    with bench.on_device(0), bench.on(a):
        other = _id(bench, backend.current_stream(bench.device(1)))
        with bench.on(b):
            require(bench.module.current_device() == 1, "the stream's device is not current")
            _require_current(bench, b, "inside the context of a stream of another device")
            first = _id(bench, backend.current_stream(bench.device(0)))
            require(first == _id(bench, a), "the other device's current stream has changed")
            cell.fill_(1.0)
        require(bench.module.current_device() == 0, "the former device is not current again")
        _require_current(bench, a, "after the context of a stream of another device")
        after = _id(bench, backend.current_stream(bench.device(1)))
        require(after == other, "the other device's former stream is not current again")
    require(bench.read(b, cell) == 1.0, "work on the other device's stream had no effect")


@checks("IDN-07", "none_ctx")
def none_ctx(bench: Bench) -> None:
    """``torch.<device>.stream(None)`` changes nothing."""
    context = getattr(bench.module, "stream", None)
    needs(context is not None, "torch has no function stream() for this device")
    assert context is not None
    (a,) = bench.streams(1)
    with bench.on(a):
        device = bench.module.current_device()
        with context(None):
            _require_current(bench, a, "inside stream(None)")
            require(bench.module.current_device() == device, "stream(None) changes the device")
        _require_current(bench, a, "after stream(None)")


@checks("IDN-08", "thread_local")
def thread_local(bench: Bench) -> None:
    """A new thread starts on the default stream; what is current there is current only there."""
    a, b = bench.streams(2)
    default = bench.backend.default_stream(bench.device(0))
    entered, seen = threading.Event(), threading.Event()

    def other() -> None:
        _require_current(bench, default, "in a new thread")
        with bench.on(b):
            _require_current(bench, b, "inside its context in another thread")
            entered.set()
            premise(seen.wait(_LIMIT_S), "the other thread was not heard of")
        _require_current(bench, default, "after a context in another thread")

    with bench.on_device(0), bench.on(a):
        caller = Caller(other)
        try:
            while not entered.wait(0.01) and not caller.returned():
                pass
            if caller.returned():
                caller.result()
            _require_current(bench, a, "while another thread is in another stream's context")
        finally:
            seen.set()
        _finish(caller)
        _require_current(bench, a, "after another thread has used another stream")


@checks("IDN-09", "pool")
def pool(bench: Bench) -> None:
    """As many new streams in a row are distinct as capabilities.pool_size says, or any number."""
    size = bench.backend.capabilities.pool_size
    count = _UNLIMITED if size is None else size
    made = [_id(bench, bench.backend.new_stream(bench.device(0))) for _ in range(count)]
    distinct = len(set(made))
    stated = "None, which stands for no limit" if size is None else str(size)
    require(
        distinct == count,
        f"of {count} new streams {distinct} are distinct, and capabilities.pool_size is {stated}",
    )


@checks("IDN-10", "roundtrip")
def roundtrip(bench: Bench) -> None:
    """(stream_id, device_index, device_type) make an equal, usable stream; nonsense is refused."""
    a, b = bench.streams(2)
    for stream in (a, b):
        triple = (stream.stream_id, stream.device_index, stream.device_type)
        rebuilt = _rebuild(stream, *triple)
        require(rebuilt == stream, "a stream made of another one's three numbers is unequal to it")
        require(hash(rebuilt) == hash(stream), "a rebuilt stream has another hash")
        require(_id(bench, rebuilt) == _id(bench, stream), "a rebuilt stream has another id")
        _require_work_lands(bench, stream, rebuilt, "work on a rebuilt stream")
    stream_id, _, device_type = a.stream_id, a.device_index, a.device_type
    for index, kind, what in (
        (0, _NO_DEVICE_TYPE, "of a device type that does not exist"),
        (bench.device_count, device_type, "of a device that does not exist"),
    ):
        require(
            _is_refused(bench, a, stream_id, index, kind),
            f"a stream {what} can be made and entered",
        )


@checks("IDN-11", "priority")
def priority(bench: Bench) -> None:
    """Every priority of the device's range reads back, and none weakens the order of events."""
    made = [bench.backend.new_stream(bench.device(0), priority=value) for value in (0, -1)]
    for stream, other in (made, made[::-1]):
        source, target = bench.cell(), bench.cell()
        with bench.gate_if_any(stream) as gate:
            bench.write(stream, source, 1.0)
            bench.backend.wait(other, bench.marker(stream))
            bench.copy(other, source, target)
            if gate is not None:
                bench.stays_pending(bench.marker(other), gate, "a stream of another priority")
        require(bench.read(other, target) == 1.0, "a priority has overtaken a wait for an event")
    stream_class = getattr(bench.module, "Stream", None)
    limits = getattr(stream_class, "priority_range", None)
    needs(limits is not None, "the device does not tell the range of its streams' priorities")
    assert limits is not None
    least, greatest = limits()
    require(least >= greatest, f"the range goes from {least} to {greatest}: lower runs first")
    for value in range(greatest, least + 1):
        found = bench.backend.new_stream(bench.device(0), priority=value).priority
        require(found == value, f"a stream of priority {value} says that it has {found}")
    for value in (least + 1, greatest - 1):
        # To take the nearest one or to refuse are both right.
        with suppress(RuntimeError, ValueError):
            found = bench.backend.new_stream(bench.device(0), priority=value).priority
            require(greatest <= found <= least, f"priority {value} gives {found}, out of the range")


@checks("IDN-12", "external")
def external(bench: Bench) -> None:
    """A wrapped foreign stream equals its other wrapper, can be current, and outlives both."""
    wrap = getattr(bench.module, "ExternalStream", None)
    (a,) = bench.streams(1)
    needs(wrap is not None, "torch has no ExternalStream for this device")
    assert wrap is not None
    handle = _raw(a)
    needs(handle is not None, "a stream of this device doesn't tell its raw handle")
    first, second = wrap(handle), wrap(handle)
    require(first == second, "two wrappers of one foreign stream are unequal")
    require(hash(first) == hash(second), "two wrappers of one foreign stream have two hashes")
    with bench.on(first):
        found = bench.backend.current_stream()
        require(found == second, "a wrapped foreign stream does not become current")
    _require_work_lands(bench, a, first, "work on a wrapped foreign stream")
    cell = bench.cell()
    del first, second, found
    bench.write(a, cell, 2.0)
    require(bench.read(a, cell) == 2.0, "a foreign stream was lost with its wrapper")
    with suppress(Exception):  # Whether it can tell; it must only come back.
        _in_thread(lambda: wrap(handle).priority)


@checks("IDN-13", "generic")
def generic(bench: Bench) -> None:
    """torch.accelerator and the backend mean the same current stream, or a TypeError says no."""
    import torch

    accelerator = getattr(torch, "accelerator", None)
    needs(accelerator is not None, "this torch has no torch.accelerator")
    a, b = bench.streams(2)
    with bench.on_device(0):
        with bench.on(a):
            theirs = torch.accelerator.current_stream()
            found = (theirs.device.type, theirs.device_index, theirs.stream_id)
            require(found == tuple(_id(bench, a)), "torch.accelerator has another current stream")
        try:
            with bench.on(b), bench.on(theirs):
                _require_current(bench, a, "inside the context of torch's own object for it")
            _require_work_lands(bench, a, theirs, "work on torch's own object for a stream")
            bench.backend.wait(theirs, bench.marker(b))
        except TypeError:
            return  # To reject what is not the backend's own is as good.


# Helpers.


def _equal(first: object, second: object) -> bool:
    return bool(first == second)


def _unequal(first: object, second: object) -> bool:
    return bool(first != second)


def _id(bench: Bench, stream: Stream) -> StreamId:
    return bench.backend.stream_id(stream)


def _require_current(bench: Bench, expected: Stream, when: str) -> None:
    found = _id(bench, bench.backend.current_stream())
    require(
        found == _id(bench, expected),
        f"{when}, the current stream is {tuple(found)}, expected {tuple(_id(bench, expected))}",
    )


def _require_work_lands(bench: Bench, stream: Stream, entered: Stream, what: str) -> None:
    """Raise Broken unless what is done inside the context of ``entered`` is done on ``stream``."""
    cell = bench.cell()
    (free,) = bench.streams(1)
    with bench.gate_if_any(stream) as gate:
        bench.write(entered, cell, 1.0)
        if gate is not None:
            bench.stays_pending(bench.marker(entered), gate, what)
            seen = bench.read(free, cell)
            premise(gate.closed, f"the gate opened before {what} could be seen to wait")
            require(seen == 0.0, f"{what} was done while that stream was held")
    require(bench.read(entered, cell) == 1.0, f"{what} had no effect")


def _raw(stream: Stream) -> Any:
    """Return the handle below torch, None where a stream doesn't tell it."""
    device_type = getattr(getattr(stream, "device", None), "type", "")
    for name in (f"{device_type}_stream", "native_handle"):
        with suppress(Exception):
            return getattr(stream, name)
    return None


def _rebuild(like: Stream, stream_id: int, device_index: int, device_type: int) -> Stream:
    import torch

    triple: dict[str, Any] = {
        "stream_id": stream_id,
        "device_index": device_index,
        "device_type": device_type,
    }
    stream_class: Any = type(like)
    try:
        return stream_class(**triple)
    except TypeError:  # A class of the vendor's own; torch's is the one that has to take them.
        return torch.Stream(**triple)


def _is_refused(bench: Bench, like: Stream, stream_id: int, index: int, kind: int) -> bool:
    # torch's own class takes every index; then the first use has to tell.
    try:
        with bench.on(_rebuild(like, stream_id, index, kind)):
            return False
    except Exception:
        return True


def _inside(bench: Bench, stream: Stream, ask: Callable[[], StreamId]) -> StreamId:
    with bench.on(stream):
        return ask()


def _in_thread(call: Callable[[], Any]) -> Any:
    values: list[Any] = []
    caller = Caller(lambda: values.append(call()))
    _finish(caller)
    return values[0]


def _finish(caller: Caller) -> None:
    require(caller.wait(_LIMIT_S), f"a thread did not return within {_LIMIT_S:.0f} s")
    caller.result()
