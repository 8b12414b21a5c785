"""What the first use of a device takes is no fault of the property that happens to come first."""

from __future__ import annotations

import time
from typing import Any

import pytest

from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.conformance import Result, check_backend

LIMIT_S = 1.0


class _Slow(CpuFakeBackend):
    """A device that has to be built when it is first used."""

    built = False

    def device_module(self) -> Any:
        if not self.built:
            time.sleep(2 * LIMIT_S)
            self.built = True
        return super().device_module()


class _Broken(_Slow):
    """A device that can't be built."""

    def device_module(self) -> Any:
        raise OSError("no compiler")


@pytest.mark.parametrize("kind", [_Slow, _Broken])
def test_it_is_not_within_a_propertys_limit(kind: type[_Slow]) -> None:
    (outcome,) = check_backend(kind(), only=["EVT-02"], timeout_s=LIMIT_S)
    if kind is _Slow:
        assert outcome.result is Result.PASSED, outcome
    else:
        assert outcome.result is Result.FAILED
        assert "no compiler" in outcome.detail
