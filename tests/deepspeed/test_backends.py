"""The adapters that need no hardware to be tried, and what the others say without theirs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from accel_streams import Backend, Ordering, StreamId, load
from accel_streams.backends import privateuse1
from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.backends.cuda import CudaBackend
from accel_streams.backends.mlu import MluBackend
from accel_streams.backends.privateuse1 import PrivateUse1Backend
from torch_release import needs_simulated_device


class BareBackend(PrivateUse1Backend):
    """A device whose vendor has registered it with torch, and written no module around it."""

    name = "bare"
    device_type = "fake"
    communication_backend = "fccl"
    visible_devices_env = "FAKE_VISIBLE_DEVICES"
    description = url = ""

    def device_module(self) -> Any:
        return SimpleNamespace(is_available=lambda: True)


@pytest.fixture(params=[CpuFakeBackend, BareBackend])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give the simulated device, through its own classes and through torch's general ones."""
    CpuFakeBackend().device_module().set_device(0)
    yield request.param()
    torch.accelerator.synchronize()


def test_the_built_in_backends_keep_the_protocol() -> None:
    # Checked by mypy; at run time the registry looks at the members.
    backends: list[Backend] = [CudaBackend(), MluBackend(), CpuFakeBackend(), BareBackend()]
    for backend in backends[:3]:
        assert type(load(backend.name)) is type(backend)
        assert backend.capabilities.ordering is Ordering.ASYNC


@needs_simulated_device
@pytest.mark.timeout(300)
class TestSimulatedDevice:
    def test_streams_are_told_apart_by_id(self, backend: Any) -> None:
        default, new = backend.default_stream(), backend.new_stream()
        assert backend.stream_id(default) == StreamId("fake", 0, 0)
        assert backend.stream_id(backend.current_stream()) == backend.stream_id(default)
        assert backend.stream_id(new) != backend.stream_id(default)
        with backend.use_stream(new):
            assert backend.stream_id(backend.current_stream()) == backend.stream_id(new)
            # Also under another one: some vendors return the current stream here.
            assert backend.stream_id(backend.default_stream()) == backend.stream_id(default)
        assert backend.stream_id(backend.current_stream()) == backend.stream_id(default)

    def test_streams_of_another_device(self, backend: Any) -> None:
        for device in (1, "fake:1", torch.device("fake", 1)):
            assert backend.stream_id(backend.default_stream(device)) == StreamId("fake", 1, 0)
            assert backend.stream_id(backend.current_stream(device)) == StreamId("fake", 1, 0)
            assert backend.stream_id(backend.new_stream(device)).device_index == 1

    def test_a_stream_waits_for_an_event_and_the_host_does_not(self, backend: Any) -> None:
        from accel_streams import fake

        first, second = backend.new_stream(), backend.new_stream(priority=-1)
        event, done = backend.new_event(), backend.new_event(timing=True)
        gate = fake.hold(first)
        with backend.use_stream(first):
            value = torch.ones(4, device="fake")
        backend.record(event, first)
        backend.wait(second, event)
        with backend.use_stream(second):
            doubled = value * 2
        backend.record(done, second)
        assert not backend.query(event)
        assert not backend.query(done)
        gate.release()
        backend.synchronize(done)
        assert backend.query(event)
        backend.keep_alive(value, second)
        backend.synchronize()
        assert doubled.tolist() == [2.0] * 4

    def test_memory_in_use_elsewhere_is_kept_from_reuse(self, backend: Any) -> None:
        from accel_streams import fake

        other = backend.new_stream()
        value = torch.ones(1000, device="fake")
        event = backend.new_event()
        backend.record(event, backend.current_stream())
        backend.wait(other, event)
        gate = fake.hold(other)
        with backend.use_stream(other):
            total = value.sum()
        backend.keep_alive(value, other)
        del value
        torch.zeros(1000, device="fake")
        backend.synchronize(_recorded(backend, backend.current_stream()))
        gate.release()
        backend.synchronize()
        assert total.item() == 1000


def _recorded(backend: Any, stream: Any) -> Any:
    event = backend.new_event()
    backend.record(event, stream)
    return event


@needs_simulated_device
@pytest.mark.timeout(300)
def test_a_stream_is_made_current_where_torchs_own_is_no_context_manager() -> None:
    """As up to torch 2.6: the stream and the device of before come back, also on an error."""
    backend = CpuFakeBackend()
    module = backend.device_module()
    module.set_device(0)
    outer, inner = module.Stream(), module.Stream(1)
    with backend.use_stream(outer):
        with contextlib.suppress(ValueError), privateuse1._current(inner):
            assert module.current_device() == 1
            assert module.current_stream() == inner
            raise ValueError
        assert module.current_device() == 0
        assert module.current_stream() == outer
        assert module.current_stream(1) == module.default_stream(1)


class TestProbe:
    @needs_simulated_device
    def test_without_a_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler")
        reason = CpuFakeBackend().probe()
        assert reason is not None
        assert "no-such-compiler" in reason

    @pytest.mark.parametrize("version", ["2.5.1+cpu", "2.1.0"])
    def test_with_an_old_torch(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        monkeypatch.setattr(torch, "__version__", version)
        assert "needs 2.6 or newer" in str(CpuFakeBackend().probe())

    @needs_simulated_device
    @pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "3.0.0a0+git123"])
    def test_with_a_recent_torch(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        monkeypatch.setattr(torch, "__version__", version)
        assert CpuFakeBackend().probe() is None

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
    def test_without_a_gpu(self) -> None:
        reason = CudaBackend().probe()
        assert reason is not None
        assert ("without CUDA" in reason) == (torch.version.cuda is None)

    def test_without_the_vendors_package(self) -> None:
        assert "torch_mlu" in str(MluBackend().probe())

    def test_without_a_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch_mlu", ModuleType("torch_mlu"))
        # Whether or not the simulated device has been enabled in this process.
        for holder, said in (
            ("privateuseone", "registers no torch.mlu"),
            ("other", "'other' has taken it in this process"),
        ):
            monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda name=holder: name)
            assert said in str(MluBackend().probe())
        module = SimpleNamespace(is_available=lambda: False)
        monkeypatch.setattr(torch, "mlu", module, raising=False)
        assert "finds no device" in str(MluBackend().probe())
        module.is_available = lambda: True
        assert MluBackend().probe() is None


class TestMlu:
    @pytest.fixture
    def mlu(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Stand in for torch_mlu as it is for torch 2.1, current stream 7 on the device 1."""
        package: Any = ModuleType("torch_mlu")
        package._MLUC = SimpleNamespace(_mlu_getDefaultStream=lambda index: (0, index, 20))
        module = SimpleNamespace(
            Stream=SimpleNamespace,
            _lazy_init=lambda: None,
            current_device=lambda: 1,
            # The fault: this is the current stream.
            default_stream=lambda device=None: SimpleNamespace(stream_id=7, device_index=1),
        )
        monkeypatch.setitem(sys.modules, "torch_mlu", package)
        monkeypatch.setattr(torch, "mlu", module, raising=False)
        return package

    @pytest.mark.parametrize(("device", "index"), [(None, 1), (0, 0), (2, 2)])
    def test_the_default_stream_is_not_the_current_one(
        self, mlu: Any, device: int | None, index: int
    ) -> None:
        backend = MluBackend()
        assert backend.stream_id(backend.default_stream(device)) == StreamId("mlu", index, 0)

    def test_without_the_binding_torch_mlu_is_believed(self, mlu: Any) -> None:
        del mlu._MLUC._mlu_getDefaultStream
        backend = MluBackend()
        assert backend.stream_id(backend.default_stream()) == StreamId("mlu", 1, 7)
