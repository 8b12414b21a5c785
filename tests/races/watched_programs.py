# mypy: disable-error-code="no-untyped-call"
# torch leaves some of its methods untyped.
"""Small programs for any device with streams, each with a fault that can be planted.

Each is run with and without the fault. The row of the design's table that it stands for is in its
name: what PyTorch's CUDA sanitizer misses, or takes for a race.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accel_streams.races import kernel


@dataclass(frozen=True)
class Device:
    """A kind of device: its type and its module, ``torch.<type>``."""

    type: str
    module: Any

    def zeros(self, *size: int, index: int = 0) -> torch.Tensor:
        return torch.zeros(*size, device=f"{self.type}:{index}")

    def stream(self, index: int = 0) -> Any:
        return self.module.Stream(device=f"{self.type}:{index}")

    def current(self, index: int = 0) -> Any:
        return self.module.current_stream(f"{self.type}:{index}")


@dataclass(frozen=True)
class Case:
    """A program, and the kinds of race that it has with the fault; without it there is none."""

    name: str
    program: Callable[[Device, bool], None]
    kinds: tuple[str, ...]
    devices: int = 1


def read_before_written(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    x.add_(1)
    if not fault:
        side.wait_stream(device.current())
    with device.module.stream(side):
        x.sum()
    device.module.synchronize()


def overwritten_while_read(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    with device.module.stream(side):
        y = x * 2
    event = side.record_event()
    if not fault:
        device.current().wait_event(event)
    x.add_(1)
    device.module.synchronize()
    del y


def event_recorded_too_early(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    event = device.module.Event()
    if fault:
        event.record(device.current())
    x.add_(1)
    if not fault:
        event.record(device.current())
    event.wait(side)
    with device.module.stream(side):
        x.sum()
    device.module.synchronize()


def views_at_other_offsets(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    x[:32].add_(1)
    with device.module.stream(side):
        # Keyed by the address where they begin, these would never meet.
        x[31 if fault else 32 :].add_(1)
    device.module.synchronize()


def interleaved_columns(device: Device, fault: bool) -> None:
    x, side = device.zeros(16, 4), device.stream()
    side.wait_stream(device.current())
    x[:, 0].add_(1)
    with device.module.stream(side):
        # One range from the first to the last byte of each would overlap.
        x[:, 0 if fault else 1].add_(1)
    device.module.synchronize()


def freed_while_used(device: Device, fault: bool) -> None:
    side = device.stream()
    x, total = torch.ones(4096, device=device.type), device.zeros(4096)
    side.wait_stream(device.current())
    with device.module.stream(side):
        total.add_(x)
    if not fault:
        x.record_stream(side)
    del x
    again = torch.full((4096,), 7.0, device=device.type)
    device.module.synchronize()
    del again


def other_device_synchronized(device: Device, fault: bool) -> None:
    # The default streams of both devices have the same id.
    x, side = device.zeros(64, index=0), device.stream(0)
    side.wait_stream(device.current(0))
    device.zeros(64, index=1).add_(1)
    x.add_(1)
    device.module.synchronize(1 if fault else 0)
    with device.module.stream(side):
        x.sum()
    device.module.synchronize(0)


def in_another_thread(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    x.add_(1)
    if not fault:
        side.wait_stream(device.current())

    def work() -> None:
        with device.module.stream(side):
            x.sum()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    device.module.synchronize()


def another_thread_has_waited(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    x.add_(1)
    thread = threading.Thread(target=device.module.synchronize)
    thread.start()
    if fault:
        # Not its join, by which this thread would come to know.
        deadline = time.monotonic() + 30
        while thread in threading.enumerate():
            assert time.monotonic() < deadline
    else:
        thread.join()
    with device.module.stream(side):
        x.sum()
    thread.join()
    device.module.synchronize()


def host_has_read_it(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    with device.module.stream(side):
        x.add_(1)
        total = x.sum()
        if not fault:
            total.item()
    x.mul_(2)
    device.module.synchronize()


def host_has_copied_it(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    with device.module.stream(side):
        x.add_(1)
        if not fault:
            x.cpu()
    x.mul_(2)
    device.module.synchronize()


def host_needs_the_shape(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    with device.module.stream(side):
        x.add_(1)
        if not fault:
            x.nonzero()
    x.mul_(2)
    device.module.synchronize()


def host_has_polled(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    with device.module.stream(side):
        x.add_(1)
    event = side.record_event()
    if not fault:
        deadline = time.monotonic() + 30
        while not event.query():
            assert time.monotonic() < deadline
    x.mul_(2)
    device.module.synchronize()


def gradient_used_too_early(device: Device, fault: bool) -> None:
    # A leaf's gradient is handed over on the stream where its AccumulateGrad node was made.
    side = device.stream()
    weight = torch.ones(64, device=device.type, requires_grad=True)
    side.wait_stream(device.current())
    with device.module.stream(side):
        torch.autograd.backward((weight * weight).sum())
    if not fault:
        device.current().wait_stream(side)
    assert weight.grad is not None
    weight.grad.mul_(2)
    device.module.synchronize()


def gradient_after_backward(device: Device, fault: bool) -> None:
    # Autograd makes the caller's stream, and no other, wait for the last steps.
    side, third = device.stream(), device.stream()
    weight = torch.ones(64, device=device.type, requires_grad=True)
    side.wait_stream(device.current())
    third.wait_stream(device.current())
    with device.module.stream(side):
        loss = (weight * weight).sum()
    device.current().wait_stream(side)
    torch.autograd.backward(loss)
    assert weight.grad is not None
    with device.module.stream(third if fault else device.current()):
        weight.grad.mul_(2)
    device.module.synchronize()


def gradients_from_two_streams(device: Device, fault: bool) -> None:
    # Autograd itself makes the streams wait where gradients go from one to the other.
    side = device.stream()
    weight = torch.ones(64, device=device.type, requires_grad=True)
    base = weight * 2
    side.wait_stream(device.current())
    with device.module.stream(side):
        one = (base * 3).sum()
    other = (base * 4).sum()
    device.current().wait_stream(side)
    torch.autograd.backward(one + other)
    assert weight.grad is not None
    if fault:
        weight.grad.add_(1)
        with device.module.stream(side):
            weight.grad.sum()
    device.module.synchronize()


def undispatched_kernel(device: Device, fault: bool) -> None:
    x, side = device.zeros(64), device.stream()
    side.wait_stream(device.current())
    with kernel(writes=[x], name="made_up_kernel"):
        pass  # Here somebody would launch it.
    if not fault:
        side.wait_stream(device.current())
    with kernel(reads=[x], stream=side, name="other_kernel"):
        pass
    device.module.synchronize()


def pinned_buffer_read_too_early(device: Device, fault: bool) -> None:
    x, host = device.zeros(64), torch.zeros(64).pin_memory()
    x.add_(1)
    host.copy_(x, non_blocking=True)
    if not fault:
        device.current().synchronize()
    host.sum()
    device.module.synchronize()


def copied_between_devices(device: Device, fault: bool) -> None:
    x, y, side = device.zeros(64, index=0), device.zeros(64, index=1), device.stream(0)
    side.wait_stream(device.current(0))
    y.copy_(x, non_blocking=True)
    y.sum()
    with device.module.stream(side):
        if not fault:
            side.wait_stream(device.current(1))
        x.add_(1)
    device.module.synchronize(0)
    device.module.synchronize(1)


CASES = (
    Case("read_before_written", read_before_written, ("read-after-write",)),
    Case("overwritten_while_read", overwritten_while_read, ("write-after-read",)),
    Case("event_recorded_too_early", event_recorded_too_early, ("read-after-write",)),
    Case("views_at_other_offsets", views_at_other_offsets, ("read-after-write",)),
    Case("interleaved_columns", interleaved_columns, ("read-after-write",)),
    Case("freed_while_used", freed_while_used, ("use-after-free",)),
    Case("other_device_synchronized", other_device_synchronized, ("read-after-write",), 2),
    Case("in_another_thread", in_another_thread, ("read-after-write",)),
    Case("another_thread_has_waited", another_thread_has_waited, ("read-after-write",)),
    Case("host_has_read_it", host_has_read_it, ("read-after-write", "write-after-read")),
    Case("host_has_copied_it", host_has_copied_it, ("read-after-write",)),
    Case("host_needs_the_shape", host_needs_the_shape, ("read-after-write",)),
    Case("host_has_polled", host_has_polled, ("read-after-write",)),
    Case("gradient_used_too_early", gradient_used_too_early, ("read-after-write",)),
    Case("gradient_after_backward", gradient_after_backward, ("read-after-write",)),
    Case("gradients_from_two_streams", gradients_from_two_streams, ("read-after-write",)),
    Case("undispatched_kernel", undispatched_kernel, ("read-after-write",)),
    Case("pinned_buffer_read_too_early", pinned_buffer_read_too_early, ("read-after-write",)),
    Case("copied_between_devices", copied_between_devices, ("write-after-read",), 2),
)

# What only the looker at torch's dispatcher can see: the simulated device traces itself alone.
DISPATCH_ONLY = frozenset({"undispatched_kernel", "pinned_buffer_read_too_early"})
