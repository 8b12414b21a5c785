"""The process that checks: it may hang, crash or be killed without harm to the one that waits.

Run as ``python -m accel_streams.conformance._child FD``. The work comes as JSON on the standard
input, what became of it goes as lines of JSON to the file descriptor FD.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from accel_streams import _registry
from accel_streams._backend import Backend
from accel_streams._entry_points import Registration
from accel_streams._errors import AccelStreamsError, UnknownBackendError
from accel_streams._registry import BackendInfo
from accel_streams.conformance._gates import Level
from accel_streams.conformance._messages import Subject
from accel_streams.conformance._property import select
from accel_streams.conformance._run import Checker

__all__ = ["backend_of", "main"]


def main(descriptor: int) -> None:
    """Do the work on the standard input; tell what becomes of it on ``descriptor``."""
    order = json.load(sys.stdin)
    # By default CUDA maps streams to 8 queues, and those that share one wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    with open(descriptor, "w", encoding="utf-8") as told:
        for message in _work(order):
            told.write(json.dumps(message) + "\n")
            told.flush()


def backend_of(subject: Subject) -> Backend:
    """Return a new object of the backend, broken as ``subject`` says.

    Raise a BackendError where there is no such backend, or it isn't usable.
    """
    unregistered = ":" in subject.backend
    backend = (_unregistered if unregistered else _registry.choose)(subject.backend)
    if not subject.mutant:
        return backend
    from accel_streams.conformance.mutants import MUTANTS

    return MUTANTS[subject.mutant].make(backend)


def _unregistered(place: str) -> Backend:
    """Return what ``module:class`` names, held to the same rules as a registered backend."""
    registration = Registration("unregistered", place)
    try:
        name = str(registration.load().name)
    except (ImportError, AttributeError) as exc:
        raise UnknownBackendError(f"There is no backend {place!r}: {exc}.", name=place) from exc
    info = BackendInfo(name, place, "", place, registration=registration._replace(name=name))
    return _registry.choose(name, [info])


def _work(order: dict[str, Any]) -> Iterator[dict[str, object]]:
    checkers: dict[Subject, Checker] = {}
    backend: Backend | None = None
    for number, (name, mutant, property_id) in enumerate(order["tasks"]):
        subject = Subject(name, mutant)
        if subject not in checkers:
            try:
                backend = backend_of(subject)
                checkers[subject] = Checker(
                    backend, timeout_s=order["timeout_s"], at_most=Level(order["at_most"])
                )
            except (AccelStreamsError, ValueError) as exc:
                yield {"error": type(exc).__name__, "message": str(exc)}
                return
            yield {"level": int(checkers[subject].gates.level), "subject": [name, mutant]}
        checker = checkers[subject]
        yield {"begun": number}
        (checked,) = select([property_id])
        yield {"outcome": checker.check(checked).to_json(), "stuck": checker.stuck}
        if checker.stuck:
            return
    if order["accelerator"] and backend is not None:
        yield {"accelerator": _accelerator(backend)}


def _accelerator(backend: Backend) -> dict[str, object] | None:
    """Compare the backend's accelerator with DeepSpeed's abstract class; None without DeepSpeed."""
    try:
        version = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        return None
    # What accelerator DeepSpeed itself would find here is no matter, and it would say so.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from accel_streams.deepspeed._interface import interface_faults

    try:
        accelerator = backend.accelerator()
    except Exception as exc:  # A vendor's own code.
        fault = f"accelerator() raised {type(exc).__name__}: {exc}"
        return {"deepspeed": version, "class": "", "faults": [" ".join(fault.split())]}
    kind = type(accelerator)
    return {
        "deepspeed": version,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "faults": [str(fault) for fault in interface_faults(accelerator)],
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))
    # A check that is stuck holds a thread that would keep the interpreter from ending.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
