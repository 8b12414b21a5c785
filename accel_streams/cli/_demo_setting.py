"""What the demo runs on each kind of device: which schedules, which model, how many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import typer

from accel_streams.cli import _runs
from accel_streams.explore import (
    FAKE_DEVICE,
    REAL_DEVICE,
    Schedule,
    StartError,
    free_runs,
    parse_schedules,
)

__all__ = ["Setting", "on_cuda", "on_the_simulated_device", "require_modules"]

# Large enough for the device to be behind the host, which is when its streams overlap.
_CUDA_MODEL = ("--width", "1024", "--heads", "16", "--sequence", "256", "--batch", "4")


@dataclass(frozen=True, slots=True)
class Setting:
    """What differs between the devices; ``jobs`` is how many runs may go on at once."""

    backend: str
    device: str
    ranks: int
    schedules: tuple[Schedule, ...]
    arguments: tuple[str, ...]
    jobs: int | None = None

    @property
    def fresh(self) -> bool:
        """Whether every run needs interpreters of its own."""
        return self.device == REAL_DEVICE


def require_modules(names: Sequence[str]) -> None:
    """Raise StartError for those that are not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise StartError(
            f"the demo needs {' and '.join(missing)}, not installed in this environment; "
            'install everything it needs with: python -m pip install "accel-streams[demo]"'
        )


def on_the_simulated_device(
    schedules: str | None, ranks: int | None, runs: int | None, delay_ms: float, device: str
) -> Setting:
    """Return what is run on the simulated device, under schedules of our choice."""
    if runs is not None or delay_ms:
        raise typer.BadParameter(
            "the simulated device has schedules in place of chance: choose them with --schedules",
            param_hint="--runs" if runs is not None else "--delay",
        )
    texts = _runs.words(schedules or "in-order,fifo,lifo,mru,lazy,priority:0")
    planned = _runs.parsed("--schedules", lambda: parse_schedules(texts))
    return Setting("cpu_fake", device or FAKE_DEVICE, ranks or 2, planned, ())


def on_cuda(schedules: str | None, ranks: int | None, runs: int | None, delay_ms: float) -> Setting:
    """Return what is run on GPUs, as often as asked for, as nobody can choose what happens there.

    With one rank all of DeepSpeed's gradient hooks run on one stream, where nothing can race. So
    half of them are made to run where those of a second rank's parameters would.
    """
    if schedules is not None:
        raise typer.BadParameter(
            "a GPU runs its work as it likes; say how often to try with --runs",
            param_hint="--schedules",
        )
    from accel_streams import _registry

    _registry.choose("cuda")  # An error here, and not in every rank.
    import torch

    devices = torch.cuda.device_count()
    ranks = ranks or min(2, devices)
    if ranks > devices:
        raise typer.BadParameter(
            f"{ranks} ranks need as many GPUs, and there are {devices}", param_hint="--ranks"
        )
    arguments = [*_CUDA_MODEL, "--deterministic", "--delay", str(delay_ms)]
    if ranks == 1:
        arguments.append("--two-producers")
    return Setting(
        "cuda", REAL_DEVICE, ranks, free_runs(3 if runs is None else runs), tuple(arguments), jobs=1
    )
