"""Where the default stream stands for the current one, and what is needed to hook ZeRO-3."""

from __future__ import annotations

import importlib
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from accel_streams import Capabilities, Ordering
from accel_streams.deepspeed import _versions, _zero3_seams
from accel_streams.deepspeed._mixin import StreamsMixin
from accel_streams.deepspeed._region import default_is_current


class Backend:
    """Streams by name: the current one is never the default one."""

    capabilities = Capabilities(Ordering.ASYNC)

    def current_stream(self, device: object = None) -> str:
        return f"current of {device}"

    def default_stream(self, device: object = None) -> str:
        return f"default of {device}"


@pytest.fixture
def accelerator() -> StreamsMixin:
    accelerator = StreamsMixin()
    accelerator.accel_streams_backend = cast(Any, Backend())
    return accelerator


def test_the_default_stream_is_the_current_one_inside_only(accelerator: StreamsMixin) -> None:
    assert accelerator.default_stream(1) == "default of 1"
    with default_is_current():
        with default_is_current():
            assert accelerator.default_stream(1) == "current of 1"
        assert accelerator.default_stream(1) == "current of 1"
    assert accelerator.default_stream(1) == "default of 1"


def test_an_exception_ends_it(accelerator: StreamsMixin) -> None:
    with pytest.raises(KeyError), default_is_current():
        raise KeyError
    assert accelerator.default_stream() == "default of None"


def test_other_threads_get_the_truth(accelerator: StreamsMixin) -> None:
    seen = []
    with default_is_current():
        thread = threading.Thread(target=lambda: seen.append(accelerator.default_stream()))
        thread.start()
        thread.join(60)
    assert seen == ["default of None"]


@pytest.mark.parametrize("ours", [True, False])
def test_fpdt_computes_on_the_current_stream(
    accelerator: StreamsMixin, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """DeepSpeed's class needs flash-attn, so this is what it does with streams."""

    class Attention:
        @staticmethod
        def forward(ctx: object, x: int) -> tuple[int, object]:
            return x, accelerator.default_stream()

        @staticmethod
        def backward(ctx: object, x: int) -> tuple[int, object]:
            return x, accelerator.default_stream()

    backend = accelerator.accel_streams_backend if ours else None
    monkeypatch.setattr(_zero3_seams, "_backend_to_order", lambda: backend)
    _zero3_seams._hook_fpdt(cast(Any, SimpleNamespace(_FPDTGPUOffloadingAttentionImpl_=Attention)))
    stream = "current of None" if ours else "default of None"
    assert Attention.forward(None, 1) == (1, stream)
    assert Attention.backward(None, 2) == (2, stream)
    assert accelerator.default_stream() == "default of None"


def test_a_layer_asks_for_the_stream_each_time(
    accelerator: StreamsMixin, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DistributedAttention:
        def __init__(self) -> None:
            self.default_stream = accelerator.default_stream()

    monkeypatch.setattr(
        _zero3_seams, "_backend_to_order", lambda: accelerator.accel_streams_backend
    )
    _zero3_seams._hook_ulysses(
        cast(Any, SimpleNamespace(DistributedAttention=DistributedAttention))
    )
    layer = DistributedAttention()
    assert layer.default_stream == "current of None"
    assert not hasattr(layer, "dafult_stream")
    monkeypatch.setattr(_zero3_seams, "_backend_to_order", lambda: None)
    assert layer.default_stream == "default of None"


def test_what_is_missing_for_zero3_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    importlib.import_module("deepspeed.runtime.zero.stage3")
    parameters = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
    coordinator = importlib.import_module("deepspeed.runtime.zero.partitioned_param_coordinator")
    assert _versions.missing_for_zero3() == []
    monkeypatch.delattr(parameters, "free_param")
    monkeypatch.delattr(coordinator.PartitionedParameterCoordinator, "fetch_sub_module")
    assert _versions.missing_for_zero3() == [
        "PartitionedParameterCoordinator.fetch_sub_module",
        "free_param",
    ]
