"""Every abstract method of every supported DeepSpeed, called on a PrivateUse1 device.

The table is the union over the releases 0.15.2 to 0.19.8, so each release is answered for whichever
one is installed: what an older or a newer one asks for is there as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("deepspeed")

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.deepspeed._accelerator import GenericAccelerator

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("c++") is None, reason="the simulated device needs a C++ compiler"
    ),
]


@pytest.fixture(scope="module")
def accelerator() -> Iterator[Any]:
    made = GenericAccelerator(CpuFakeBackend())
    made.set_device(0)
    yield made
    made.set_device(0)
    made.synchronize()


def _is_bytes(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_stream(value: object) -> bool:
    return isinstance(value, torch.Stream) and value.device.type == "fake"


def _makes(dtype: torch.dtype) -> Callable[[Any], bool]:
    def check(constructor: Any) -> bool:
        tensor = constructor([1, 2])
        return bool(
            tensor.dtype is dtype and tensor.device.type == "fake" and tensor.tolist() == [1, 2]
        )

    return check


def _random_state(a: Any) -> bool:
    a.manual_seed(3)
    state = a.get_rng_state()
    first = torch.rand(4, device="fake").tolist()
    a.set_rng_state(state)
    again = torch.rand(4, device="fake").tolist()
    a.set_rng_state(a.get_rng_state(0), 0)
    return bool(first == again and state.device.type == "cpu" and state.dtype is torch.uint8)


def _seeds(a: Any) -> bool:
    a.manual_seed(11)
    first = torch.rand(3, device="fake").tolist()
    a.manual_seed_all(11)
    second = torch.rand(3, device="fake").tolist()
    return bool(first == second and a.initial_seed() == 11)


def _devices(a: Any) -> bool:
    before = a.current_device()
    a.set_device(1)
    try:
        name = a.current_device_name()
        return bool(a.current_device() == 1 and name == "fake:1" and before == 0)
    finally:
        a.set_device(before)


def _streams(a: Any) -> bool:
    stream = a.Stream()
    with a.stream(stream):
        inside = a.current_stream()
        default = a.default_stream()
    with a.stream(None):
        outside = a.current_stream(0)
    return bool(inside == stream and default == outside == a.default_stream(0) != stream)


def _refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except NotImplementedError:
        return True
    return False


def _visible(a: Any) -> bool:
    environment: dict[str, str] = {}
    a.set_visible_devices_envs(environment, [1, 3])
    return environment == dict.fromkeys(a.visible_devices_envs(), "1,3")


def _compile_backend(a: Any) -> bool:
    before = a.get_compile_backend()
    a.set_compile_backend("eager")
    chosen = a.get_compile_backend()
    a.set_compile_backend(before)
    return bool(chosen == "eager" and a.get_compile_backend() == before)


def _peaks(a: Any) -> bool:
    a.synchronize()
    a.reset_peak_memory_stats()
    base = a.memory_allocated()
    held = torch.zeros(1 << 20, device="fake")
    a.synchronize(0)
    peak = a.max_memory_allocated()
    size = held.numel() * held.element_size()
    del held
    a.reset_max_memory_allocated()
    a.reset_max_memory_cached(0)
    return bool(peak - base >= size)


CALLS: dict[str, Callable[[Any], bool]] = {
    "BFloat16Tensor": lambda a: _makes(torch.bfloat16)(a.BFloat16Tensor),
    "ByteTensor": lambda a: _makes(torch.uint8)(a.ByteTensor),
    "DoubleTensor": lambda a: _makes(torch.double)(a.DoubleTensor),
    "Event": lambda a: a.Event(enable_timing=True).query() is True,
    "FloatTensor": lambda a: _makes(torch.float)(a.FloatTensor),
    "HalfTensor": lambda a: _makes(torch.half)(a.HalfTensor),
    "IntTensor": lambda a: _makes(torch.int)(a.IntTensor),
    "LongTensor": lambda a: _makes(torch.long)(a.LongTensor),
    "Stream": lambda a: _is_stream(a.Stream()),
    "amp": lambda a: a.amp() is None or hasattr(a.amp(), "autocast"),
    "available_memory": lambda a: 0 < a.available_memory() <= a.total_memory(0),
    "build_extension": lambda a: a.build_extension().__name__ == "BuildExtension",
    "capture_to_graph": lambda a: _refuses(
        lambda: a.capture_to_graph(None, pool=None, stream=None)
    ),
    "communication_backend_name": lambda a: a.communication_backend_name() == "fccl",
    "create_graph": lambda a: _refuses(a.create_graph),
    "create_op_builder": lambda a: a.create_op_builder("NoSuchBuilder") is not None,
    "current_device": lambda a: type(a.current_device()) is int,
    "current_device_name": lambda a: a.current_device_name() == "fake:0",
    "current_stream": lambda a: _is_stream(a.current_stream()) and _is_stream(a.current_stream(0)),
    "default_generator": lambda a: isinstance(a.default_generator(0), torch.Generator),
    "default_stream": _streams,
    "device": lambda a: a.device(1) == torch.device("fake", 1),
    "device_count": lambda a: a.device_count() >= 2,
    "device_name": lambda a: (a.device_name(), a.device_name(1)) == ("fake", "fake:1"),
    "empty_cache": lambda a: a.empty_cache() is None,
    "export_envs": lambda a: set(a.export_envs()) == {"DS_ACCELERATOR", "ACCEL_STREAMS"},
    "get_compile_backend": _compile_backend,
    "get_op_builder": lambda a: isinstance(a.get_op_builder("NoSuchBuilder"), type),
    "get_rng_state": _random_state,
    "handles_memory_backpressure": lambda a: a.handles_memory_backpressure() is False,
    "initial_seed": _seeds,
    "is_available": lambda a: a.is_available() is True,
    "is_bf16_supported": lambda a: a.is_bf16_supported() is True,
    "is_fp16_supported": lambda a: a.is_fp16_supported() is True,
    "is_pinned": lambda a: a.is_pinned(torch.ones(2)) is False,
    "is_synchronized_device": lambda a: a.is_synchronized_device() is False,
    "is_triton_supported": lambda a: a.is_triton_supported() is False,
    "lazy_call": lambda a: a.lazy_call(lambda: 7) == 7,
    "manual_seed": _seeds,
    "manual_seed_all": _seeds,
    "max_memory_allocated": _peaks,
    "max_memory_cached": lambda a: _is_bytes(a.max_memory_cached(0)),
    "max_memory_reserved": lambda a: _is_bytes(a.max_memory_reserved(0)),
    "memory_allocated": lambda a: _is_bytes(a.memory_allocated(0)),
    "memory_cached": lambda a: _is_bytes(a.memory_cached(0)),
    "memory_reserved": lambda a: _is_bytes(a.memory_reserved(0)),
    "memory_stats": lambda a: isinstance(a.memory_stats(0), dict) and bool(a.memory_stats()),
    "on_accelerator": lambda a: a.on_accelerator(torch.ones(1, device="fake")),
    "op_builder_dir": lambda a: a.op_builder_dir().endswith("op_builder.cpu"),
    "pin_memory": lambda a: a.is_pinned(a.pin_memory(torch.ones(2))) is True,
    "random": lambda a: a.random() is torch.random,
    "range_pop": lambda a: a.range_pop() is None and a.range_pop(domain="d") is None,
    "range_push": lambda a: a.range_push("m", domain="d", category="c") is None,
    "replay_graph": lambda a: _refuses(lambda: a.replay_graph(None)),
    "reset_max_memory_allocated": _peaks,
    "reset_max_memory_cached": _peaks,
    "reset_peak_memory_stats": _peaks,
    "resolves_data_dependency": lambda a: a.resolves_data_dependency() is False,
    "set_compile_backend": _compile_backend,
    "set_device": _devices,
    "set_rng_state": _random_state,
    "set_visible_devices_envs": _visible,
    "stream": _streams,
    "supported_dtypes": lambda a: {torch.float, torch.half} <= set(a.supported_dtypes()),
    "synchronize": lambda a: a.synchronize() is None and a.synchronize(1) is None,
    "total_memory": lambda a: _is_bytes(a.total_memory()) and a.total_memory(0) > 0,
    "use_host_timers": lambda a: a.use_host_timers() is False,
    "visible_devices_envs": lambda a: a.visible_devices_envs() == ["FAKE_VISIBLE_DEVICES"],
}


@pytest.mark.parametrize("name", CALLS)
def test_it_does_what_its_name_says(accelerator: Any, name: str) -> None:
    assert CALLS[name](accelerator) is True


def test_the_table_has_all_that_this_release_asks_for() -> None:
    """Fails for a release that asks for more: then the accelerator needs it, and the table."""
    asked = {name for name in DeepSpeedAccelerator.__abstractmethods__ if name[0] != "_"}
    assert asked <= set(CALLS)
    assert not GenericAccelerator.__abstractmethods__


def test_it_has_all_of_them_itself_whatever_the_release() -> None:
    """Methods that this release gives no default for, and those that another one gives none for."""
    ours = {
        name
        for base in GenericAccelerator.__mro__
        if base.__module__.startswith("accel_streams.")
        for name in vars(base)
    }
    inherited = {"pin_memory", "is_pinned"}  # from 0.19.5 and 0.19.6 on DeepSpeed's own
    assert set(CALLS) - ours <= inherited


class TestMixedPrecision:
    """What torch asks of a PrivateUse1 device before it lets it autocast and scale."""

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_autocast(self, accelerator: Any, dtype: torch.dtype) -> None:
        model = torch.nn.Linear(4, 4).to("fake")
        with torch.autocast(accelerator.device_name(), dtype=dtype):
            assert model(torch.ones(2, 4, device="fake")).dtype is dtype
        assert model(torch.ones(2, 4, device="fake")).dtype is torch.float

    def test_grad_scaler(self, accelerator: Any) -> None:
        model = torch.nn.Linear(4, 4, bias=False).to("fake")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = torch.amp.GradScaler(accelerator.device_name(), init_scale=4.0, growth_interval=1)
        before = model.weight.detach().cpu()
        for fill, scale in ((1.0, 8.0), (float("inf"), 4.0)):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 4), fill, device="fake")).sum()).backward()
            scaler.step(optimizer)  # the second time it finds no finite gradients, and skips
            scaler.update()
            assert scaler.get_scale() == scale
        # The gradient is 1 everywhere: unscaled, or the step would be four times as long.
        assert torch.equal(before - model.weight.detach().cpu(), torch.full((4, 4), 0.5))
