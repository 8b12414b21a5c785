"""AGD: what ZeRO relies on when it hooks gradients, and torch's engine provides.

A forward pass on side streams, a backward pass called from another stream, and a gate that is
closed meanwhile: what is not ordered after the backward's work shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_streams.conformance._property import checks
from accel_streams.conformance._results import needs, premise, require

if TYPE_CHECKING:
    import torch

    from accel_streams._backend import Stream, StreamId
    from accel_streams.conformance._bench import Bench


@checks("AGD-01", "backward_stream")
def backward_stream(bench: Bench) -> None:
    """An operation's backward runs on the stream of its forward, which hooks see as current."""
    a, b, ambient = bench.streams(3)
    seen: dict[str, StreamId] = {}

    def note(name: str) -> Callable[[Any], None]:
        def hook(_: Any) -> None:
            seen[name] = bench.backend.stream_id(bench.backend.current_stream())

        return hook

    outputs = {}
    with bench.gate_if_any(a) as gate:
        for name, stream in (("first", a), ("second", b)):
            weight = _weight(bench, stream)
            with bench.on(stream):
                outputs[name] = weight * 3.0
            _hook(outputs[name], note(name))
        _join(bench, ambient, (b,) if gate is not None else (a, b))
        with bench.on(ambient):
            _backward(*outputs.values())
        if gate is not None:
            bench.stays_pending(bench.marker(a), gate, "a backward whose forward's stream is held")
    for name, stream in (("first", a), ("second", b)):
        require(name in seen, "a gradient hook was not called")
        expected = bench.backend.stream_id(stream)
        require(
            seen[name] == expected,
            f"a gradient hook sees the current stream {tuple(seen[name])}, expected that of the "
            f"forward, {tuple(expected)}",
        )


@checks("AGD-02", "leaf_sync", gate=True)
def leaf_sync(bench: Bench) -> None:
    """After backward() the caller's stream is ordered after every write of a leaf's gradient."""
    import torch

    a, ambient = bench.streams(2)
    target = bench.cell()
    weight = _weight(bench, a)
    with bench.on(a):
        output = weight * 3.0
    _join(bench, ambient, (a,))
    with bench.gate(a) as gate:
        with bench.on(ambient):
            backward: Callable[..., None] = output.backward
            backward(torch.ones_like(output))
            target.copy_(_gradient(weight))
        bench.stays_pending(bench.marker(ambient), gate, "the caller's stream after backward()")
        gate.release()
    require(bench.read(ambient, target) == 3.0, "a gradient was read before it was complete")


@checks("AGD-03", "hook_producer", gate=True)
def hook_producer(bench: Bench) -> None:
    """What a gradient hook puts on its current stream comes after the gradient's producer."""
    a, b, ambient = bench.streams(3)
    before, after = bench.cell(), bench.cell()
    weight = _weight(bench, b)
    events = []

    def copy_to(target: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            stream = bench.backend.current_stream()
            bench.copy(stream, gradient, target)
            events.append(bench.marker(stream))

        return hook

    with bench.on(b):
        middle = weight * 3.0
    bench.backend.wait(a, bench.marker(b))
    with bench.on(a):
        output = middle * 5.0
    _join(bench, ambient, (a, b))
    _hook(middle, copy_to(before))
    _hook(weight, copy_to(after))
    with bench.gate(a) as gate:
        with bench.on(ambient):
            _backward(output)
        require(len(events) == 2, f"of two gradient hooks {len(events)} were called")
        for event, what in zip(events, ("in between", "of a leaf"), strict=True):
            bench.stays_pending(event, gate, f"what a hook has put behind a gradient {what}")
        gate.release()
    for cell, value in ((before, 5.0), (after, 15.0)):
        require(bench.read(ambient, cell) == value, "a hook has read a gradient that was not there")


@checks("AGD-04", "multi_producer", gate=True)
def multi_producer(bench: Bench) -> None:
    """A reduction that waits for all streams its hooks ran on reads complete gradients.

    The negative control comes first: one that waits only for the last hook's stream must be seen to
    read what is not there yet. Where that can't be seen, waiting for all proves nothing.
    """
    _, stale = _reduce(bench, wait_for_all=False)
    premise(stale, "a reduction that doesn't wait for every producer was not seen to go wrong")
    values, early = _reduce(bench, wait_for_all=True)
    require(not early, "a reduction did not wait for the producers of what it reads")
    require(values == [3.0, 5.0], f"a reduction has read {values}, expected [3.0, 5.0]")


def _reduce(bench: Bench, *, wait_for_all: bool) -> tuple[list[float], bool]:
    """Copy the gradients of two streams' hooks into a bucket, and reduce that on a third stream.

    Return what the reduction has read, and whether it was done while one of the two was held.
    """
    a, b, reducer, ambient = bench.streams(4)
    bucket, result = [bench.cell(), bench.cell()], [bench.cell(), bench.cell()]
    producers: dict[StreamId, Stream] = {}

    def hook_into(part: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            stream = bench.backend.current_stream()
            bench.copy(stream, gradient, part)
            producers[bench.backend.stream_id(stream)] = stream

        return hook

    outputs = []
    for stream, part, factor in zip((a, b), bucket, (3.0, 5.0), strict=True):
        weight = _weight(bench, stream)
        with bench.on(stream):
            outputs.append(weight * factor)
        _hook(weight, hook_into(part))
    _join(bench, ambient, (a, b))
    with bench.gate(a) as gate:
        with bench.on(ambient):
            _backward(*outputs)
        require(len(producers) == 2, f"the hooks of two streams ran on {len(producers)}")
        for stream in list(producers.values()) if wait_for_all else [b]:
            bench.backend.wait(reducer, bench.marker(stream))
        for part, read in zip(bucket, result, strict=True):
            bench.copy(reducer, part, read)
        done = bench.marker(reducer)
        if wait_for_all:
            bench.stays_pending(done, gate, "a reduction that waits for every producer")
            early = False
        else:
            bench.completes(done, gate, "a reduction that waits for one free producer")
            early = gate.closed
        gate.release()
    values = [bench.read(reducer, cell) for cell in result]
    if wait_for_all:
        return values, early
    return values, early and values[0] != 3.0


# Helpers.


def _weight(bench: Bench, stream: Stream) -> torch.Tensor:
    """Return a leaf whose gradient ``stream`` accumulates; nothing is pending on it."""
    weight = bench.cell(1.0).detach()
    with bench.on(stream):
        try:
            return weight.requires_grad_()
        except RuntimeError as exc:
            needs(False, f"autograd doesn't work here: {exc}")
            raise


def _hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def _join(bench: Bench, stream: Stream, others: tuple[Stream, ...]) -> None:
    for other in others:
        bench.backend.wait(stream, bench.marker(other))


def _backward(*outputs: torch.Tensor) -> None:
    """Begin one backward pass on the current stream, with ones."""
    import torch

    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    gradient = weight.grad
    require(gradient is not None, "backward() gives a leaf no gradient")
    assert gradient is not None
    return gradient
