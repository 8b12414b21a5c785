"""Every environment variable this package reads, parsed in one place.

Nothing is cached: each function reads the environment when called. An unknown value is a
SettingError, because a misspelt setting that is silently ignored could mean unprotected training.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, NoReturn, cast

from accel_streams._errors import SettingError

__all__ = [
    "SCHEDULES",
    "VARIABLES",
    "AcceleratorRequest",
    "ds_accelerator",
    "is_delays",
    "plugins",
    "races_mode",
    "schedule",
    "seed",
    "zero_mode",
]

ZeroMode = Literal["track", "sync", "off"]
RacesMode = Literal["off", "warn", "raise"]

ZERO_MODES: tuple[ZeroMode, ...] = ("track", "sync", "off")
RACES_MODES: tuple[RacesMode, ...] = ("off", "warn", "raise")
SCHEDULES = ("in-order", "fifo", "lifo", "mru", "lru", "lazy", "random", "priority")

# What a schedule found by a search is called: which operation runs after which. `12e` is the end of
# collective 12, `12.1` what the allocator submits first after operation 12.
_DELAYS = re.compile(r"delay:{0}-{0}(?:,{0}-{0})*".format(r"[0-9]{1,9}(?:\.[0-9]{1,6}|e)?"))

# The largest seed: the fake device's generator holds an unsigned 64-bit number.
_MAX_SEED = 2**64 - 1

VARIABLES = (
    "DS_ACCELERATOR",
    "ACCEL_STREAMS_ZERO",
    "ACCEL_STREAMS_PLUGINS",
    "ACCEL_STREAMS_SCHEDULE",
    "ACCEL_STREAMS_SEED",
    "ACCEL_STREAMS_RACES",
)
"""The variables, in the order in which ``accel-streams doctor`` shows them."""

_OURS = "accel_streams"


class AcceleratorRequest(NamedTuple):
    """What ``DS_ACCELERATOR`` asks for.

    ``ours``: the value begins with ``accel_streams``; otherwise it is DeepSpeed's business, or the
    bare name of a registered backend. ``backend``: the name after the colon with ``-`` written as
    ``_``; None when the choice is left to this package.
    """

    value: str
    ours: bool
    backend: str | None


def ds_accelerator() -> AcceleratorRequest | None:
    """Return what ``DS_ACCELERATOR`` asks for, None when it is unset or empty."""
    value = os.environ.get("DS_ACCELERATOR", "").strip()
    if not value:
        return None
    package, colon, name = value.partition(":")
    if package.replace("-", "_") != _OURS:
        return AcceleratorRequest(value, ours=False, backend=None)
    if not colon:
        return AcceleratorRequest(value, ours=True, backend=None)
    if not name:
        _refuse(
            "DS_ACCELERATOR",
            value,
            (_OURS, f"{_OURS}:<backend>"),
            hint="`accel-streams list` shows the backends.",
        )
    return AcceleratorRequest(value, ours=True, backend=name.replace("-", "_"))


def zero_mode() -> ZeroMode:
    """Return how ZeRO's buckets are ordered (``ACCEL_STREAMS_ZERO``, default ``track``)."""
    return cast(ZeroMode, _choice("ACCEL_STREAMS_ZERO", ZERO_MODES, "track"))


def races_mode() -> RacesMode:
    """Return what a detected race does (``ACCEL_STREAMS_RACES``, default ``off``)."""
    return cast(RacesMode, _choice("ACCEL_STREAMS_RACES", RACES_MODES, "off"))


def schedule() -> str | None:
    """Return the fake device's schedule (``ACCEL_STREAMS_SCHEDULE``), None when it is unset."""
    variable = "ACCEL_STREAMS_SCHEDULE"
    value = os.environ.get(variable)
    if value is not None and value not in SCHEDULES and not is_delays(value):
        _refuse(variable, value, (*SCHEDULES, "delay:A-B,C-D,... with numbers of operations"))
    return value


def is_delays(schedule: str) -> bool:
    """Tell whether a schedule's name is a list of delays, such as ``delay:5-9,7-12``."""
    return _DELAYS.fullmatch(schedule) is not None


def seed() -> int:
    """Return the seed of the fake device's schedule (``ACCEL_STREAMS_SEED``, default 0)."""
    variable = "ACCEL_STREAMS_SEED"
    value = os.environ.get(variable)
    if value is None:
        return 0
    # isdecimal alone accepts digits of every script, and int() underscores and signs.
    if not (value.isascii() and value.isdecimal()) or int(value) > _MAX_SEED:
        _refuse(variable, value, (f"a whole number from 0 to {_MAX_SEED}",))
    return int(value)


def plugins() -> tuple[str, ...] | None:
    """Return the backends that may be used (``ACCEL_STREAMS_PLUGINS``).

    None (unset) means all, the empty tuple none. The built-in ones count like any other, since they
    register in the same way. Names are checked against what is registered by the registry.
    """
    value = os.environ.get("ACCEL_STREAMS_PLUGINS")
    if value is None:
        return None
    if not value.strip():
        return ()
    names = tuple(part.strip().replace("-", "_") for part in value.split(","))
    if not all(names):
        _refuse("ACCEL_STREAMS_PLUGINS", value, ("names of backends, separated by single commas",))
    return names


def _choice(variable: str, allowed: Sequence[str], default: str | None) -> str | None:
    value = os.environ.get(variable)
    if value is None:
        return default
    if value not in allowed:
        _refuse(variable, value, allowed)
    return value


def _refuse(variable: str, value: str, allowed: Sequence[str], hint: str = "") -> NoReturn:
    expected = ", ".join(allowed)
    message = (
        f"{variable} has the unknown value {value!r}. Expected: {expected}. "
        f"Set it to one of these, or unset it. {hint}".rstrip()
    )
    raise SettingError(message, variable=variable, value=value, allowed=allowed)
