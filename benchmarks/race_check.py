"""Measure the race analysis on a synthetic trace of ZeRO-2 training; print JSON.

The trace has what a training step has: a forward and a backward pass on one stream, activations
that are allocated, freed and reused, gradients copied into two buckets in turn, reductions on a
second stream and a communicator's stream, an optimizer step, a host synchronisation. It is measured
with all waits ("ordered") and without those of the buckets' writers ("racy"). Times are CPU times,
the best of several passes over records made beforehand, handed over in chunks as the simulated
device does.

``memory`` is over many more operations than a run needs, a trace in which the host never waits for
the device: what the analyser keeps and the process's memory at ten points, and whether they grow
from the second to the last. ``peak_bytes`` is the process's most. Exit status 1 if they do.

For example: ``python benchmarks/race_check.py --memory-operations 1000000``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import sys
import time
from typing import Any

from accel_streams.races import Analyser

Record = tuple[Any, ...]
COMPUTE, REDUCE, COMM = (0, 1), (0, 2), (0, 3)
CHUNK = 1024


class Trainer:
    """Makes the records of training steps, one step at a time, without end."""

    def __init__(
        self, *, racy: bool, layers: int = 12, flush_every: int = 4, host_waits: bool = True
    ) -> None:
        self.records: list[Record] = []
        self.racy = racy
        self.host_waits = host_waits
        self.layers = layers
        self.flush_every = flush_every
        self.seq = 0
        self.blocks = 0
        self.freed: list[int] = []
        self.weights = [self.allocate(4096) for _ in range(layers)]
        self.states = [self.allocate(8192) for _ in range(layers)]
        self.buckets = [self.allocate(4096 * flush_every) for _ in range(2)]
        self.released = [0, 0]
        self.sources = [("model.py", line, "forward") for line in range(64)]

    def add(self, kind: str, *fields: Any) -> int:
        self.seq += 1
        self.records.append((kind, self.seq, 0, *fields))
        return self.seq

    def allocate(self, nbytes: int) -> int:
        for block in getattr(self, "freed", []):
            self.add("reuse", COMPUTE, block)
        self.freed = []
        self.blocks += 1
        self.add("alloc", COMPUTE, self.blocks, nbytes, ("model.py", 1, "allocate"))
        return self.blocks

    def free(self, block: int) -> None:
        self.add("free", COMPUTE, block)
        self.freed.append(block)

    def launch(
        self, stream: tuple[int, int], name: str, *accesses: tuple[int, int, int, int]
    ) -> None:
        seq = self.add("launch", stream, name, accesses, self.sources[self.seq % 64])
        self.records.append(("ran", seq, seq, seq * 10, seq * 10 + 10))

    def edge(self, producer: tuple[int, int], consumer: tuple[int, int]) -> int:
        recorded = self.add("record", producer, None)
        self.add("wait", consumer, recorded, None)
        self.add("drop", recorded)  # as wait_stream does with its event
        return recorded

    def step(self) -> None:
        activations: list[int] = []
        for weight in self.weights:
            out = self.allocate(2048)
            inputs = activations[-1] if activations else out
            self.launch(
                COMPUTE,
                "addmm",
                (weight, 0, 4096, 1),
                (inputs, 0, 2048, 1),
                (out, 0, 2048, 2),
            )
            for _ in range(4):
                saved = self.allocate(2048)
                self.launch(
                    COMPUTE,
                    "gelu",
                    (out, 0, 2048, 1),
                    (out, 0, 2048, 1),
                    (saved, 0, 2048, 2),
                )
                activations.append(saved)
            activations.append(out)
        fill = 0
        for number, weight in enumerate(reversed(self.weights)):
            grad = self.allocate(4096)
            for _ in range(6):
                saved = activations.pop() if activations else grad
                self.launch(
                    COMPUTE,
                    "mm_backward",
                    (weight, 0, 4096, 1),
                    (saved, 0, 2048, 1),
                    (grad, 0, 4096, 3),
                )
                if saved != grad:
                    self.free(saved)
            bucket = self.buckets[fill % 2]
            slot = number % self.flush_every
            if slot == 0 and self.released[fill % 2] and not self.racy:
                self.add("wait", COMPUTE, self.released[fill % 2], None)
            self.launch(
                COMPUTE,
                "copy_",
                (grad, 0, 4096, 1),
                (bucket, slot * 4096, (slot + 1) * 4096, 2),
            )
            self.free(grad)
            if slot == self.flush_every - 1:
                self.flush(fill % 2, bucket)
                fill += 1
        self.edge(REDUCE, COMPUTE)
        for weight, state in zip(self.weights, self.states, strict=True):
            self.launch(COMPUTE, "adam", (state, 0, 8192, 3), (weight, 0, 4096, 3))
        if self.host_waits:
            self.add("sync_stream", COMPUTE, "item", None)

    def flush(self, index: int, bucket: int) -> None:
        whole = 4096 * self.flush_every
        self.edge(COMPUTE, REDUCE)
        self.launch(REDUCE, "div_", (bucket, 0, whole, 3))
        self.edge(REDUCE, COMM)
        self.launch(COMM, "fccl::all_reduce", (bucket, 0, whole, 3))
        self.edge(COMM, REDUCE)
        for slot in range(self.flush_every):
            interval = (slot * 4096, (slot + 1) * 4096)
            self.launch(REDUCE, "copy_", (bucket, *interval, 1), (self.states[slot], 0, 4096, 2))
        before = self.released[index]
        self.released[index] = self.add("record", REDUCE, None)
        if before:
            self.add("drop", before)

    def chunks(self, operations: int) -> list[list[Record]]:
        launches = 0
        made: list[list[Record]] = []
        while launches < operations:
            self.step()
            launches += sum(record[0] == "launch" for record in self.records)
            made += [self.records[i : i + CHUNK] for i in range(0, len(self.records), CHUNK)]
            self.records = []
        return made


def measure(operations: int, racy: bool, passes: int) -> dict[str, Any]:
    chunks = Trainer(racy=racy).chunks(operations)
    records = sum(map(len, chunks))
    seconds = []
    analyser = Analyser()
    for _ in range(passes):
        analyser = Analyser()
        gc.collect()
        start = time.process_time()
        for chunk in chunks:
            analyser.feed(chunk)
        seconds.append(time.process_time() - start)
    accesses = sum(len(r[5]) for chunk in chunks for r in chunk if r[0] == "launch")
    return {
        "name": "racy" if racy else "ordered",
        "operations": analyser.operations,
        "records": records,
        "accesses_per_operation": round(accesses / analyser.operations, 2),
        "us_per_operation": round(min(seconds) / analyser.operations * 1e6, 3),
        "us_per_operation_all_passes": [round(s / analyser.operations * 1e6, 3) for s in seconds],
        "kept_accesses": analyser.kept_accesses,
        "races": len(analyser.races()),
        "racing_pairs": analyser.race_count,
    }


def memory(operations: int) -> dict[str, Any]:
    """Show that the analyser's memory does not grow with the length of the trace."""
    trainer = Trainer(racy=False, host_waits=False)
    analyser = Analyser()
    samples: list[dict[str, int]] = []
    while analyser.operations < operations:
        trainer.step()
        analyser.feed(trainer.records)
        trainer.records = []
        if analyser.operations >= operations * (len(samples) + 1) / 10:
            gc.collect()
            with open("/proc/self/statm", encoding="ascii") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
            samples.append(
                {
                    "operations": analyser.operations,
                    "resident_bytes": resident,
                    "kept_accesses": analyser.kept_accesses,
                    "kept_recordings": analyser.kept_recordings,
                }
            )
    kept = [sample["kept_accesses"] + sample["kept_recordings"] for sample in samples]
    grown = samples[-1]["resident_bytes"] - samples[1]["resident_bytes"]
    return {
        "operations": analyser.operations,
        "samples": samples,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "grown_bytes": grown,
        # Python's allocator moves by a few pages; a recording kept at each flush would be 100 times
        # that.
        "flat": len(set(kept[1:])) == 1 and grown < 1 << 20,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="example: python benchmarks/race_check.py --operations 200000",
    )
    parser.add_argument("--operations", type=int, default=100_000, help="launches to analyse")
    parser.add_argument("--passes", type=int, default=5, help="take the best of so many passes")
    parser.add_argument(
        "--memory-operations",
        type=int,
        default=0,
        help="also show the memory over so many launches",
    )
    arguments = parser.parse_args(argv)
    result: dict[str, Any] = {
        "schema": 1,
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "runs": [measure(arguments.operations, racy, arguments.passes) for racy in (False, True)],
    }
    if arguments.memory_operations:
        result["memory"] = memory(arguments.memory_operations)
    json.dump(result, sys.stdout, indent=2)
    print()
    return 0 if result.get("memory", {"flat": True})["flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
