"""MEM: who may have a block of memory again, and when.

A block that is handed out again shows by its address, and what that does to its former user by what
this one reads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

from accel_streams.conformance._property import checks
from accel_streams.conformance._results import premise, require

if TYPE_CHECKING:
    import torch

    from accel_streams._backend import Stream
    from accel_streams.conformance._bench import Bench

# Caching allocators keep large blocks whole, and hand out the one that fits best: this is 12 MiB.
_BLOCK = 3 << 20
# As much of a block is written and read as a bench's cell has.
_USED = 256
_OFFSET = 1 << 20
# So many blocks of its size are asked for when one is looked for.
_ASKED = 3

Record = Callable[["Bench", "torch.Tensor", "Stream"], None]


@checks("MEM-01", "delay_reuse", gate=True)
def delay_reuse(bench: Bench) -> None:
    """Memory kept alive for a stream isn't handed out again while that stream's work is pending."""
    _is_not_reused(bench, lambda bench, block, stream: bench.backend.keep_alive(block, stream))


@checks("MEM-02", "all_consumers", gate=True)
def all_consumers(bench: Bench) -> None:
    """Memory kept alive for two streams isn't handed out again before both are done."""
    a, b, c = bench.streams(3)
    _require_reuse(bench, a)
    for recorded, finishes in product(((b, c), (c, b)), (b, c)):
        last = c if finishes is b else b
        first_seen, last_seen = bench.cell(), bench.cell()
        block = _block(bench, a, 1.0)
        event = bench.marker(a)
        for stream in (b, c):
            bench.backend.wait(stream, event)
        with bench.gate(last) as gate:
            bench.copy(last, block[:_USED], last_seen)
            pending = bench.marker(last)
            with bench.gate(finishes, part=0.3) as first:
                bench.copy(finishes, block[:_USED], first_seen)
                for stream in recorded:
                    bench.backend.keep_alive(block, stream)
                address = block.data_ptr()
                del block
                # After the free: that is what the allocator waits for.
                done = bench.marker(finishes)
                first.release()
                bench.completes(done, None, "the work of one of two consumers")
                blocks = _blocks_after(bench, a)
                still = not bench.backend.query(pending)
                premise(still, "both consumers were done before memory was asked for")
                _require_absent(address, blocks, "while the other of two consumers is pending")
            gate.release()
            for stream, cell in ((finishes, first_seen), (last, last_seen)):
                require(bench.read(stream, cell) == 1.0, "a consumer has read what came after")
        del blocks


@checks("MEM-03", "view", gate=True)
def view(bench: Bench) -> None:
    """Keeping a view alive keeps the whole block: also one that begins elsewhere."""

    def record(bench: Bench, block: torch.Tensor, stream: Stream) -> None:
        bench.backend.keep_alive(block[_OFFSET : _OFFSET + _USED], stream)

    _is_not_reused(bench, record)


@checks("MEM-04", "released", gate=True)
def released(bench: Bench) -> None:
    """Memory that was kept alive for a stream is handed out again once that stream is done."""
    a, b, block, target = _block_for_another(bench)
    with bench.gate(b) as gate:
        bench.copy(b, block[:_USED], target)
        done = bench.marker(b)
        bench.backend.keep_alive(block, b)
        address = block.data_ptr()
        del block
        gate.release()
    bench.backend.synchronize(done)
    bench.backend.synchronize()
    found = [made.data_ptr() for made in _blocks_after(bench, a)]
    require(address in found, "memory that was kept alive for a stream never comes back")
    require(bench.read(b, target) == 1.0, "a consumer has read what came after")


@checks("MEM-05", "owner_waits", gate=True)
def owner_waits(bench: Bench) -> None:
    """Where the owner's stream has waited for a reader, its memory may be freed and used again."""
    a, b, block, target = _block_for_another(bench)
    with bench.gate(b) as gate:
        bench.copy(b, block[:_USED], target)
        bench.backend.wait(a, bench.marker(b))
        address = block.data_ptr()
        del block
        (again, *_) = blocks = _blocks_after(bench, a)
        premise(again.data_ptr() == address, "the allocator had other memory to hand out")
        bench.stays_pending(bench.marker(a), gate, "the owner's stream, which waits for a reader,")
        gate.release()
    require(bench.read(b, target) == 1.0, "memory was written again before its reader was done")
    del blocks, again


@checks("MEM-06", "not_a_fence", gate=True)
def not_a_fence(bench: Bench) -> None:
    """Keeping memory alive for a stream orders nothing: neither stream waits for the other."""
    a, b = bench.streams(2)
    cell = bench.cell()
    for held, free in ((a, b), (b, a)):
        block = _block(bench, a, 1.0)
        with bench.gate(held) as gate:
            bench.write(held, block[:_USED], 2.0)
            with bench.on(a):  # As where it is used: the owner's stream is current.
                bench.backend.keep_alive(block, b)
            bench.write(free, cell, 1.0)
            bench.completes(
                bench.marker(free), gate, "a stream that memory is kept alive for or by"
            )
            del block
            bench.write(free, cell, 2.0)
            bench.completes(bench.marker(free), gate, "a stream that shared memory kept alive")


@checks("MEM-07", "pinned", gate=True)
def pinned(bench: Bench) -> None:
    """A non-blocking copy from or to pinned memory returns at once; the memory is kept for it."""
    (a,) = bench.streams(1)
    sources = [bench.pinned(1.0, _USED)]
    target, device_source = bench.cell(), bench.cell(3.0)
    back = bench.pinned(0.0, _USED)

    def copy_from() -> None:
        _copy(bench, a, sources[0], target)

    def copy_to() -> None:
        _copy(bench, a, device_source, back)

    # The first one may have to load something.
    bench.returns(copy_from, None, "a copy from pinned memory")
    with bench.gate(a) as gate:
        bench.write(a, target, 0.0)
        bench.returns(copy_from, gate, "a copy from pinned memory")
        bench.returns(copy_to, gate, "a copy to pinned memory")
        done = bench.marker(a)
        bench.stays_pending(done, gate, "a copy on a held stream")
        address = sources.pop().data_ptr()
        others = [bench.pinned(9.0, _USED) for _ in range(_ASKED)]
        premise(gate.closed, "the gate opened before memory was asked for")
        _require_absent(address, others, "while a copy from it is pending")
        gate.release()
    bench.backend.synchronize(done)
    require(bench.read(a, target) == 1.0, "a copy has read what came after in its pinned memory")
    require(set(back.tolist()) == {3.0}, "a copy to pinned memory had no effect")


# Helpers.


def _block_for_another(bench: Bench) -> tuple[Stream, Stream, torch.Tensor, torch.Tensor]:
    """Return two streams, a block of the first that the second may read, and a cell to copy to."""
    a, b = bench.streams(2)
    _require_reuse(bench, a)
    target = bench.cell()
    block = _block(bench, a, 1.0)
    bench.backend.wait(b, bench.marker(a))
    return a, b, block, target


def _is_not_reused(bench: Bench, record: Record) -> None:
    a, b, block, target = _block_for_another(bench)
    with bench.gate(b) as gate:
        bench.copy(b, block[:_USED], target)
        record(bench, block, b)
        address = block.data_ptr()
        del block
        blocks = _blocks_after(bench, a)
        premise(gate.closed, "the gate opened before memory was asked for")
        _require_absent(address, blocks, "while its consumer is pending")
        bench.completes(bench.marker(a), gate, "the stream that has freed the memory")
        gate.release()
    require(bench.read(b, target) == 1.0, "a consumer has read what came after")


def _block(bench: Bench, stream: Stream, value: float) -> torch.Tensor:
    """Return a large block of memory that belongs to ``stream``, which will write its beginning."""
    import torch

    index = bench.backend.stream_id(stream).device_index
    with bench.on(stream):
        block = torch.empty(_BLOCK, device=bench.device(index))
        block[:_USED].fill_(value)
    return block


def _blocks_after(bench: Bench, stream: Stream) -> list[torch.Tensor]:
    """Return blocks that have just come from the allocator, each overwritten."""
    return [_block(bench, stream, 9.0) for _ in range(_ASKED)]


def _require_reuse(bench: Bench, stream: Stream) -> None:
    """Find out whether the allocator hands out freed memory again, as it must to be tested."""
    first = _block(bench, stream, 1.0)
    address = first.data_ptr()
    del first
    found = [block.data_ptr() for block in _blocks_after(bench, stream)]
    premise(address in found, "the allocator doesn't hand out freed memory again, even if it may")


def _require_absent(address: int, blocks: list[torch.Tensor], when: str) -> None:
    found = [block.data_ptr() for block in blocks]
    require(address not in found, f"memory was handed out again {when}")


def _copy(bench: Bench, stream: Stream, source: torch.Tensor, target: torch.Tensor) -> None:
    with bench.on(stream):
        target.copy_(source, non_blocking=True)
