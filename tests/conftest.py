"""What every test starts from: no settings, bounded hypothesis runs, and made-up backends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from made_up_plugins import BACKEND_SOURCE, Plugins

if TYPE_CHECKING:
    from accel_streams.explore import Runner

# The same examples in every run: a failure in CI is one that everybody can repeat. No deadline,
# because a shared machine is at times ten times slower than it was a moment ago.
settings.register_profile(
    "accel_streams",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("accel_streams")


def _forget_settings() -> None:
    for name in list(os.environ):
        if name == "DS_ACCELERATOR" or name.startswith("ACCEL_STREAMS_"):
            del os.environ[name]


# The developer's own, before any fixture of a module or of the session starts a process.
_forget_settings()


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away what a test has set, by ``install()`` for one; ``monkeypatch`` comes after it."""
    yield
    _forget_settings()


@pytest.fixture(scope="session")
def runner_of() -> Iterator[Callable[[int], Runner]]:
    """Give the runner of a number of ranks: one for all tests, since starting it takes long."""
    from accel_streams.explore import Runner

    with ExitStack() as stack:

        @cache
        def running(ranks: int) -> Runner:
            return stack.enter_context(Runner(ranks=ranks, timeout_s=120, jobs=1))

        yield running


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugins]:
    """Give a place for made-up backends; they are gone from this process afterwards."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield Plugins(folder)
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[name]


@pytest.fixture
def backend_source() -> Callable[..., str]:
    """Give the source of a backend that keeps the contract as far as the registry can see."""

    def make(name: str, *, device_type: str = "made_up", probe: str = "return None") -> str:
        return BACKEND_SOURCE.format(name=name, device_type=device_type, probe=probe)

    return make
