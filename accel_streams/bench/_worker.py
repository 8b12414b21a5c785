"""One rank of a benchmark: measure every setting in every variant, and write what came of it.

Started by ``_ranks``; not for people.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

import accel_streams
from accel_streams.bench._profile import profile_steps
from accel_streams.bench._settings import VARIANTS, Setting
from accel_streams.bench._trainers import Trainer, batches, make_trainer

__all__ = ["main"]


class _Bench:
    """The variants of one setting, in this rank."""

    def __init__(self, setting: Setting, plan: dict[str, Any], backend: Any, stock: Any) -> None:
        self.setting = setting
        self.plan = plan
        self.backend = backend
        self.stock = stock
        self.device = torch.device(stock.current_device_name())
        self.data = batches(setting, self.device, dist.get_rank())
        self.stream = torch.cuda.Stream() if setting.user_stream else None  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()

    def trainer(self, name: str) -> Trainer:
        return make_trainer(self.setting, VARIANTS[name], self.backend, self.stock)

    @contextlib.contextmanager
    def running(self, trainer: Trainer) -> Iterator[None]:
        under = torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()
        with trainer.active(), under:
            yield

    def steps(self, trainer: Trainer, count: int) -> None:
        for _ in range(count):
            trainer.step(*next(self.data))

    def block(self, trainer: Trainer, count: int) -> float:
        """Return the milliseconds a step of ``count`` steps, of the slowest rank."""
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        with self.running(trainer):
            self.steps(trainer, count)
        torch.cuda.synchronize()
        took = torch.tensor(1000 * (time.perf_counter() - began) / count, device=self.device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return float(took)

    def times(self) -> dict[str, list[float]]:
        trainers = {name: self.trainer(name) for name in self.plan["variants"]}
        samples: dict[str, list[float]] = {name: [] for name in trainers}
        for trainer in trainers.values():
            self.block(trainer, self.plan["warmup"])
        for _ in range(self.plan["pairs"]):
            for name, trainer in trainers.items():
                samples[name].append(self.block(trainer, self.plan["steps"]))
        for trainer in trainers.values():
            trainer.close()
        return samples

    def alone(self, name: str) -> dict[str, Any]:
        """Return what is measured of a variant that has the device for itself."""
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        trainer = self.trainer(name)
        self.block(trainer, 4)
        torch.cuda.reset_peak_memory_stats()
        self.block(trainer, 8)
        peak = torch.cuda.max_memory_allocated() - before
        reserved = torch.cuda.max_memory_reserved()
        hooks = self._host_time_of_hooks(trainer)

        def run() -> None:
            with self.running(trainer):
                self.steps(trainer, self.plan["profiled"])
            torch.cuda.synchronize()

        profile = profile_steps(run, self.plan["profiled"])
        parameters = len(list(trainer.model.parameters()))
        trainer.close()
        return {
            "peak_bytes": peak,
            "reserved_bytes": reserved,
            "host_us_a_hook": None if hooks is None else round(1e6 * hooks / parameters, 2),
            "parameters": parameters,
            "profile": profile,
        }

    def _host_time_of_hooks(self, trainer: Trainer) -> float | None:
        """Return the host's seconds a step in ZeRO's gradient hooks, the flushes included."""
        name = "process_gradients"
        original = getattr(trainer.optimizer, name, None)
        if original is None:
            return None
        spent = 0.0

        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                spent += time.perf_counter() - began

        setattr(trainer.optimizer, name, timed)
        count = 8
        self.block(trainer, count)
        setattr(trainer.optimizer, name, original)
        return spent / count


def main() -> None:
    """Measure as the plan says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("result", type=Path)
    options = parser.parse_args()
    plan = json.loads(options.plan.read_text())
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    stock = get_accelerator()
    deepspeed.init_distributed()
    accel_streams.install("cuda")
    backend = accel_streams.load("cuda")
    results = {}
    for fields in plan["settings"]:
        setting = Setting(**fields)
        bench = _Bench(setting, plan, backend, stock)
        samples = bench.times()
        gc.collect()
        alone = {name: bench.alone(name) for name in plan["variants"]} if plan["profiled"] else {}
        results[setting.name] = {"samples": samples, "alone": alone}
        # After each, so that what was measured is not lost with a later setting.
        if dist.get_rank() == 0:
            options.result.write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
