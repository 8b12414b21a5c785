# mypy: disable-error-code="attr-defined"
# torch.fake comes into being at run time.
"""Run every collective of the simulated device on forked ranks and check what it gives.

Usage: collectives.py RANKS CASE. Exit status 0 when every rank found what it expected.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from accel_streams import fake

LIMIT_S = 100
warnings.simplefilter("ignore")  # torch renames collectives from release to release


def full(value: float, count: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), value, dtype=dtype, device="fake")


def expect(got: torch.Tensor, values: list[float]) -> None:
    found = got.cpu().tolist()
    assert found == values, (
        f"rank {dist.get_rank()} got {found}, expected {values} ({fake.schedule()})"
    )


def every_collective() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(1, size + 1)))
    for dtype in (torch.float32, torch.bfloat16):
        x = full(rank + 1, dtype=dtype)
        dist.all_reduce(x)
        expect(x, [total] * 4)
    x = full(rank + 1)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    expect(x, [total / size] * 4)
    x = full(rank + 1)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    expect(x, [float(size)] * 4)
    x = full(rank + 1)
    dist.reduce(x, dst=size - 1)
    expect(x, [total if rank == size - 1 else rank + 1.0] * 4)
    x = full(rank)
    dist.broadcast(x, src=size - 1)
    expect(x, [size - 1.0] * 4)

    parts = [full(-1) for _ in range(size)]
    dist.all_gather(parts, full(rank))
    expect(torch.cat(parts), [float(r) for r in range(size) for _ in range(4)])
    whole = full(-1, 4 * size)
    dist.all_gather_into_tensor(whole, full(rank))
    expect(whole, [float(r) for r in range(size) for _ in range(4)])
    part = full(-1)
    dist.reduce_scatter_tensor(part, torch.arange(4.0 * size, device="fake"))
    expect(part, [size * v for v in range(4 * rank, 4 * rank + 4)])
    part = full(-1)
    dist.reduce_scatter(part, [full(r) for r in range(size)], op=dist.ReduceOp.AVG)
    expect(part, [float(rank)] * 4)

    received = [full(-1) for _ in range(size)]
    dist.all_to_all(received, [full(10 * rank + r) for r in range(size)])
    expect(torch.cat(received), [10.0 * r + rank for r in range(size) for _ in range(4)])
    single = full(-1, size)
    dist.all_to_all_single(single, torch.arange(float(size), device="fake") + 10 * rank)
    expect(single, [10.0 * r + rank for r in range(size)])
    gathered = [full(-1) for _ in range(size)] if rank == 0 else None
    dist.gather(full(rank), gathered, dst=0)
    if gathered is not None:
        expect(torch.cat(gathered), [float(r) for r in range(size) for _ in range(4)])
    part = full(-1)
    dist.scatter(part, [full(r) for r in range(size)] if rank == 0 else None, src=0)
    expect(part, [float(rank)] * 4)
    if size > 1:
        if rank == 0:
            dist.send(full(5), 1)
        elif rank == 1:
            part = full(-1)
            dist.recv(part, 0)
            expect(part, [5.0] * 4)
    dist.barrier()
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, rank)
    assert objects == list(range(size))
    host = torch.ones(2)
    dist.all_reduce(host)
    assert host.tolist() == [float(size)] * 2


def the_host_goes_on() -> None:
    """A collective waits for the current stream, which waits for it; the host waits for neither."""
    rank = dist.get_rank()
    fake.reset_counters()
    x = full(rank + 1)
    with fake.hold(torch.fake.current_stream()):
        x.add_(1)
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed()
        work.wait()
        x.mul_(2)
        assert not torch.fake.current_stream().query()
    size = dist.get_world_size()
    assert fake.synchronizing_ops() == {}
    expect(x, [2.0 * sum(range(2, size + 2))] * 4)


def reading_before_the_wait_shows() -> None:
    """A collective that nobody waited for is not ordered before what follows.

    Some schedule must show it.
    """
    wrong = []
    for name in fake.SCHEDULES:
        fake.set_schedule(name, seed=2)
        x = full(1.0)
        work = dist.all_reduce(x, async_op=True)
        early = x.clone()
        work.wait()
        if early.cpu().tolist() != [float(dist.get_world_size())] * 4:
            wrong.append(name)
        torch.fake.synchronize()
    assert wrong, "no schedule shows the missing wait"


def two_communicators_do_not_block_each_other() -> None:
    """Ranks whose schedules begin two communicators' collectives in different orders."""
    other = dist.new_group(list(range(dist.get_world_size())))
    streams = [torch.fake.Stream(), torch.fake.Stream()]
    for seed in range(12):
        fake.set_schedule("priority" if seed % 2 else "random", seed=100 * dist.get_rank() + seed)
        results = []
        for turn in range(6):
            with torch.fake.stream(streams[turn % 2]):
                x = full(float(turn))
                dist.all_reduce(x, group=None if turn % 2 else other)
                results.append(x.mul_(2))
        torch.fake.synchronize()
        for turn, result in enumerate(results):
            expect(result, [2.0 * turn * dist.get_world_size()] * 4)


def a_rank_that_blocks_on_the_cpu_stalls_nobody() -> None:
    """Device collectives that are still queued run before the host blocks in a CPU collective."""
    fake.set_schedule("lazy")
    x = full(1.0)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        x.cpu()  # needs the peers' part of the collective, which they have queued
    host = torch.ones(1)
    dist.all_reduce(host)
    expect(x, [float(dist.get_world_size())] * 4)


def the_schedules() -> None:
    for name in fake.SCHEDULES:
        fake.set_schedule(name, seed=dist.get_rank())
        every_collective()


CASES: dict[str, Callable[[], None]] = {
    "every": the_schedules,
    "one": every_collective,
    "host": the_host_goes_on,
    "early": reading_before_the_wait_shows,
    "two": two_communicators_do_not_block_each_other,
    "cpu": a_rank_that_blocks_on_the_cpu_stalls_nobody,
}


def run_rank(rank: int, size: int, case: str, rendezvous: str) -> int:
    signal.alarm(LIMIT_S)
    store = dist.FileStore(rendezvous, size)
    dist.init_process_group(
        "fccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT_S)
    )
    torch.fake.set_device(rank % torch.fake.device_count())
    try:
        CASES[case]()
    except Exception as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    dist.destroy_process_group()
    return 0


def main() -> int:
    size, case = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    fake.enable()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                code = run_rank(rank, size, case, os.path.join(folder, "store"))
                sys.stderr.flush()
                os._exit(code)
            children.append(pid)
        return max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in children)


if __name__ == "__main__":
    sys.exit(main())
