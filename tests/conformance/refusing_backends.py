"""Backends that can't be had. Torch is not imported for them, as that takes long."""

from __future__ import annotations

import os
from typing import ClassVar

from accel_streams.backends.cpu_fake import CpuFakeBackend

__all__ = ["DeclaringBackend", "LeavingBackend", "RefusingBackend", "ThrowingBackend"]


class RefusingBackend(CpuFakeBackend):
    """A device that is not there, though its class is."""

    def probe(self) -> str | None:
        return "it is switched off"


class ThrowingBackend(CpuFakeBackend):
    """A device whose backend can't be made."""

    def __init__(self) -> None:
        raise LookupError("out of order")


class LeavingBackend(CpuFakeBackend):
    """A device that ends the process when it is looked for."""

    def probe(self) -> str | None:
        os._exit(7)


class DeclaringBackend(CpuFakeBackend):
    """A device that deviates from what nobody asks of it."""

    declared: ClassVar = {"ORD-99": "it does"}

    def probe(self) -> str | None:
        return None
