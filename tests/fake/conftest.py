# mypy: disable-error-code="attr-defined"
# torch.fake comes into being at run time.
"""The simulated device, as a fixture that leaves no state behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from accel_streams import fake


@pytest.fixture(scope="session", autouse=True)
def _enabled() -> None:
    fake.enable()


@pytest.fixture(autouse=True)
def _clean_device() -> Iterator[None]:
    torch.fake.set_device(0)
    fake.set_schedule("in-order")
    fake.reset_counters()
    yield
    for index in range(torch.fake.device_count()):
        torch.fake.synchronize(index)
    fake.set_queue_capacity(4096)


@pytest.fixture(params=fake.SCHEDULES)
def schedule(request: pytest.FixtureRequest) -> str:
    """Run the test under every schedule."""
    name = str(request.param)
    fake.set_schedule(name, seed=7)
    return name
