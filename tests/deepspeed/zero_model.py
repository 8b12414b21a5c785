"""What DeepSpeed's ZeRO-1/2 optimizer does with streams and memory, without tensors.

The methods have DeepSpeed's names and do its reads, writes, allocations, frees and waits in its
order; arithmetic, parameters and communication are left out. One model stands for several releases:
where they keep the buckets, and which waits they have by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from accel_streams.deepspeed._region import REGION
from accel_streams.races import READ, WRITE
from zero_recording import READ_WRITE, RecordingBackend, RecordingStream, RecordingTensor

__all__ = [
    "DTYPES",
    "Config",
    "Hook",
    "Param",
    "make_optimizer_class",
    "module_with",
    "train_step",
    "use_memory_again",
]

DTYPES = ("bf16", "fp32")


@dataclass(eq=False)
class Param:
    """A parameter: its size, whether this rank keeps its gradient, and the gradient."""

    size: int
    owned: bool = True
    dtype: str = "bf16"
    grad: RecordingTensor | None = None

    def numel(self) -> int:
        return self.size


@dataclass(frozen=True)
class Hook:
    """One gradient hook of a backward: the parameter's size, whose it is, and the hook's stream.

    Parameters of different communication dtypes go to different buckets, where a release has those.
    """

    numel: int
    owned: bool
    stream: int
    dtype: str = "bf16"
    branch: bool = False
    """The gradient is computed on the hook's stream too: a branch of the model runs there."""
    read_after: bool = False
    """A hook of the user's reads the gradient after DeepSpeed's."""


@dataclass(frozen=True)
class Config:
    """DeepSpeed's settings, and the release."""

    overlap_comm: bool = True
    contiguous_gradients: bool = True
    stage: int = 2
    bucket_size: int = 10
    flat: bool = False
    """The buckets of 0.17.1 and before."""
    waits_for_producers: bool = False
    """The reduction waits for every stream that filled the bucket, as from 0.19.3 on."""
    resets_index: bool = False
    """Reducing resets the index of the double buffer, as from 0.17.2 to 0.18.2."""
    reduces_all: bool = False
    """A hook whose bucket is full reduces the buckets of all dtypes, up to 0.18.4."""


@dataclass
class _Bucket:
    buffer: list[RecordingTensor] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    grads: list[RecordingTensor] = field(default_factory=list)
    elements: int = 0
    index: int = 0
    copy_streams: set[int] = field(default_factory=set)


class _FlatAttributes:
    """Give the attributes of the optimizer in 0.17.1 and before the look of a bucket."""

    _names: ClassVar = {
        "buffer": "ipg_buffer",
        "params": "params_in_ipg_bucket",
        "grads": "grads_in_ipg_bucket",
        "elements": "elements_in_ipg_bucket",
        "index": "ipg_index",
        "copy_streams": "copy_streams",
    }

    def __init__(self, optimizer: Any) -> None:
        object.__setattr__(self, "_optimizer", optimizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, self._names[name])

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._optimizer, self._names[name], value)


def make_optimizer_class(config: Config, backend: RecordingBackend) -> Any:
    """Return a new class, to be hooked, with the name and the methods of DeepSpeed's."""

    class DeepSpeedZeroOptimizer:
        def __init__(self, params: Sequence[Param]) -> None:
            self.contiguous_gradients = config.contiguous_gradients
            self.overlap_comm = config.overlap_comm
            self.reduce_bucket_size = config.bucket_size
            self.partition_gradients = config.stage == 2
            self.reduction_stream: RecordingStream = backend.new_stream()
            self.params = list(params)
            self.params_in_partition = [[param for param in params if param.owned]]
            self.averaged_gradients: dict[int, Any] = {}
            self.grads_in_partition: RecordingTensor | None = None
            self.grads_in_partition_offset = 0
            self.extra_large_param_to_reduce: Any = None if config.flat else {}
            self.ready_for_gradients = False
            self.gradient_accumulation_steps = 1
            if config.flat:
                for name in _FlatAttributes._names.values():
                    setattr(self, name, getattr(_Bucket(), _short(name)))
            else:
                self.ipg_buckets = {dtype: _Bucket() for dtype in DTYPES}

        def buckets(self) -> dict[str, Any]:
            return {DTYPES[0]: _FlatAttributes(self)} if config.flat else self.ipg_buckets

        def get_param_comm_dtype(self, param: Param) -> str:
            return param.dtype

        def _bucket_of(self, param: Param) -> Any:
            return _FlatAttributes(self) if config.flat else self.ipg_buckets[param.dtype]

        def get_gradient_for_reduction(self, param: Param) -> RecordingTensor | None:
            return param.grad

        def setup_buckets(self) -> None:
            if self.ready_for_gradients:
                return
            if self.contiguous_gradients:
                for bucket in self.buckets().values():
                    bucket.buffer = [
                        backend.allocate(config.bucket_size)
                        for _ in range(2 if self.overlap_comm else 1)
                    ]
                    bucket.index = 0
            self.ready_for_gradients = True

        def process_gradients(self, param: Param, i: int) -> None:
            self.setup_buckets()
            if self.partition_gradients or self.overlap_comm:
                self.reduce_independent_p_g_buckets_and_remove_grads(param, i)

        def reduce_gradients(self) -> None:
            if not self.partition_gradients and not self.overlap_comm:
                for param in self.params:
                    self.reduce_independent_p_g_buckets_and_remove_grads(param, 0)
            self.independent_gradient_partition_epilogue()

        def reduce_independent_p_g_buckets_and_remove_grads(self, param: Param, i: int) -> None:
            bucket = self._bucket_of(param)
            if bucket.elements + param.numel() > self.reduce_bucket_size:
                self.reduce_ipg_grads(**({} if config.reduces_all else {"comm_dtype": param.dtype}))
                if self.contiguous_gradients and self.overlap_comm:
                    bucket.index = 1 - bucket.index
            assert param.grad is not None
            if self.contiguous_gradients:
                if param.numel() > self.reduce_bucket_size:
                    self._set_oversized(param)
                else:
                    view = bucket.buffer[bucket.index].narrow(bucket.elements, param.numel())
                    backend.launch("copy to bucket", (param.grad, READ), (view, WRITE))
                    backend.free(param.grad)
                    param.grad = view
                    bucket.copy_streams.add(backend.current_stream().number)
            bucket.elements += param.numel()
            bucket.grads.append(param.grad)
            bucket.params.append(param)

        def reduce_ipg_grads(self, comm_dtype: Any = None) -> None:
            dtypes = list(self.buckets()) if comm_dtype is None else [comm_dtype]
            for dtype in dtypes:
                bucket = self.buckets()[dtype]
                if self.contiguous_gradients:
                    oversized = self._take_oversized(dtype)
                    if oversized is not None:
                        assert oversized.grad is not None
                        self.average_tensor(bucket, [oversized.grad])
                    elif bucket.elements:
                        filled = bucket.buffer[bucket.index].narrow(0, bucket.elements)
                        self.average_tensor(bucket, [filled])
                elif bucket.grads:
                    if self.overlap_comm and not REGION.depth:
                        backend.synchronize_device()
                    self.average_tensor(bucket, bucket.grads)
            with backend.use_stream(self._consumer()):
                for dtype in dtypes:
                    bucket = self.buckets()[dtype]
                    for param in bucket.params:
                        if param.owned and self.contiguous_gradients:
                            self.copy_grads_in_partition(param)
                        elif not param.owned and self.partition_gradients:
                            self._drop(param)
                    bucket.params, bucket.grads, bucket.elements = [], [], 0
                    bucket.copy_streams = set()
                    if config.resets_index:
                        bucket.index = 0

        def average_tensor(self, bucket: Any, tensors: list[RecordingTensor]) -> None:
            if self.overlap_comm and self.contiguous_gradients and not REGION.depth:
                current, consumer = backend.current_stream().number, self.reduction_stream.number
                producers = bucket.copy_streams if config.waits_for_producers else set()
                for producer in producers or {current}:
                    backend.order(producer, consumer)
                backend.order(consumer, current)
            with backend.use_stream(self._consumer()):
                backend.launch("reduce", *[(tensor, READ_WRITE) for tensor in tensors])

        def copy_grads_in_partition(self, param: Param) -> None:
            if self.grads_in_partition is None:
                total = sum(owned.numel() for owned in self.params_in_partition[0])
                self.grads_in_partition = backend.allocate(total)
                self.grads_in_partition_offset = 0
            assert param.grad is not None
            view = self.grads_in_partition.narrow(self.grads_in_partition_offset, param.numel())
            backend.launch("copy to partition", (param.grad, READ), (view, WRITE))
            self._drop(param)
            param.grad = view
            self.grads_in_partition_offset += param.numel()

        def independent_gradient_partition_epilogue(self) -> None:
            self.reduce_ipg_grads()
            if self.overlap_comm and not REGION.depth:
                backend.synchronize_device()
            self._collect([p.grad for p in self.params_in_partition[0] if p.grad])
            for bucket in self.buckets().values():
                for tensor in bucket.buffer:
                    backend.free(tensor)
                bucket.buffer = []
            self.grads_in_partition = None
            self.ready_for_gradients = False

        def _collect(self, gradients: list[RecordingTensor]) -> None:
            """Put together what this backward gave, or add it to what earlier ones gave."""
            collected = self.averaged_gradients.get(0)
            if collected is None:
                # Something is made on this stream, as the padding is.
                collected = self.averaged_gradients[0] = [*gradients, backend.allocate(1)]
                backend.launch("pad", (collected[-1], WRITE))
                return
            added = [(gradient, READ) for gradient in gradients]
            backend.launch("add", *added, *[(tensor, READ_WRITE) for tensor in collected])
            for gradient in gradients:
                backend.free(gradient)

        def step(self) -> None:
            gradients = self.averaged_gradients.pop(0)
            backend.launch("step", *[(gradient, READ) for gradient in gradients])
            for gradient in gradients:
                backend.free(gradient)
            for param in self.params:
                if param.grad is not None:
                    backend.free(param.grad)
                    param.grad = None

        def start_over(self) -> None:
            """Drop what an unfinished backward has left, as a new optimizer would have none."""
            for bucket in self.buckets().values():
                for tensor in bucket.buffer:
                    backend.free(tensor)
                bucket.buffer, bucket.params, bucket.grads = [], [], []
                bucket.elements, bucket.copy_streams = 0, set()
            for param in self.params:
                if param.grad is not None:
                    backend.free(param.grad)
                    param.grad = None
            if self.grads_in_partition is not None:
                backend.free(self.grads_in_partition)
            self.grads_in_partition = None
            self.extra_large_param_to_reduce = None if config.flat else {}
            self.ready_for_gradients = False
            backend.synchronize_device()

        def _consumer(self) -> RecordingStream:
            return self.reduction_stream if self.overlap_comm else backend.current_stream()

        def _drop(self, param: Param) -> None:
            """Drop a gradient on the host; one in a bucket or in the partition lives on there."""
            assert param.grad is not None
            shared = {
                tensor.block for bucket in self.buckets().values() for tensor in bucket.buffer
            }
            if self.grads_in_partition is not None:
                shared.add(self.grads_in_partition.block)
            if param.grad.block not in shared:
                backend.free(param.grad)
            param.grad = None

        def _set_oversized(self, param: Param) -> None:
            if config.flat:
                self.extra_large_param_to_reduce = param
            else:
                self.extra_large_param_to_reduce[param.dtype] = param

        def _take_oversized(self, dtype: str) -> Param | None:
            if not config.flat:
                taken: Param | None = self.extra_large_param_to_reduce.pop(dtype, None)
                return taken
            taken, self.extra_large_param_to_reduce = self.extra_large_param_to_reduce, None
            return taken

    if config.flat:
        # Unlike later ones, those releases look the method up without a bucket to name.
        del DeepSpeedZeroOptimizer.get_param_comm_dtype
    return DeepSpeedZeroOptimizer


def train_step(
    optimizer: Any,
    backend: RecordingBackend,
    hooks: Sequence[Hook],
    *,
    caller: int = 0,
    stepper: int | None = None,
    coalesced: bool = False,
    accumulate: bool = False,
) -> None:
    """Run one backward with these hooks, and the step, as torch's autograd engine does.

    The gradients are computed on the stream ``caller``, or those of a branch on the hook's own. A
    hook's stream waits for them before, and the caller waits for every hook's stream after. Then
    the optimizer's memory is used again. ``stepper``: the step's stream, which waits for nobody;
    the caller waits for it then. ``coalesced``: the hooks leave all gradients to the caller,
    which reduces them after the backward. ``accumulate``: no step yet.
    """
    caller_stream = RecordingStream(caller)
    with backend.use_stream(caller_stream):
        for param, hook in zip(optimizer.params, hooks, strict=True):
            if hook.branch:
                backend.order(caller, hook.stream)
            with backend.use_stream(RecordingStream(hook.stream if hook.branch else caller)):
                param.grad = backend.allocate(param.numel())
                backend.launch("backward", (param.grad, WRITE))
            backend.order(caller, hook.stream)
            if hook.stream != param.grad.owner:
                # The engine itself keeps what a node on another stream takes.
                backend._add("record_stream", (0, hook.stream), param.grad.block)
            with backend.use_stream(RecordingStream(hook.stream)):
                backend.launch("accumulate", (param.grad, READ_WRITE))
                backend.in_backward = True
                if not coalesced:
                    optimizer.process_gradients(param, 0)
                if hook.read_after and param.grad is not None:
                    backend.launch("user's hook", (param.grad, READ))
        for hook in hooks:
            backend.order(hook.stream, caller)
        if coalesced:
            backend.in_backward = False
            for param in optimizer.params:
                optimizer.process_gradients(param, 0)
        optimizer.reduce_gradients()  # A final callback: it still counts as inside the backward.
        backend.in_backward = False
    if accumulate:
        for param in optimizer.params:
            if param.grad is not None and not param.owned:
                backend.free(param.grad)
            param.grad = None
        return
    stepper = caller if stepper is None else stepper
    with backend.use_stream(RecordingStream(stepper)):
        optimizer.step()
    backend.order(stepper, caller)


def use_memory_again(backend: RecordingBackend, streams: Sequence[int]) -> None:
    """Let every stream allocate, so that whatever was freed too early is seen to be used."""
    for number in streams:
        with backend.use_stream(RecordingStream(number)):
            backend.free(backend.allocate(1))


def _short(name: str) -> str:
    return next(short for short, long in _FlatAttributes._names.items() if long == name)


def module_with(optimizer_class: Any) -> Any:
    """Return a stand-in for DeepSpeed's module that defines the optimizer."""
    return SimpleNamespace(__name__="stage_1_and_2", DeepSpeedZeroOptimizer=optimizer_class)
