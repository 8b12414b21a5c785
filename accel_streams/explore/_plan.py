"""What is run: a script, a variant of the software under it, and a schedule of the device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from accel_streams._settings import SCHEDULES, is_delays

__all__ = [
    "BLOCKING",
    "DETERMINISTIC_SCHEDULES",
    "IN_ORDER",
    "SEEDED_SCHEDULES",
    "VARIANTS",
    "Run",
    "Schedule",
    "Script",
    "Variant",
    "free_runs",
    "parse_schedules",
    "plan_schedules",
    "variants_named",
]

# A seed changes what these do.
SEEDED_SCHEDULES = ("priority", "random")
_BLOCKING, _FREE = "blocking", "free"
DETERMINISTIC_SCHEDULES = tuple(name for name in SCHEDULES if name not in SEEDED_SCHEDULES)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Name an order in which a device runs queued work.

    For the simulated device `name` is one of the schedules of `accel_streams.fake`, or a list of
    delays (`_delays`); `seed` matters to the seeded ones only. A real device has its own way: it is
    ``blocking``, where the host waits for each operation, or ``free``, with the number of the run.
    """

    name: str
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read ``name``, ``name:seed`` or ``delay:A-B,...``; raise ValueError for anything else."""
        if is_delays(text.strip()):
            return cls(text.strip())
        match = re.fullmatch(r"([a-z_-]+)(?::(\d+))?", text.strip())
        name = match[1].replace("_", "-") if match else ""
        if match is None or name not in DETERMINISTIC_SCHEDULES + SEEDED_SCHEDULES:
            known = ", ".join(DETERMINISTIC_SCHEDULES)
            seeded = ", ".join(f"{name}[:seed]" for name in SEEDED_SCHEDULES)
            raise ValueError(
                f"unknown schedule {text!r}; expected one of {known}, {seeded}, delay:A-B,..."
            )
        if match[2] is not None and name in DETERMINISTIC_SCHEDULES:
            raise ValueError(f"schedule {name!r} takes no seed, got {text!r}")
        return cls(name, int(match[2] or 0))

    @property
    def real(self) -> bool:
        """Tell whether this is the way of a real device, which nobody chooses."""
        return self.name in (_BLOCKING, _FREE)

    @property
    def checked(self) -> bool:
        """Tell whether to look for races: looking makes the host slow, and a free run another."""
        return self.name != _FREE

    @property
    def environment(self) -> dict[str, str]:
        """Give the variables that make a plain ``python train.py`` use this schedule."""
        if self.real:
            return {"CUDA_LAUNCH_BLOCKING": "1" if self == BLOCKING else "0"}
        return {"ACCEL_STREAMS_SCHEDULE": self.name, "ACCEL_STREAMS_SEED": str(self.seed)}

    @property
    def replay(self) -> str:
        """Spell this schedule as assignments to put before a command."""
        names = (
            self.environment
            if self.real or self.name in SEEDED_SCHEDULES
            else {"ACCEL_STREAMS_SCHEDULE": self.name}
        )
        return " ".join(f"{name}={value}" for name, value in names.items())

    def __str__(self) -> str:
        numbered = (*SEEDED_SCHEDULES, _FREE)
        return f"{self.name}:{self.seed}" if self.name in numbered else self.name


IN_ORDER = Schedule("in-order")
BLOCKING = Schedule(_BLOCKING)
"""On a real device no two operations overlap then: what the free runs are compared with."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Name a way of running the script: environment variables and further script arguments."""

    name: str
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()


# "deepspeed" is what DeepSpeed does by itself: the device's streams and events, none of our waits.
VARIANTS = (
    Variant("deepspeed", (("ACCEL_STREAMS_ZERO", "off"),)),
    Variant("accel_streams", (("ACCEL_STREAMS_ZERO", "track"),)),
)


@dataclass(frozen=True, slots=True)
class Script:
    """Name the user's program: a file, or with `module` what ``python -m`` takes."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    @classmethod
    def parse(cls, words: Sequence[str]) -> Script:
        """Read ``script.py args`` or ``-m package.module args``."""
        if words and words[0] == "-m":
            if len(words) < 2:
                raise ValueError("-m needs the name of a module after it")
            return cls(words[1], tuple(words[2:]), module=True)
        if not words:
            raise ValueError("no script given")
        return cls(words[0], tuple(words[1:]))

    def __str__(self) -> str:
        return f"-m {self.target}" if self.module else self.target


@dataclass(frozen=True, slots=True)
class Run:
    """Describe one execution of the script on all ranks.

    `keep_records` asks for the first so many trace records of every rank to be saved; `check`
    switches the happens-before analysis on. With `compare`, the script has to train something that
    can be compared with other runs.
    """

    script: Script
    variant: Variant
    schedule: Schedule
    keep_records: int = 0
    check: bool = True
    compare: bool = True
    environment: tuple[tuple[str, str], ...] = field(default=())

    def __str__(self) -> str:
        return f"variant {self.variant.name}, schedule {self.schedule}"


def plan_schedules(count: int, seed: int = 0) -> tuple[Schedule, ...]:
    """List `count` different schedules, the same ones for the same `seed`.

    In-order comes first, as everything is compared with it, then the other deterministic ones.
    The rest is seeded, two random priority permutations for each uniformly random one: uniform
    choice keeps all streams close together and so misses what needs one of them to fall behind.
    """
    if count < 1:
        raise ValueError(f"at least one schedule is needed, got {count}")
    schedules = [Schedule(name) for name in DETERMINISTIC_SCHEDULES[:count]]
    for index in range(count - len(schedules)):
        name = "random" if index % 3 == 2 else "priority"
        schedules.append(Schedule(name, seed + index))
    return tuple(schedules)


def free_runs(count: int) -> tuple[Schedule, ...]:
    """List `count` runs of a real device, after the blocking one."""
    return (BLOCKING, *(Schedule(_FREE, number) for number in range(1, count + 1)))


def parse_schedules(texts: Iterable[str]) -> tuple[Schedule, ...]:
    """Read schedules by name, without repeats, and put in-order first whether named or not."""
    named = dict.fromkeys(Schedule.parse(text) for text in texts)
    named.pop(IN_ORDER, None)
    return (IN_ORDER, *named)


def variants_named(names: Iterable[str]) -> tuple[Variant, ...]:
    """Look variants up by name, in the given order; raise ValueError for an unknown one."""
    known = {variant.name: variant for variant in VARIANTS}
    found = []
    for name in dict.fromkeys(name.strip().replace("-", "_") for name in names):
        if name not in known:
            raise ValueError(f"unknown variant {name!r}; expected one of {', '.join(known)}")
        found.append(known[name])
    if not found:
        raise ValueError(f"no variant given; expected one of {', '.join(known)}")
    return tuple(found)
