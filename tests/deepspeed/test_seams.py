"""The hooks on DeepSpeed's optimizer: what they require, and whom they guard."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import accel_streams.deepspeed
from accel_streams import Capabilities, Ordering, UnsupportedDeepSpeedError
from accel_streams.deepspeed import _seams, _versions
from accel_streams.deepspeed._mixin import StreamsMixin
from accel_streams.deepspeed._ordering import ZeroOrdering
from accel_streams.deepspeed._region import REGION
from zero_model import Config, Hook, Param, make_optimizer_class, module_with, train_step
from zero_recording import RecordingBackend, RecordingStream, races_in

HOOKS = [Hook(4, True, index % 2) for index in range(6)]
WRITE, REDUCE = _versions.WRITE.names[0], _versions.REDUCE.names[0]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> RecordingBackend:
    backend = RecordingBackend()
    backend.new_stream()
    monkeypatch.setattr(_seams, "backend_in_use", lambda: backend)
    return backend


def hooked(backend: RecordingBackend, **changes: Any) -> Any:
    """Return an optimizer class that has been hooked; a method given as None is taken away."""
    optimizer_class = make_optimizer_class(Config(), backend)
    for name, value in changes.items():
        if value is None:
            delattr(optimizer_class, name)
        else:
            setattr(optimizer_class, name, value)
    _seams._hook(module_with(optimizer_class))
    return optimizer_class


def params() -> list[Param]:
    return [Param(hook.numel, hook.owned) for hook in HOOKS]


def guards_of(optimizer: Any) -> list[str]:
    return [type(guard).__name__ for guard in _seams._guards_of(optimizer)]


@pytest.mark.parametrize("seam", _seams._WRAPPERS, ids=lambda seam: seam.names[0])
def test_a_missing_seam_is_an_error_when_the_optimizer_is_made(
    backend: RecordingBackend, seam: _versions.Seam
) -> None:
    optimizer_class = hooked(backend, **{seam.names[0]: None})
    with pytest.raises(UnsupportedDeepSpeedError) as caught:
        optimizer_class(params())
    error = caught.value
    assert error.missing == (str(seam),)
    assert error.supported == _versions.SUPPORTED
    assert seam.names[0] in str(error)
    assert _versions.SUPPORTED in str(error)
    # The safe mode is offered where it would work.
    needed = seam in (_versions.ALLOCATE, _versions.REDUCE)
    assert ("ACCEL_STREAMS_ZERO=off" if needed else "ACCEL_STREAMS_ZERO=sync") in str(error)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (WRITE, lambda self, param: None),
        (WRITE, lambda self, param, group, i: None),
        (REDUCE, lambda self, bucket: None),
        (_versions.EPILOGUE.names[0], lambda self, partition: None),
    ],
    ids=["too few parameters", "too many", "other", "one instead of none"],
)
def test_another_signature_is_a_missing_seam(
    backend: RecordingBackend, name: str, method: Any
) -> None:
    optimizer_class = hooked(backend, **{name: method})
    with pytest.raises(UnsupportedDeepSpeedError, match=name):
        optimizer_class(params())


def test_nothing_of_the_model_is_touched_before_the_error(backend: RecordingBackend) -> None:
    made: list[object] = []
    optimizer_class = hooked(backend, **{WRITE: None, "__init__": lambda self, p: made.append(p)})
    with pytest.raises(UnsupportedDeepSpeedError):
        optimizer_class(params())
    assert made == []


@pytest.mark.parametrize("writes_with_super", [True, False])
def test_an_override_that_calls_the_original_is_guarded_once(
    backend: RecordingBackend, writes_with_super: bool
) -> None:
    base = hooked(backend)

    def write(self: Any, param: Param, i: int) -> None:
        getattr(super(own, self), WRITE)(param, i)

    def reduce(self: Any, comm_dtype: Any = None) -> None:
        getattr(super(own, self), REDUCE)(comm_dtype)

    own: Any = type("Own", (base,), {WRITE: write, REDUCE: reduce} if writes_with_super else {})
    train_step(own(params()), backend, HOOKS)
    assert races_in(backend) == []


@pytest.mark.parametrize("mode", ["sync", "off"])
def test_other_modes_need_no_gradient_hook(
    backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("ACCEL_STREAMS_ZERO", mode)
    hooked(backend, **{WRITE: None})(params())


def test_synchronizing_needs_the_reduction(
    backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_STREAMS_ZERO", "sync")
    with pytest.raises(UnsupportedDeepSpeedError, match=REDUCE):
        hooked(backend, **{REDUCE: None})(params())


def test_synchronizing_works_with_unknown_buckets(
    backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_STREAMS_ZERO", "sync")
    optimizer = hooked(backend)(params())
    delattr(optimizer, _seams._GUARDS)
    monkeypatch.setattr(
        _versions, "buckets_of", _raise(_versions.unsupported(["x"], safe_mode=True))
    )
    train_step(optimizer, backend, HOOKS)
    assert backend.host_waits > 0


def _raise(error: Exception) -> Any:
    def raising(*args: object) -> None:
        raise error

    return raising


@pytest.mark.parametrize(
    "attribute", ["overlap_comm", "reduction_stream", "extra_large_param_to_reduce", "ipg_buckets"]
)
def test_a_missing_attribute_is_an_error_when_the_optimizer_is_made(
    backend: RecordingBackend, attribute: str
) -> None:
    optimizer_class = make_optimizer_class(Config(), backend)
    original = optimizer_class.__init__

    def init(self: Any, params: list[Param]) -> None:
        original(self, params)
        delattr(self, attribute)

    optimizer_class.__init__ = init
    _seams._hook(module_with(optimizer_class))
    with pytest.raises(UnsupportedDeepSpeedError, match=attribute):
        optimizer_class(params())


def test_without_the_class_deepspeed_initialize_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package: Any = ModuleType("deepspeed")
    package.initialize = lambda **kwargs: "trained unprotected"
    monkeypatch.setitem(sys.modules, "deepspeed", package)
    _seams._hook(SimpleNamespace(__name__="stage_1_and_2"))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedDeepSpeedError, match="DeepSpeedZeroOptimizer"):
        package.initialize(model=None)


def test_only_our_accelerators_are_guarded(
    backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_seams, "backend_in_use", lambda: None)
    optimizer = hooked(backend)(params())
    train_step(optimizer, backend, HOOKS)
    assert backend.waits == []


def test_an_optimizer_made_before_install_is_guarded_from_then_on(
    backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_seams, "backend_in_use", lambda: None)
    optimizer = hooked(backend)(params())
    monkeypatch.setattr(_seams, "backend_in_use", lambda: backend)
    train_step(optimizer, backend, HOOKS)
    assert backend.waits
    assert guards_of(optimizer) == ["ZeroOrdering", "_Labelling"]


def test_a_subclass_that_defines_a_seam_anew_is_guarded(backend: RecordingBackend) -> None:
    base = hooked(backend)
    original = vars(base)[REDUCE].__wrapped__

    def reduce(self: Any, comm_dtype: Any = None) -> None:
        original(self, comm_dtype)

    own = type("Own", (base,), {REDUCE: reduce})
    train_step(own(params()), backend, HOOKS)
    # Without the wrapper around its own method no reduction would have waited.
    reduction = RecordingStream(2).number
    assert any(waiting == reduction for waiting, _ in backend.waits)


def test_a_class_is_wrapped_once(backend: RecordingBackend) -> None:
    optimizer_class = hooked(backend)
    before = {name: vars(optimizer_class)[name] for name in (WRITE, REDUCE, "step", "__init__")}
    _seams._hook(module_with(optimizer_class))
    assert {name: vars(optimizer_class)[name] for name in before} == before


@pytest.mark.parametrize(
    ("mode", "ordering", "expected"),
    [
        ("track", Ordering.ASYNC, ["ZeroOrdering", "_Labelling"]),
        ("sync", Ordering.ASYNC, ["ZeroSynchronizing", "_Labelling"]),
        ("off", Ordering.ASYNC, ["_Labelling"]),
        ("track", Ordering.STREAM_ORDERED, ["_Labelling"]),
        ("sync", Ordering.SYNCHRONOUS, ["_Labelling"]),
    ],
)
def test_the_mode_and_the_device_decide(
    backend: RecordingBackend,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    ordering: Ordering,
    expected: list[str],
) -> None:
    monkeypatch.setenv("ACCEL_STREAMS_ZERO", mode)
    backend.capabilities = Capabilities(ordering)
    assert guards_of(hooked(backend)(params())) == expected


def test_label_streams_names_what_exists(
    backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = pytest.importorskip("deepspeed.accelerator")
    optimizer = make_optimizer_class(Config(), backend)(params())
    optimizer.setup_buckets()
    current = SimpleNamespace(accel_streams_backend=backend)
    monkeypatch.setattr(accelerator, "get_accelerator", lambda: current)
    accel_streams.deepspeed.label_streams(optimizer)
    assert {"reduction_stream", "ipg_buffer[1, fp32]"} <= set(backend.labels)
    monkeypatch.setattr(accelerator, "get_accelerator", lambda: SimpleNamespace())
    accel_streams.deepspeed.label_streams(optimizer)


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["average_tensor", "copy_grads_in_partition", "_set_oversized"])
def test_after_an_exception_in_a_hook_the_next_step_is_ordered(
    backend: RecordingBackend, where: str
) -> None:
    """What may have been submitted before the exception counts; nothing of it is left over."""
    hooks = [*HOOKS, Hook(30, True, 1)]
    optimizer_class = hooked(backend)
    optimizer = optimizer_class([Param(hook.numel, hook.owned) for hook in hooks])
    original = getattr(optimizer_class, where)

    def break_once(self: Any, *args: Any) -> None:
        setattr(optimizer_class, where, original)
        original(self, *args)
        raise Broken

    train_step(optimizer, backend, hooks)
    setattr(optimizer_class, where, break_once)
    with pytest.raises(Broken):
        train_step(optimizer, backend, hooks)
    (guard,) = (g for g in _seams._guards_of(optimizer) if isinstance(g, ZeroOrdering))
    assert (guard._reductions, guard._writer, REGION.depth) == ([], None, 0)
    # What DeepSpeed would have to be told: that backward is over.
    optimizer.start_over()
    for _ in range(2):
        train_step(optimizer, backend, hooks)
    assert races_in(backend) == []


class TestDeepSpeedsOwnWaits:
    """They drop out where this package orders the accesses, and only there."""

    @pytest.fixture
    def accelerator(self, backend: RecordingBackend) -> Any:
        accelerator = StreamsMixin()
        accelerator.accel_streams_backend = backend
        return accelerator

    def answers(self, backend: RecordingBackend, accelerator: Any, **changes: Any) -> set[bool]:
        """Return what the accelerator says inside the reductions of a backward."""
        seen: set[bool] = set()
        optimizer_class = hooked(backend)
        original = optimizer_class.average_tensor

        def average_tensor(self: Any, *args: Any) -> None:
            seen.add(accelerator.resolves_data_dependency())
            original(self, *args)

        optimizer_class.average_tensor = average_tensor
        optimizer_class.cpu_offload = changes.pop("cpu_offload", False)
        optimizer_class.zenflow = changes.pop("zenflow", False)
        train_step(optimizer_class(params()), backend, HOOKS)
        return seen

    def test_drop_out_in_a_backward(self, backend: RecordingBackend, accelerator: Any) -> None:
        assert self.answers(backend, accelerator) == {True}
        assert not accelerator.resolves_data_dependency()

    @pytest.mark.parametrize("mode", ["off", "sync"])
    def test_stay_in_the_other_modes(
        self,
        backend: RecordingBackend,
        accelerator: Any,
        mode: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("ACCEL_STREAMS_ZERO", mode)
        assert self.answers(backend, accelerator) == {False}

    @pytest.mark.parametrize("attribute", ["cpu_offload", "zenflow"])
    def test_stay_where_they_are_for_more_than_is_tracked(
        self, backend: RecordingBackend, accelerator: Any, attribute: str
    ) -> None:
        assert self.answers(backend, accelerator, **{attribute: True}) == {False}

    def test_stay_on_other_threads(self, backend: RecordingBackend, accelerator: Any) -> None:
        answers = []
        REGION.depth += 1
        try:
            thread = threading.Thread(
                target=lambda: answers.append(accelerator.resolves_data_dependency())
            )
            thread.start()
            thread.join(10)
            assert accelerator.resolves_data_dependency()
        finally:
            REGION.depth -= 1
        assert answers == [False]
