"""Prove on NVIDIA GPUs that the race detector sees what it should, and nothing else; print JSON.

Runs the programs of ``tests/races/watched_programs.py`` with and without their fault, then NCCL
collectives on two GPUs (one rank on each), a Triton kernel, and the cost for each operation.
Programs that need more GPUs than there are, or Triton, are listed under ``skipped``. Exit status 1
when any program had other races than it should.

For example: ``python benchmarks/races_cuda.py``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from accel_streams.races import Watch, kernel, watch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "races"))

programs = importlib.import_module("watched_programs")
tl: Any = None


def summary(seen: Watch) -> dict[str, Any]:
    """Return what is worth keeping of a watch."""
    return {
        "kinds": sorted(race.kind for race in seen.races),
        "races": [str(race) for race in seen.races],
        "operations": seen.operations,
    }


def run_cases() -> tuple[list[dict[str, Any]], list[str]]:
    """Run every program that the number of GPUs allows."""
    device = programs.Device("cuda", torch.cuda)
    done, skipped = [], []
    for case in programs.CASES:
        if case.devices > torch.cuda.device_count():
            skipped.append(f"{case.name}: needs {case.devices} GPUs")
            continue
        for fault in (True, False):
            torch.cuda.synchronize()
            with watch("cuda") as seen:
                case.program(device, fault)
            expected = sorted(case.kinds) if fault else []
            found = summary(seen)
            done.append(
                {
                    "case": case.name,
                    "fault": fault,
                    "expected": expected,
                    "ok": found["kinds"] == expected,
                    **found,
                }
            )
    return done, skipped


def run_trace() -> dict[str, Any]:
    """Show that torch's own callbacks are what tells of waits inside an operator."""
    records: list[str] = []
    from accel_streams.races._dispatch import DispatchSource

    source = DispatchSource("cuda")
    x = torch.ones(8, device="cuda")
    source.start(lambda chunk: records.extend(record[0] for record in chunk))
    x.sum().item()
    torch.cuda.Event().record()  # type: ignore[no-untyped-call]
    source.stop()
    ok = "sync_stream" in records and "record" in records
    return {"case": "_gpu_trace", "ok": ok, "records": records}


def run_triton() -> dict[str, Any] | str:
    """Launch a kernel that torch does not dispatch: declared, and not declared."""
    global tl  # Triton looks the names of a kernel up among the globals.
    try:
        triton: Any = importlib.import_module("triton")
        tl = importlib.import_module("triton.language")
    except ImportError:
        return "triton: not installed"

    @triton.jit  # type: ignore[untyped-decorator]
    def fill(out, size: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(out + tl.arange(0, size), 1.0)

    x, side = torch.zeros(64, device="cuda"), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    found: dict[str, Any] = {"case": "triton"}
    for declared in (True, False):
        torch.cuda.synchronize()
        with watch("cuda") as seen:
            if declared:
                with kernel(writes=[x], name="fill"):
                    fill[(1,)](x, 64)
            else:
                fill[(1,)](x, 64)
            with torch.cuda.stream(side):
                x.sum()
            torch.cuda.synchronize()
        name = "declared" if declared else "not declared"
        found[name] = {**summary(seen), "unseen": seen.unseen}
    named = any("fill" in each for each in found["not declared"]["unseen"])
    found["ok"] = found["declared"]["kinds"] == ["read-after-write"] and named
    return found


def rank_of_nccl(rank: int, port: int, folder: str) -> None:
    """Run a collective with and without waiting for it, as one of two ranks."""
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    x = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(x)  # The first one makes the communicator.
    torch.cuda.synchronize()
    found = []
    for fault in (True, False):
        with watch("cuda") as seen:
            x.add_(1)
            work = dist.all_reduce(x, async_op=True)
            if not fault:
                work.wait()
            x.mul_(0.5)
            torch.cuda.synchronize()
            work.wait()
        expected = ["read-after-write"] if fault else []
        kinds = sorted({race.kind for race in seen.races})
        found.append(
            {
                "case": f"all_reduce, rank {rank}",
                "fault": fault,
                "expected": expected,
                **summary(seen),
                "ok": kinds == expected,
            }
        )
    with watch("cuda") as seen:
        for _ in range(3):
            dist.all_reduce(x)
            x.mul_(0.5)
        torch.cuda.synchronize()
    found.append(
        {"case": f"all_reduce waited for, rank {rank}", **summary(seen), "ok": not seen.races}
    )
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def run_nccl(folder: str) -> list[dict[str, Any]] | str:
    """Run two ranks, one on each of two GPUs."""
    if torch.cuda.device_count() < 2:
        return "NCCL: needs 2 GPUs"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing: Any = torch.multiprocessing
    multiprocessing.spawn(rank_of_nccl, (port, folder), nprocs=2)
    return [
        found
        for rank in range(2)
        for found in json.loads(Path(folder, f"rank{rank}.json").read_text())
    ]


def cost(operations: int) -> dict[str, float]:
    """Return the host's microseconds for a small operation, bare and watched."""
    x, y = torch.ones(16, device="cuda"), torch.ones(16, device="cuda")

    def measure() -> float:
        best = float("inf")
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(operations):
                x.add_(y)
            best = min(best, time.perf_counter() - start)
            torch.cuda.synchronize()
        return best / operations * 1e6

    bare = measure()
    with watch("cuda"):
        watched = measure()
    return {"bare_us": round(bare, 2), "watched_us": round(watched, 2)}


def main() -> None:
    """Run everything and print what came of it."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=2000, help="for the cost")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("races_cuda.py needs an NVIDIA GPU, and torch.cuda finds none")
    done, skipped = run_cases()
    done.append(run_trace())
    with tempfile.TemporaryDirectory() as folder:
        for found in (run_triton(), run_nccl(folder)):
            if isinstance(found, str):
                skipped.append(found)
            elif isinstance(found, list):
                done += found
            else:
                done.append(found)
    failed = [each for each in done if not each["ok"]]
    document = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "devices": torch.cuda.device_count(),
        "programs": len(done),
        "as expected": len(done) - len(failed),
        "skipped": skipped,
        "cost": cost(options.operations),
        "failed": failed,
        "all": [{"case": each["case"], "ok": each["ok"]} for each in done],
    }
    print(json.dumps(document, indent=1))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
