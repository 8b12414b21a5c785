"""Small programs on the simulated device, for a process of its own: races as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from accel_streams import fake
from accel_streams.races import Analyser

device: Any


def bucket_filled_by_two_streams(*, producers: bool, release: bool) -> None:
    first, second, reduction = (device.Stream() for _ in range(3))
    for stream, name in ((first, "p0"), (second, "p1"), (reduction, "reduction")):
        fake.name_stream(stream, name)
    bucket = torch.zeros(256, device="fake")
    fake.name_storage(bucket, "bucket")
    gradient = torch.ones(128, device="fake")
    for stream in (first, second, reduction):
        stream.wait_stream(device.current_stream())
    for _ in range(2):
        for stream, offset in ((first, 0), (second, 128)):
            if release:
                stream.wait_stream(reduction)
            with device.stream(stream):
                bucket.narrow(0, offset, 128).copy_(gradient)
        reduction.wait_stream(first)
        if producers:
            reduction.wait_stream(second)
        with device.stream(reduction):
            bucket.mul_(0.5)
    device.synchronize()


def temporary_used_on_another_stream(*, record: bool, wait: bool) -> None:
    side = device.Stream()
    fake.name_stream(side, "side")
    temporary = torch.ones(4096, device="fake")
    total = torch.zeros(4096, device="fake")
    side.wait_stream(device.current_stream())
    with device.stream(side):
        total.add_(temporary)
    if record:
        temporary.record_stream(side)
    if wait:
        device.current_stream().wait_stream(side)
    del temporary
    again = torch.full((4096,), 7.0, device="fake")
    device.current_stream().wait_stream(side)
    (again + total).sum().item()


def backward_on_the_engine_thread(*, wait: bool) -> None:
    # A leaf's gradient is handed over on the stream where its AccumulateGrad node was made.
    side = device.Stream()
    fake.name_stream(side, "side")
    weight = torch.ones(64, device="fake", requires_grad=True)
    side.wait_stream(device.current_stream())
    with device.stream(side):
        loss = (weight * weight).sum()
        torch.autograd.backward(loss)
    if wait:
        device.current_stream().wait_stream(side)
    gradient = weight.grad
    assert gradient is not None
    gradient.mul_(2)
    device.synchronize()


def read_by_the_host(*, wait: bool) -> None:
    side = device.Stream()
    value = torch.zeros(64, device="fake")
    side.wait_stream(device.current_stream())
    with device.stream(side):
        value.add_(1)
        if wait:
            value.sum().item()
    value.mul_(2)
    device.synchronize()


def report(name: str, program: Callable[..., None], **options: bool) -> None:
    analyser = Analyser()
    fake.start_trace(sink=analyser.feed)
    program(**options)
    analyser.feed(fake.stop_trace())
    races = [race.to_json() for race in analyser.races(fake.stream_names())]
    print(json.dumps({"name": name, **options, "operations": analyser.operations, "races": races}))


def main() -> None:
    global device
    fake.enable()
    device = torch.fake  # type: ignore[attr-defined]
    for producers in (False, True):
        for release in (False, True):
            waits = {"producers": producers, "release": release}
            report("bucket", bucket_filled_by_two_streams, **waits)
    for record, wait in ((False, False), (True, False), (False, True)):
        report("temporary", temporary_used_on_another_stream, record=record, wait=wait)
    for wait in (False, True):
        report("backward", backward_on_the_engine_thread, wait=wait)
        report("host", read_by_the_host, wait=wait)


if __name__ == "__main__":
    main()
