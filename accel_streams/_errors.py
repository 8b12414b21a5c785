"""Every error this package raises on purpose.

Each message says what happened, what was expected and what to do. What a program may want to know
about the culprit is a field, so that nobody has to parse the message. The fields have defaults
because an exception that travels between processes is rebuilt from its message alone.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AccelStreamsError",
    "BackendConflictError",
    "BackendError",
    "BackendWarning",
    "BrokenBackendError",
    "BuildError",
    "FakeDeviceError",
    "IncompatibleBackendError",
    "NothingWatchedError",
    "RaceError",
    "RaceWarning",
    "SettingError",
    "TraceFormatError",
    "UnavailableBackendError",
    "UnknownBackendError",
    "UnsupportedDeepSpeedError",
]


class AccelStreamsError(RuntimeError):
    """The base of every error raised by this package."""


class BackendError(AccelStreamsError):
    """A backend was asked for and can't be given.

    ``name`` is the backend's name as registered, empty when none was named; ``distributions`` the
    distributions that register it, each as ``name version``; ``reason`` one line of why.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str = "",
        distributions: Sequence[str] = (),
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.name = name
        self.distributions = tuple(distributions)
        self.reason = reason


class UnknownBackendError(BackendError):
    """No backend of that name is registered; ``known`` holds the names that are."""

    def __init__(self, message: str, *, name: str = "", known: Sequence[str] = ()) -> None:
        super().__init__(message, name=name)
        self.known = tuple(known)


class UnavailableBackendError(BackendError):
    """The backend is in order, and not usable on this machine.

    Without a ``name``: no backend was named, and none could be chosen.
    """


class BrokenBackendError(BackendError):
    """Loading or probing the backend failed; what it raised is chained as the cause."""


class IncompatibleBackendError(BackendError):
    """The backend was written for another version of the Backend protocol."""

    def __init__(
        self,
        message: str,
        *,
        name: str = "",
        distributions: Sequence[str] = (),
        reason: str = "",
        api_version: object = None,
    ) -> None:
        super().__init__(message, name=name, distributions=distributions, reason=reason)
        self.api_version = api_version


class BackendConflictError(BackendError):
    """Several registrations claim one name; ``distributions`` names every claimant."""


class BackendWarning(UserWarning):
    """A registered backend that nobody named can't be loaded; the others go on working."""


class SettingError(AccelStreamsError, ValueError):
    """An environment variable has a value that means nothing.

    ``variable`` and ``value`` are the culprit, ``allowed`` describes what would have been right.
    """

    def __init__(
        self, message: str, *, variable: str = "", value: str = "", allowed: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.variable = variable
        self.value = value
        self.allowed = tuple(allowed)


class UnsupportedDeepSpeedError(AccelStreamsError):
    """The installed DeepSpeed lacks what has to be hooked.

    ``version`` is the one installed, ``supported`` the declared range, ``missing`` the names of the
    seams that weren't found.
    """

    def __init__(
        self, message: str, *, version: str = "", supported: str = "", missing: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.version = version
        self.supported = supported
        self.missing = tuple(missing)


class FakeDeviceError(AccelStreamsError):
    """The simulated device can't do what was asked of it."""


class BuildError(FakeDeviceError):
    """The fake device's extension couldn't be built or loaded; ``log`` is the build's output."""

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class RaceError(AccelStreamsError):
    """Races between streams were found; ``races`` holds their reports, the message shows them."""

    def __init__(self, message: str, *, races: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.races = tuple(races)


class RaceWarning(UserWarning):
    """A race between streams was found while ``ACCEL_STREAMS_RACES=warn`` is set."""


class NothingWatchedError(AccelStreamsError):
    """No operation on the device was seen, so that having seen no race means nothing."""


class TraceFormatError(AccelStreamsError, ValueError):
    """A file isn't a readable trace; ``path`` and ``line`` (from 1; 0: the whole) say where."""

    def __init__(self, message: str, *, path: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.line = line
