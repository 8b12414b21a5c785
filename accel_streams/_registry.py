"""Find the backends that are installed, and choose one.

Discovery is a pure function over entry points and imports nothing. ``examine`` imports a backend's
module, which by contract imports neither torch nor a vendor's package; ``probe`` asks the backend
whether it is usable, which may import anything. One broken backend never takes down the others: it
is listed with its reason, and raised only when somebody names it.

What this module imports is most of what `accel-streams list` costs; so there are no dataclasses.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, NamedTuple, cast

from accel_streams import _entry_points, _settings
from accel_streams._backend import API_VERSION, Backend
from accel_streams._entry_points import Registration
from accel_streams._errors import (
    BackendConflictError,
    BackendError,
    BackendWarning,
    BrokenBackendError,
    IncompatibleBackendError,
    SettingError,
    UnavailableBackendError,
    UnknownBackendError,
)
from accel_streams._loading import Failure, announce_after, guarded, time_limit

__all__ = [
    "FAULTY",
    "GROUP",
    "BackendInfo",
    "State",
    "choose",
    "discover",
    "examine",
    "fault",
    "find",
    "installed_entry_points",
    "load",
    "normalise",
    "probe",
    "registered",
]

GROUP = "accel_streams.backends"
"""The entry-point group in which backends register."""

State = Literal["registered", "usable", "unavailable", "broken", "incompatible", "conflict"]
"""``registered`` is all that is known of a backend as long as it has not been probed."""

FAULTY: tuple[State, ...] = ("broken", "incompatible", "conflict")
"""The states that are somebody's mistake, and not a matter of the machine."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")

_REMEDY = "Report it to its authors, or hide it with ACCEL_STREAMS_PLUGINS."

# A simulated device must never be what somebody trains on without having asked for it.
_NEVER_BY_ITSELF = frozenset({"cpu_fake"})

# What a backend must have besides api_version, in the order of the protocol.
_MEMBERS = (
    "name",
    "device_type",
    "capabilities",
    "description",
    "url",
    "probe",
    "current_stream",
    "default_stream",
    "new_stream",
    "use_stream",
    "new_event",
    "record",
    "wait",
    "query",
    "synchronize",
    "stream_id",
    "keep_alive",
    "accelerator",
)

# Longer than any device is known to take, and short enough for somebody who waits at a terminal.
_PATIENCE = 30.0  # seconds

_STATES: dict[type[BackendError], State] = {
    UnavailableBackendError: "unavailable",
    IncompatibleBackendError: "incompatible",
    BrokenBackendError: "broken",
}

# The entry points whose failure has been warned about in this process.
_warned: set[tuple[str, str]] = set()


class BackendInfo(NamedTuple):
    """One registration of a backend and what is known of it.

    ``distribution`` and ``version`` say who registers it, ``value`` is the entry point's
    ``module:class``. ``reason`` is one line of why the state is what it is, None when all is well.
    ``registration`` is the entry point itself.
    """

    name: str
    distribution: str
    version: str
    value: str
    state: State = "registered"
    reason: str | None = None
    registration: Registration | None = None

    @property
    def origin(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    def to_json(self) -> dict[str, str | None]:
        """Return the entry of ``accel-streams list --json`` for this backend."""
        return {
            "name": self.name,
            "distribution": self.distribution,
            "version": self.version,
            "value": self.value,
            "state": self.state,
            "reason": self.reason,
        }


def normalise(name: str) -> str:
    """Return ``name`` as backends are registered: ``-`` and ``_`` are the same."""
    return name.strip().replace("-", "_")


def installed_entry_points() -> list[Registration]:
    """Return the entry points of every installed distribution in the group of the backends."""
    return _entry_points.installed(GROUP)


def discover(
    candidates: Iterable[Registration], plugins: Collection[str] | None = None
) -> list[BackendInfo]:
    """List the backends among ``candidates`` by name, without importing any.

    ``plugins`` holds the names that may be used, None for all. A name that several registrations
    claim is listed once for each, in state ``conflict``. Raise SettingError when ``plugins`` holds
    a name that nobody registers.
    """
    infos = sorted({_describe(candidate) for candidate in candidates}, key=_sort_key)
    if plugins is not None:
        _check_plugins(plugins, [info.name for info in infos])
        infos = [info for info in infos if info.name in plugins]
    claims = Counter(info.name for info in infos)
    return [
        _in_conflict(info, [other for other in infos if other.name == info.name])
        if claims[info.name] > 1
        else info
        for info in infos
    ]


def registered() -> list[BackendInfo]:
    """List the installed backends that ``ACCEL_STREAMS_PLUGINS`` leaves, without importing any."""
    return discover(installed_entry_points(), _settings.plugins())


def find(name: str, infos: Sequence[BackendInfo]) -> BackendInfo:
    """Return the one backend called ``name``.

    Raise UnknownBackendError when there is none, and BackendConflictError when there are several.
    """
    wanted = normalise(name)
    matches = [info for info in infos if info.name == wanted]
    if not matches:
        raise _unknown(wanted, [info.name for info in infos])
    if matches[0].state == "conflict":
        raise BackendConflictError(
            f"The backend {wanted!r} {matches[0].reason}.",
            name=wanted,
            distributions=[info.origin for info in matches],
        )
    return matches[0]


def load(name: str, infos: Sequence[BackendInfo] | None = None) -> Backend:
    """Return an instance of the backend called ``name``, whether or not it is usable here.

    ``infos`` defaults to the installed ones. Raise a BackendError when there is no such backend,
    or when it is broken, incompatible or in conflict.
    """
    return _instantiate(find(name, registered() if infos is None else infos))


def examine(info: BackendInfo, limit: float | None = None) -> BackendInfo:
    """Return ``info`` after importing the backend's module and looking at the class.

    A backend that imports torch with its module is in order, and told of in ``reason``: whoever
    lists the backends has to wait for it. ``limit``: as for ``probe``.
    """
    before = "torch" in sys.modules
    examined = _outcome(info, _instantiate, limit)[0]
    if examined.state == "registered" and not before and "torch" in sys.modules:
        return examined._replace(
            reason=f"importing {info.value.partition(':')[0]} imports torch, which makes each "
            "listing of the backends slow; import it in the methods"
        )
    return examined


def probe(info: BackendInfo, limit: float | None = None) -> BackendInfo:
    """Return ``info`` after asking the backend whether it is usable here.

    ``limit``: after so many seconds it counts as broken. Only for a program that owns the
    process's alarm signal, and in its main thread.
    """
    return _outcome(info, _usable, limit)[0]


def fault(info: BackendInfo) -> str:
    """Return what to tell people about a backend that is in one of the faulty states."""
    return (
        f"The backend {info.name!r} of {info.origin} is left out, {info.state}: {info.reason}. "
        f"{_REMEDY}"
    )


def choose(requested: str | None = None, infos: Sequence[BackendInfo] | None = None) -> Backend:
    """Return the usable backend called ``requested``, or (None) the one for this machine.

    That one is the backend of the device that torch reports, else the only usable one. Where
    several are for that device, the one that has its name, as every backend should. The simulated
    device is never chosen by itself. Raise a BackendError when there is nothing to choose, or too
    much: never settle for another device than the one asked for.
    """
    if infos is None:
        infos = registered()
    if requested is not None:
        return _usable(find(requested, infos))
    probed = [_patiently(info) for info in infos if info.name not in _NEVER_BY_ITSELF]
    candidates = [info for info, _ in probed]
    for info in candidates:
        _warn_once(info)
    usable = [backend for _, backend in probed if backend is not None]
    reported = _reported_device_type()
    matching = [backend for backend in usable if backend.device_type == reported] or usable
    if len(matching) == 1:
        return matching[0]
    for backend in matching:
        if reported is not None and backend.name == normalise(reported):
            return backend
    raise _no_choice(infos, candidates, reported, [backend.name for backend in matching])


def _describe(registration: Registration) -> BackendInfo:
    name = normalise(registration.name)
    info = BackendInfo(
        name=name,
        distribution=registration.distribution,
        version=registration.version,
        value=registration.value,
        registration=registration,
    )
    if _NAME.fullmatch(name):
        return info
    return info._replace(
        state="broken",
        reason=f"{registration.name!r} is not a name for a backend: "
        "expected a lower-case letter, then lower-case letters, digits and underscores",
    )


def _sort_key(info: BackendInfo) -> tuple[str, str, str, str]:
    return (info.name, info.distribution, info.version, info.value)


def _check_plugins(plugins: Collection[str], known: Sequence[str]) -> None:
    for name in plugins:
        if name not in known:
            raise SettingError(
                f"ACCEL_STREAMS_PLUGINS names {name!r}, which no installed distribution registers. "
                f"Expected: {', '.join(sorted(set(known))) or 'nothing, as nothing is registered'}."
                " Correct the name, or install what registers it.",
                variable="ACCEL_STREAMS_PLUGINS",
                value=name,
                allowed=sorted(set(known)),
            )


def _in_conflict(info: BackendInfo, claimants: Sequence[BackendInfo]) -> BackendInfo:
    names = " and ".join(f"{claimant.origin} ({claimant.value})" for claimant in claimants)
    return info._replace(
        state="conflict",
        reason=f"is registered by {names}; uninstall all but one",
    )


def _instantiate(info: BackendInfo) -> Backend:
    """Return an instance of a backend that keeps the contract, or raise a BackendError."""
    registration = info.registration
    if registration is None or info.state == "broken":
        raise _broken(info, info.reason or "its entry point is missing")

    def make() -> tuple[object, object, list[str], object]:
        backend = registration.load()()
        missing = [member for member in _MEMBERS if not hasattr(backend, member)]
        named = getattr(backend, "name", None)
        return backend, getattr(backend, "api_version", None), missing, named

    try:
        backend, api_version, missing, named = guarded(make)
    except Failure as failure:
        raise _broken(info, f"loading it {failure}") from failure.__cause__
    if api_version != API_VERSION:
        reason = _mismatch(api_version)
        raise IncompatibleBackendError(
            f"The backend {info.name!r} of {info.origin} {reason}.",
            name=info.name,
            distributions=[info.origin],
            reason=reason,
            api_version=api_version,
        )
    if missing:
        raise _broken(info, f"{info.value} lacks {', '.join(missing)} of the Backend protocol")
    if not isinstance(named, str) or normalise(named) != info.name:
        # It would be taken for the other one in messages, and in DS_ACCELERATOR.
        raise _broken(info, f"{info.value} is called {named!r}, which is not what it registers as")
    return cast(Backend, backend)


def _usable(info: BackendInfo) -> Backend:
    """Return an instance of a backend that says it is usable here, or raise a BackendError."""
    backend = _instantiate(info)

    def ask() -> str | None:
        answer = backend.probe()
        return None if answer is None else str(answer)

    try:
        answer = guarded(ask)
    except Failure as failure:
        raise _broken(info, f"probing it {failure}") from failure.__cause__
    if answer is not None:
        reason = " ".join(answer.split()) or "it gives no reason"
        raise UnavailableBackendError(
            f"The backend {info.name!r} of {info.origin} is not usable here: {reason}. "
            "`accel-streams doctor` shows the state of every backend.",
            name=info.name,
            distributions=[info.origin],
            reason=reason,
        )
    return backend


def _outcome(
    info: BackendInfo, attempt: Callable[[BackendInfo], Backend], limit: float | None = None
) -> tuple[BackendInfo, Backend | None]:
    """Return what ``attempt`` gives, its failure turned into a state and one line of reason."""
    if info.state == "conflict":
        return info, None
    try:
        with time_limit(limit):
            backend = attempt(info)
    except BackendError as exc:
        return info._replace(state=_STATES[type(exc)], reason=exc.reason), None
    return (info._replace(state="usable") if attempt is _usable else info), backend


def _patiently(info: BackendInfo) -> tuple[BackendInfo, Backend | None]:
    """Return the outcome of probing ``info``, and say who it is that keeps the program waiting."""
    message = (
        f"The backend {info.name!r} of {info.origin} has not said for {_PATIENCE:g} s whether it "
        f"is usable here. {_REMEDY} Or name the backend that is wanted, as in "
        "DS_ACCELERATOR=accel_streams:cuda: then no other is asked."
    )
    with announce_after(_PATIENCE, message):
        return _outcome(info, _usable)


def _warn_once(info: BackendInfo) -> None:
    """Warn about a backend that nobody has named and that can't be loaded."""
    key = (info.origin, info.value)
    if info.state in FAULTY and key not in _warned:
        _warned.add(key)
        warnings.warn(fault(info), BackendWarning, stacklevel=3)


def _reported_device_type() -> str | None:
    """Return the type of the accelerator that torch reports, None when it reports none."""
    try:
        import torch
    except ImportError:
        return None
    if hasattr(torch, "accelerator"):  # From torch 2.6 on.
        device = torch.accelerator.current_accelerator()
        return None if device is None else device.type
    return "cuda" if torch.cuda.is_available() else None


def _unknown(name: str, known: Sequence[str]) -> UnknownBackendError:
    import difflib  # Only here: `accel-streams list` would pay for it each time.

    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    hidden = ""
    if name in {normalise(point.name) for point in installed_entry_points()}:
        hidden = " It is installed, but ACCEL_STREAMS_PLUGINS leaves it out."
    return UnknownBackendError(
        f"There is no backend called {name!r}.{hidden} "
        f"Registered: {', '.join(names) or 'none'}.{guess} "
        "Correct the name, or install the distribution that registers it.",
        name=name,
        known=names,
    )


def _no_choice(
    infos: Sequence[BackendInfo],
    candidates: Sequence[BackendInfo],
    reported: str | None,
    matching: Sequence[str],
) -> UnavailableBackendError:
    lines = [
        f"  {info.name}: {info.state}" + (f", {info.reason}" if info.reason else "")
        for info in candidates
    ]
    lines += [
        f"  {info.name}: simulated, never chosen by itself"
        for info in infos
        if info.name in _NEVER_BY_ITSELF
    ]
    device = f"torch reports the device {reported!r}" if reported else "torch reports no device"
    problem = (
        f"and several backends are usable: {', '.join(matching)}"
        if matching
        else "and no backend is usable"
    )
    return UnavailableBackendError(
        f"No backend can be chosen: {device}, {problem}.\n"
        + "\n".join(lines or ["  (none is registered)"])
        + "\nName one, as in DS_ACCELERATOR=accel_streams:cuda or accel_streams.install('cuda')."
    )


def _broken(info: BackendInfo, reason: str) -> BrokenBackendError:
    return BrokenBackendError(
        f"The backend {info.name!r} of {info.origin} is broken: {reason}. "
        "Reinstall it, or report this to its authors.",
        name=info.name,
        distributions=[info.origin],
        reason=reason,
    )


def _mismatch(api_version: object) -> str:
    if api_version is None:
        return f"has no api_version; this accel_streams supports {API_VERSION}"
    newer = isinstance(api_version, int) and api_version > API_VERSION
    remedy = "upgrade accel_streams" if newer else "upgrade the backend"
    return (
        f"was written for version {api_version!r} of the Backend protocol; "
        f"this accel_streams supports {API_VERSION}: {remedy}"
    )
