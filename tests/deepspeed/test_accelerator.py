"""The accelerators: complete for the installed DeepSpeed, and true about their device."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_streams import Capabilities, Ordering
from zero_recording import RecordingBackend, RecordingStream

pytest.importorskip("deepspeed")

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator
from deepspeed.accelerator.mlu_accelerator import MLU_Accelerator

from accel_streams.deepspeed import _ops
from accel_streams.deepspeed._accelerator import GenericAccelerator
from accel_streams.deepspeed._mixin import with_streams

ASYNC = Capabilities(Ordering.ASYNC)


class NovaBackend(RecordingBackend):
    """A vendor's device; "meta" is a device type torch knows and whose tensors cost nothing."""

    name = "nova"
    device_type = "meta"
    communication_backend = "nova_ccl"
    visible_devices_env = "NOVA_VISIBLE_DEVICES"
    compile_backend = "eager"

    def device_module(self) -> Any:
        return self.module

    module: Any = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 4, current_device=lambda: 1
    )


def nova(**functions: Any) -> Any:
    backend = NovaBackend()
    backend.module = SimpleNamespace(**{**vars(NovaBackend.module), **functions})
    return GenericAccelerator(backend)


def _members(kind: Callable[[Any], bool]) -> list[str]:
    return sorted(
        name
        for name, value in vars(DeepSpeedAccelerator).items()
        if kind(value) and not name.startswith("_")
    )


METHODS = _members(inspect.isfunction)
PROPERTIES = _members(lambda value: isinstance(value, property))


def _takes(offered: inspect.Signature, asked: inspect.Signature) -> str | None:
    """Return why a caller of ``asked`` could not call ``offered`` in its place."""
    theirs, ours = list(asked.parameters.values()), list(offered.parameters.values())
    for index, parameter in enumerate(theirs):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if index >= len(ours) or ours[index].name != parameter.name:
            return f"has no {parameter.name!r} in place {index}"
        if parameter.default is not parameter.empty and ours[index].default is parameter.empty:
            return f"demands {parameter.name!r}"
    demanded = [p.name for p in ours[len(theirs) :] if p.default is p.empty]
    return f"also demands {demanded}" if demanded else None


@pytest.mark.parametrize("accelerator_class", [GenericAccelerator, CUDA_Accelerator])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_called_as_the_abstract_class_says(
    name: str, accelerator_class: type
) -> None:
    if accelerator_class is CUDA_Accelerator:
        accelerator_class = type(with_streams(CUDA_Accelerator, RecordingBackend()))
    offered = inspect.signature(getattr(accelerator_class, name))
    asked = inspect.signature(getattr(DeepSpeedAccelerator, name))
    assert _takes(offered, asked) is None


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_is_one(name: str) -> None:
    assert isinstance(inspect.getattr_static(GenericAccelerator, name), property)


def test_nothing_is_left_abstract() -> None:
    assert not GenericAccelerator.__abstractmethods__
    assert METHODS
    assert PROPERTIES


@pytest.mark.parametrize(
    ("ordering", "synchronized", "resolves"),
    [
        (Ordering.ASYNC, False, False),
        (Ordering.STREAM_ORDERED, False, True),
        (Ordering.SYNCHRONOUS, True, True),
    ],
)
def test_it_is_true_about_the_order_of_streams(
    ordering: Ordering, synchronized: bool, resolves: bool
) -> None:
    backend = NovaBackend(Capabilities(ordering))
    for accelerator in (GenericAccelerator(backend), with_streams(MLU_Accelerator, backend)):
        assert accelerator.is_synchronized_device() is synchronized
        assert accelerator.resolves_data_dependency() is resolves
        assert accelerator.use_host_timers() is synchronized
    assert GenericAccelerator(backend).handles_memory_backpressure() is resolves


class TestDeepSpeedsOwnClass:
    @pytest.mark.parametrize("base", [CUDA_Accelerator, MLU_Accelerator])
    def test_stays_what_it_was(self, base: Any) -> None:
        accelerator = with_streams(base, RecordingBackend())
        assert isinstance(accelerator, base)
        assert type(accelerator).__name__ == base.__name__
        assert accelerator.device_name() == base().device_name()
        assert accelerator._name == base()._name
        assert accelerator.communication_backend_name() == base().communication_backend_name()
        assert accelerator.op_builder_dir() == base().op_builder_dir()

    @pytest.mark.parametrize("base", [CUDA_Accelerator, MLU_Accelerator])
    def test_exports_the_settings_besides_its_own(self, base: Any) -> None:
        exported = with_streams(base, RecordingBackend()).export_envs()
        assert {*base().export_envs(), "DS_ACCELERATOR", "ACCEL_STREAMS"} == set(exported)

    def test_takes_its_streams_from_the_backend(self) -> None:
        backend = RecordingBackend()
        stream = backend.new_stream()
        accelerator = with_streams(CUDA_Accelerator, backend)
        with accelerator.stream(stream):
            assert accelerator.current_stream().number == stream.number
            assert accelerator.default_stream().number == 0
            with accelerator.stream(None):
                assert accelerator.current_stream().number == stream.number
        assert accelerator.current_stream().number == RecordingStream(0).number


class TestDevice:
    def test_names(self) -> None:
        accelerator = nova()
        assert accelerator.device_name() == accelerator._name == "meta"
        assert accelerator.device_name(2) == "meta:2"
        assert accelerator.current_device_name() == "meta:1"
        assert accelerator.device(2) == torch.device("meta", 2)
        assert accelerator.device() == torch.device("meta")
        assert accelerator.communication_backend_name() == "nova_ccl"
        assert accelerator.device_count() == 4
        assert accelerator.is_available() is True

    def test_is_loaded_when_the_accelerator_is_made(self) -> None:
        class Broken(NovaBackend):
            def device_module(self) -> Any:
                raise ImportError("no driver")

        with pytest.raises(ImportError, match="no driver"):
            GenericAccelerator(Broken())

    def test_launcher_interface(self) -> None:
        accelerator = nova()
        assert accelerator.visible_devices_envs() == ["NOVA_VISIBLE_DEVICES"]
        environment: dict[str, str] = {}
        accelerator.set_visible_devices_envs(environment, [2, 3])
        assert environment == {"NOVA_VISIBLE_DEVICES": "2,3"}
        assert accelerator.export_envs() == ["DS_ACCELERATOR", "ACCEL_STREAMS"]

    def test_tensors(self) -> None:
        accelerator = nova()
        for name, dtype in {
            "BFloat16Tensor": torch.bfloat16,
            "ByteTensor": torch.uint8,
            "DoubleTensor": torch.double,
            "FloatTensor": torch.float,
            "HalfTensor": torch.half,
            "IntTensor": torch.int,
            "LongTensor": torch.long,
        }.items():
            tensor = getattr(accelerator, name)([1, 2])
            assert (tensor.dtype, tensor.device.type) == (dtype, "meta")
            assert accelerator.on_accelerator(tensor)
        assert not accelerator.on_accelerator(torch.zeros(1))

    def test_dtypes(self) -> None:
        assert nova().supported_dtypes() == [torch.float, torch.half, torch.bfloat16]
        only_bf16 = nova(get_amp_supported_dtype=lambda: [torch.bfloat16])
        assert only_bf16.supported_dtypes() == [torch.float, torch.bfloat16]
        assert nova(is_bf16_supported=lambda: False).is_bf16_supported() is False

    def test_memory(self) -> None:
        accelerator = nova(
            memory_allocated=lambda device=None: 30,
            get_device_properties=lambda device: SimpleNamespace(total_memory=100 + device),
        )
        assert accelerator.total_memory() == 101
        assert accelerator.total_memory(2) == 102
        assert accelerator.available_memory() == 71
        assert accelerator.max_memory_reserved() == accelerator.memory_cached() == 0
        assert accelerator.memory_stats() == {}
        accelerator.reset_max_memory_allocated()
        accelerator.empty_cache()
        assert nova(mem_get_info=lambda: (7, 9)).available_memory() == 7
        assert nova(mem_get_info=lambda: (7, 9)).total_memory() == 9

    def test_unknown_memory_is_an_error(self) -> None:
        with pytest.raises(NotImplementedError, match="mem_get_info"):
            nova().available_memory()

    def test_nothing_is_passed_for_the_current_device(self) -> None:
        asked: list[tuple[Any, ...]] = []
        accelerator = nova(
            synchronize=lambda *device: asked.append(device),
            get_rng_state=lambda *device: asked.append(device),
            set_rng_state=lambda state, *device: asked.append(device),
        )
        for device in ((), (3,)):
            accelerator.synchronize(*device)
            accelerator.get_rng_state(*device)
            accelerator.set_rng_state(None, *device)
        assert asked == [()] * 3 + [(3,)] * 3

    def test_events_of_a_torch_that_has_none_for_every_device(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(torch, "Event", raising=False)
        assert nova(Event=SimpleNamespace).Event is SimpleNamespace
        with pytest.raises(NotImplementedError, match="has no Event"):
            _ = nova().Event

    def test_graphs_are_refused_instead_of_replaying_nothing(self) -> None:
        accelerator = nova()
        for use in (accelerator.create_graph, lambda: accelerator.capture_to_graph(None)):
            with pytest.raises(NotImplementedError, match="enable_cuda_graph"):
                use()

    def test_compile_backend(self) -> None:
        accelerator = nova()
        assert accelerator.get_compile_backend() == "eager"
        accelerator.set_compile_backend("aot_eager")
        assert accelerator.get_compile_backend() == "aot_eager"
        with pytest.raises(ValueError, match="Choose one of"):
            accelerator.set_compile_backend("no such backend")

    def test_lazy_call(self) -> None:
        assert nova().lazy_call(lambda: 3) == 3
        assert nova(_lazy_call=lambda callback: [callback()]).lazy_call(lambda: 3) == [3]


class TestOps:
    def test_an_op_without_an_implementation_says_so_when_loaded(self) -> None:
        builder = nova().create_op_builder("QuantizerBuilder")
        assert builder.is_compatible() is False
        with pytest.raises(NotImplementedError, match=r"'Quantizer'.*'meta'"):
            builder.load()

    def test_there_is_a_builder_for_every_name(self) -> None:
        from deepspeed.ops import op_builder

        names = [name for name in vars(op_builder) if name.endswith("Builder")]
        assert len(names) > 10
        assert all(nova().get_op_builder(name) is not None for name in names)

    def test_host_ops_are_deepspeeds_own(self) -> None:
        package = importlib.import_module(nova().op_builder_dir())
        assert nova().get_op_builder("CPUAdamBuilder") is package.CPUAdamBuilder

    @pytest.mark.parametrize("adam_w", [True, False])
    def test_fused_adam_is_adam(self, adam_w: bool) -> None:
        torch.manual_seed(0)
        param = torch.nn.Parameter(torch.randn(20))
        settings = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
        optimizer_class = torch.optim.AdamW if adam_w else torch.optim.Adam
        reference = optimizer_class([param], **settings)  # type: ignore[arg-type]
        fused, moments = param.detach().clone(), [torch.zeros(20), torch.zeros(20)]
        adam = nova().create_op_builder("FusedAdamBuilder").load()
        for step in range(1, 4):
            param.grad = torch.randn(20)
            reference.step()
            adam.multi_tensor_adam(
                0, None, [[param.grad], [fused], *([moment] for moment in moments)],
                1e-2, 0.8, 0.95, 1e-6, step, int(adam_w), 1, 0.1,
            )  # fmt: skip
            torch.testing.assert_close(fused, param.detach())

    def test_builders_are_made_once(self) -> None:
        assert _ops.op_builder("LambBuilder", "meta") is _ops.op_builder("LambBuilder", "meta")
