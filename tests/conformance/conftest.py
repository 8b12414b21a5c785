"""The simulated device, as a fixture that leaves no state behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel_streams import fake


@pytest.fixture
def device() -> Iterator[None]:
    """Enable the device in this process, in its usual schedule."""
    fake.enable()
    fake.set_schedule("in-order")
    yield
    fake.set_schedule("in-order")
