# mypy: disable-error-code="attr-defined"
# torch.fake comes into being at run time.
"""Small programs for the simulated device, right ones and wrong ones, to be searched."""

from __future__ import annotations

import torch

__all__ = [
    "both_ways",
    "branching",
    "early_free",
    "edge",
    "handover",
    "independent",
    "reads_in_between",
]


def edge(first: torch.Stream, second: torch.Stream) -> None:
    """Make `second` wait for what `first` has been given."""
    second.wait_event(first.record_event())


def handover(*, produced: bool = True, released: bool = True) -> torch.Tensor:
    """Fill one buffer twice on a side stream, each time read on the current one."""
    producer, consumer = torch.fake.Stream(), torch.fake.current_stream()
    buffer = torch.zeros(2, device="fake")
    edge(consumer, producer)
    reads = []
    for fill in range(2):
        if fill and released:
            edge(consumer, producer)
        with torch.fake.stream(producer):
            buffer.fill_(fill + 1)
        if produced:
            edge(producer, consumer)
        reads.append(buffer * 10)
    edge(producer, consumer)
    return torch.cat(reads)


def early_free(*, recorded: bool) -> torch.Tensor:
    """Free a tensor that a side stream still reads, and allocate again."""
    side, main = torch.fake.Stream(), torch.fake.current_stream()
    source = torch.full((2,), 5.0, device="fake")
    edge(main, side)
    with torch.fake.stream(side):
        copied = source + 1
    if recorded:
        source.record_stream(side)
    del source
    other = torch.full((2,), 9.0, device="fake")
    edge(side, main)
    return torch.cat([copied, other])


def independent(streams: int = 3, writes: int = 2) -> torch.Tensor:
    """Write different parts of a tensor on streams that have nothing to do with each other."""
    main = torch.fake.current_stream()
    whole = torch.zeros(streams, device="fake")
    made = [torch.fake.Stream() for _ in range(streams)]
    for stream in made:
        edge(main, stream)
    for index, stream in enumerate(made):
        with torch.fake.stream(stream):
            for _ in range(writes):
                whole[index].add_(1)
    for stream in made:
        edge(stream, main)
    return whole


def both_ways() -> torch.Tensor:
    """Add and multiply on two streams that nothing orders: one result for each interleaving."""
    one, two = torch.fake.Stream(), torch.fake.Stream()
    number = torch.ones(1, device="fake")
    torch.fake.synchronize()
    with torch.fake.stream(one):
        number.add_(1)
        number.add_(2)
    with torch.fake.stream(two):
        number.mul_(3)
        number.mul_(5)
    return number


def branching() -> list[float]:
    """Do one thing or another depending on a value that a missing wait leaves open."""
    side = torch.fake.Stream()
    number = torch.zeros(1, device="fake")
    torch.fake.synchronize()
    with torch.fake.stream(side):
        number.add_(1)
    if number.item() == 0:
        number.add_(10)
    else:
        number.mul_(7)
        with torch.fake.stream(side):
            number.add_(100)
    torch.fake.synchronize()
    return [number.item()]


def reads_in_between() -> list[float]:
    """Let the host read, between the operations of a program without a fault."""
    side = torch.fake.Stream()
    number = torch.ones(1, device="fake")
    edge(torch.fake.current_stream(), side)
    with torch.fake.stream(side):
        number.add_(1)
        first = number.item()
    number.mul_(4)
    return [first, number.item()]
