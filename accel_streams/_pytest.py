"""The pytest plug-in: tests that fail when streams race, and the conformance suite as tests.

pytest imports this module at every start, so it imports nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from accel_streams.races import Watch

__all__ = ["pytest_addoption", "pytest_configure", "pytest_runtest_call", "race_watch"]

_MARKER = (
    "no_races(device=None): watch the device while the test runs, and fail the test when there is "
    "a race between streams, or when nothing was done on the device."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that asks for the conformance suite."""
    parser.getgroup("accel-streams").addoption(
        "--accel-backend",
        metavar="NAME",
        help="also check what the streams and events of this backend do, a test for each property",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, for those who ask for strict ones, and the suite where it is wanted."""
    config.addinivalue_line("markers", _MARKER)
    backend = config.getoption("accel_backend")
    if backend is not None:
        from accel_streams._pytest_check import MARKER, ConformancePlugin

        config.addinivalue_line("markers", MARKER)
        config.pluginmanager.register(ConformancePlugin(backend), "accel_streams_conformance")


@pytest.fixture
def race_watch() -> Iterator[Watch]:
    """Watch the device while the test runs; the test decides what to make of what was seen.

    Gives the same as ``with accel_streams.races.watch() as seen``.
    """
    from accel_streams.races import watch

    with watch() as seen:
        yield seen


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Watch a test that has the marker; its fixtures are not watched."""
    marker = item.get_closest_marker("no_races")
    if marker is None:
        yield
        return
    from accel_streams.races import watch

    with watch(*marker.args, **marker.kwargs) as seen:
        outcome = yield
    if outcome.excinfo is None:  # type: ignore[attr-defined]
        try:
            seen.check()
        except Exception as exc:
            outcome.force_exception(exc)  # type: ignore[attr-defined]
