"""Small programs on the simulated device, for a process of its own: what each came to, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from accel_streams import fake, load
from accel_streams.races import Analyser

device: Any
NUMEL = 1024


def temporary(keep_alive: bool) -> Any:
    """Case 6: allocate on A, use on R behind a delay, free, allocate the same size on A."""
    backend = load("cpu_fake")
    a, r = device.Stream(), device.Stream()
    fake.name_stream(a, "A")
    fake.name_stream(r, "R")
    total = torch.zeros(NUMEL, device="fake")
    for stream in (a, r):
        stream.wait_stream(device.current_stream())
    with device.stream(a):
        value = torch.full((NUMEL,), 3.0, device="fake")
        fake.name_storage(value, "temporary")
    r.wait_stream(a)
    with fake.hold(r) as delay:
        with device.stream(r):
            total.add_(value)
        if keep_alive:
            backend.keep_alive(value, r)
        del value
        with device.stream(a):
            again = torch.full((NUMEL,), 7.0, device="fake")
        a.synchronize()
        delay.release()
    device.synchronize()
    assert again.tolist() == [7.0] * NUMEL
    return sorted({str(number) for number in total.tolist()})


def default_stream(faulty: bool) -> Any:
    """Case 7: which stream is the default one, inside and outside of another stream."""
    backend = load("cpu_fake")
    take = backend.current_stream if faulty else backend.default_stream
    before = backend.stream_id(take())
    stream = device.Stream()
    with device.stream(stream):
        inside = backend.stream_id(take())
    return {"same": inside == before, "is s": inside == backend.stream_id(stream)}


def report(name: str, program: Callable[[bool], Any], switch: bool) -> None:
    analyser = Analyser()
    fake.start_trace(sink=analyser.feed)
    result = program(switch)
    analyser.feed(fake.stop_trace())
    races = [race.to_json() for race in analyser.races(fake.stream_names())]
    print(json.dumps({"name": name, "switch": switch, "result": result, "races": races}))


def main() -> None:
    global device
    fake.enable()
    device = torch.fake  # type: ignore[attr-defined]
    for schedule in fake.SCHEDULES:
        fake.set_schedule(schedule)
        for switch in (False, True):
            report(f"temporary, {schedule}", temporary, switch)
    for switch in (False, True):
        report("default stream", default_stream, switch)


if __name__ == "__main__":
    main()
