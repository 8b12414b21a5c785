"""Run properties one after another, each with a time limit that holds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from accel_streams.conformance._bench import Bench
from accel_streams.conformance._gates import Gates, Level
from accel_streams.conformance._property import Property, properties, select
from accel_streams.conformance._results import (
    Broken,
    Doubtful,
    Inconclusive,
    Outcome,
    Result,
    Serial,
    Unverified,
)

if TYPE_CHECKING:
    from accel_streams._backend import Backend

__all__ = ["ATTEMPTS", "DEFAULT_TIMEOUT_S", "Checker", "check_backend"]

DEFAULT_TIMEOUT_S = 10.0
# After the gates are opened, a call that waited for one of them comes back.
_GRACE_S = 2.0
# A property waits for at most so many gates that open by themselves, each longer than it promises.
_GATES = 16
# A gate that opens by itself may do so too soon on a busy machine. Each attempt holds longer.
ATTEMPTS = 4
"""How often a property is tried whose gate opened too soon."""


class Checker:
    """Checks properties of one backend in this process, each in a thread of its own.

    ``at_most`` asks for gates of a lower level than the backend has. Raise ValueError when the
    backend declares deviations from properties that don't exist.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        at_most: Level = Level.HOLD,
    ) -> None:
        self._backend = backend
        self._timeout_s = timeout_s
        self._declared = _declared(backend)
        # A first use may take long: the simulated device is built. No property's limit is for that.
        with contextlib.suppress(Exception):  # What is wrong is the properties' to tell.
            backend.current_stream()
        self.gates = Gates(backend, at_most=at_most)
        self.stuck = False
        """Whether a check has not come back even with all gates open.

        Its thread can't be ended. Check no more in this process: what the thread holds is unknown.
        """

    def check(self, checked: Property) -> Outcome:
        """Check one property."""
        begun = time.perf_counter()
        result, detail = self._attempts(checked)
        reason = self._declared.get(checked.id)
        if reason is not None and result is Result.FAILED:
            result, detail = Result.DECLARED, f"{reason} (seen: {detail})"
        elif reason is not None and result is Result.PASSED:
            detail = f"holds, though the backend declares that it does not: {reason}"
        return Outcome(checked.id, checked.name, result, detail, time.perf_counter() - begun)

    def _attempts(self, checked: Property) -> tuple[Result, str]:
        if checked.gate > self.gates.level:
            return Result.UNVERIFIED, "needs a gate, and a stream of this device can't be held"
        usual = self.gates.duration_s
        timed = self.gates.level in (Level.LOAD, Level.DELAY)
        try:
            for attempt in range(ATTEMPTS):
                self.gates.duration_s = usual * 2**attempt
                error = self._once(checked)
                again = timed and type(error) in (Inconclusive, Doubtful) and not self.stuck
                if not again:
                    break
        finally:
            self.gates.duration_s = usual
        return self._judged(error)

    def _judged(self, error: BaseException | None) -> tuple[Result, str]:
        detail = " ".join(str(error).split())
        if error is None:
            return Result.PASSED, ""
        if isinstance(error, Unverified):
            return Result.UNVERIFIED, detail
        if isinstance(error, Serial) and "ORD-02" in self._declared:
            return Result.DECLARED, self._declared["ORD-02"]
        if isinstance(error, Inconclusive):
            return Result.INCONCLUSIVE, detail
        if isinstance(error, Broken):
            return Result.FAILED, detail
        kind = type(error).__name__
        return Result.FAILED, f"raised {kind}: {detail}" if detail else f"raised {kind}"

    def _once(self, checked: Property) -> BaseException | None:
        """Check once, and return what was raised; a hang is a Broken."""
        bench = Bench(self._backend, self.gates)
        errors: list[BaseException] = []

        def run() -> None:
            try:
                _check(checked, bench)
            except BaseException as exc:  # What a check or a vendor's code raises, of any kind.
                errors.append(exc)

        thread = threading.Thread(target=run, name=checked.id, daemon=True)
        thread.start()
        limit = self._timeout_s
        if self.gates.level is not Level.HOLD:
            limit += _GATES * self.gates.duration_s
        thread.join(limit)
        if not thread.is_alive():
            return errors[0] if errors else None
        bench.release_all()
        thread.join(_GRACE_S + 4 * self.gates.duration_s)
        self.stuck = thread.is_alive()
        return Broken(f"did not return within {limit:g} s")


def check_backend(
    backend: Backend,
    *,
    only: Iterable[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    at_most: Level = Level.HOLD,
    finished: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Check what ``backend`` does, property by property, in this process.

    Args:
        backend: A usable backend.
        only: Ids, names or groups of properties; None for all.
        timeout_s: How many seconds a property may take, besides waiting for gates that open by
            themselves. One that takes longer has failed.
        at_most: The highest level of gate to use.
        finished: Called after each property.

    Returns:
        An outcome for each property, in order. After a check that can't be ended the rest is
        ``inconclusive``; ``accel-streams check`` goes on with those in a new process.

    Raises:
        ValueError: ``only`` or what the backend declares names no property.

    """
    chosen = select(only)
    checker = Checker(backend, timeout_s=timeout_s, at_most=at_most)
    outcomes: list[Outcome] = []
    for each in chosen:
        if checker.stuck:
            detail = f"not checked: {outcomes[-1].id} did not come back"
            outcome = Outcome(each.id, each.name, Result.INCONCLUSIVE, detail)
        else:
            outcome = checker.check(each)
        outcomes.append(outcome)
        if finished is not None:
            finished(outcome)
    return outcomes


def _check(checked: Property, bench: Bench) -> None:
    if bench.device_count < checked.devices:
        raise Unverified(f"needs {checked.devices} devices, there is {bench.device_count}")
    try:
        checked.check(bench)
    finally:
        bench.close()


def _declared(backend: Backend) -> Mapping[str, str]:
    """Return the deviations that the backend states, by the properties' ids."""
    stated: Mapping[str, str] = getattr(backend, "declared", {})
    known = {each.id for each in properties()}
    unknown = sorted(set(stated) - known)
    if unknown:
        raise ValueError(
            f"The backend {backend.name!r} declares deviations from {', '.join(unknown)}, which "
            "are no properties. Expected ids such as ORD-15."
        )
    return stated
