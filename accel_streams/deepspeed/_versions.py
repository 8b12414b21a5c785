"""Every difference between DeepSpeed's releases that this package has to know."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from accel_streams._errors import UnsupportedDeepSpeedError

if TYPE_CHECKING:
    import torch

__all__ = [
    "ACCUMULATE",
    "ALLOCATE",
    "EPILOGUE",
    "OPTIMIZER",
    "REDUCE",
    "STEP",
    "SUPPORTED",
    "WRITE",
    "ZERO3_ADD",
    "ZERO3_COORDINATOR",
    "ZERO3_FETCH",
    "ZERO3_FREE",
    "ZERO3_GATHER",
    "ZERO3_INIT",
    "ZERO3_OPTIMIZER",
    "ZERO3_OVERFLOW",
    "ZERO3_PARTITION",
    "ZERO3_RELEASE",
    "ZERO3_STEP",
    "Buckets",
    "Key",
    "Seam",
    "accumulators",
    "buckets_of",
    "find_seam",
    "fpdt_methods",
    "gathering_stream",
    "gradient_of",
    "hooks_accumulate",
    "installed_version",
    "keeps_accumulators",
    "leaves_to_the_device",
    "missing_for_zero3",
    "parameters_of",
    "partition_tensors",
    "sums_up_gradients_of_several_backwards",
    "ulysses_stream",
    "unsupported",
    "waits_are_for_what_is_tracked",
    "writes_partition",
]

SUPPORTED = "0.15.2 to 0.19.8"
"""The releases that are known to have every seam."""

OPTIMIZER = "DeepSpeedZeroOptimizer"
"""The class of ZeRO-1 and ZeRO-2, in ``deepspeed.runtime.zero.stage_1_and_2``."""

# An autocast model has a bucket for each communication dtype; up to 0.17.1 there was just one.
Key: TypeAlias = Hashable


@dataclass(frozen=True, slots=True)
class Seam:
    """A method of the optimizer to hook: what it is called, and with what.

    ``names``: by release, newest first. ``parameters``: those it may have, in order, besides self;
    ``required``: how many of them it must have. None: they don't matter.
    """

    names: tuple[str, ...]
    parameters: tuple[str, ...] | None = None
    required: int = 0

    def __str__(self) -> str:
        arguments = "" if self.parameters is None else ", ".join(self.parameters)
        return f"{OPTIMIZER}.{self.names[0]}({arguments})"


ALLOCATE = Seam(("setup_buckets", "backward_prologue", "backward"))
"""Allocates the bucket buffers: setup_buckets since 0.18.3, backward_prologue since 0.16.5."""

WRITE = Seam(("reduce_independent_p_g_buckets_and_remove_grads",), ("param", "i"), required=2)
"""A gradient hook: reduces a bucket that is full, then copies the gradient into a bucket."""

REDUCE = Seam(("reduce_ipg_grads",), ("comm_dtype",))
"""Reduces the gradients of one bucket, or of all: ``comm_dtype`` exists since 0.18.5."""

EPILOGUE = Seam(("independent_gradient_partition_epilogue",), ())
"""Ends a backward: reduces what is left and frees the buffers."""

ACCUMULATE = Seam(("fill_grad_accum_attribute",), ())
"""Adds gradients up in another dtype, and drops them, on the stream that called the backward."""

STEP = Seam(("step",))
"""Uses up the reduced gradients of this rank's partition and frees them."""


def find_seam(optimizer_class: type, seam: Seam) -> str | None:
    """Return the name under which ``optimizer_class`` has the seam, None when it hasn't."""
    for name in seam.names:
        method = inspect.getattr_static(optimizer_class, name, None)
        if callable(method) and _fits(method, seam):
            return name
    return None


def hooks_accumulate(optimizer_class: type) -> bool:
    """Return whether it is the hooks that do what ACCUMULATE did up to 0.16.5 for all gradients."""
    return hasattr(optimizer_class, "_fill_param_grad_accum_attribute")


def _fits(method: Any, seam: Seam) -> bool:
    if seam.parameters is None:
        return True
    names = tuple(inspect.signature(method).parameters)[1:]
    return len(names) >= seam.required and names == seam.parameters[: len(names)]


def installed_version() -> str:
    """Return the version of the DeepSpeed that is imported, ``unknown`` when it doesn't say."""
    package = sys.modules.get("deepspeed")
    # Its __init__ sets __version__ late; this module of constants is there before.
    constants = sys.modules.get("deepspeed.git_version_info")
    version = getattr(package, "__version__", None) or getattr(constants, "version", None)
    if not version:  # DeepSpeed looks for its accelerator before it says its version.
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version("deepspeed")
    return str(version or "unknown").strip()


def unsupported(missing: Sequence[str], *, safe_mode: bool) -> UnsupportedDeepSpeedError:
    """Return the error for a DeepSpeed that lacks ``missing``.

    ``safe_mode``: whether ``ACCEL_STREAMS_ZERO=sync`` would still work with it.
    """
    version = installed_version()
    way_out = (
        "or set ACCEL_STREAMS_ZERO=sync, which waits for the whole device around each reduction: "
        "slow, and right"
        if safe_mode
        else "or set ACCEL_STREAMS_ZERO=off to train with DeepSpeed's own ordering, which is known "
        "to be incomplete"
    )
    return UnsupportedDeepSpeedError(
        f"DeepSpeed {version} does not have what accel_streams hooks to order ZeRO's gradient "
        f"buckets: {', '.join(missing)} not found as expected. "
        f"Known to work: {SUPPORTED}. Install one of these, {way_out}.",
        version=version,
        supported=SUPPORTED,
        missing=missing,
    )


class Buckets(Protocol):
    """Where a release keeps its gradient buckets; a key names one."""

    def keys(self, optimizer: Any) -> list[Key]:
        """Return the keys of all buckets."""

    def key_of(self, optimizer: Any, param: torch.Tensor) -> Key:
        """Return the key of the bucket that the gradient of ``param`` goes to."""

    def reduced_by(self, optimizer: Any, comm_dtype: Any) -> list[Key]:
        """Return the keys that ``reduce_ipg_grads(comm_dtype)`` reduces; None stands for all."""

    def allocated(self, optimizer: Any) -> bool:
        """Return whether the buffers of this backward exist."""

    def elements(self, optimizer: Any, key: Key) -> int:
        """Return how many gradient elements wait for reduction."""

    def index(self, optimizer: Any, key: Key) -> int:
        """Return which of the bucket's buffers is being filled."""

    def fill(self, optimizer: Any, key: Key, index: int) -> None:
        """Have this buffer of the bucket be filled from now on."""

    def buffers(self, optimizer: Any, key: Key) -> Sequence[torch.Tensor]:
        """Return the buffers, none where gradients stay where they are."""

    def gradients(self, optimizer: Any, key: Key) -> Sequence[torch.Tensor]:
        """Return the gradients that wait for reduction."""

    def oversized(self, optimizer: Any, key: Key) -> torch.Tensor | None:
        """Return the parameter, larger than a bucket, whose gradient waits by itself."""


class _Buckets:
    """``ipg_buckets``, a bucket for each communication dtype: since 0.17.2."""

    def keys(self, optimizer: Any) -> list[Key]:
        return list(optimizer.ipg_buckets)

    def key_of(self, optimizer: Any, param: torch.Tensor) -> Key:
        key: Key = optimizer.get_param_comm_dtype(param)
        return key

    def reduced_by(self, optimizer: Any, comm_dtype: Any) -> list[Key]:
        return self.keys(optimizer) if comm_dtype is None else [comm_dtype]

    def allocated(self, optimizer: Any) -> bool:
        return bool(getattr(optimizer, "ready_for_gradients", False))

    def elements(self, optimizer: Any, key: Key) -> int:
        return int(optimizer.ipg_buckets[key].elements)

    def index(self, optimizer: Any, key: Key) -> int:
        return int(optimizer.ipg_buckets[key].index)

    def fill(self, optimizer: Any, key: Key, index: int) -> None:
        optimizer.ipg_buckets[key].index = index

    def buffers(self, optimizer: Any, key: Key) -> Sequence[torch.Tensor]:
        buffers: Sequence[torch.Tensor] = optimizer.ipg_buckets[key].buffer
        return buffers

    def gradients(self, optimizer: Any, key: Key) -> Sequence[torch.Tensor]:
        gradients: Sequence[torch.Tensor] = optimizer.ipg_buckets[key].grads
        return gradients

    def oversized(self, optimizer: Any, key: Key) -> torch.Tensor | None:
        param: torch.Tensor | None = optimizer.extra_large_param_to_reduce.get(key)
        return param


class _FlatBucket:
    """One bucket, spread over attributes of the optimizer: up to 0.17.1."""

    def keys(self, optimizer: Any) -> list[Key]:
        return [None]

    def key_of(self, optimizer: Any, param: torch.Tensor) -> Key:
        return None

    def reduced_by(self, optimizer: Any, comm_dtype: Any) -> list[Key]:
        return [None]

    def allocated(self, optimizer: Any) -> bool:
        # Called once a backward, before the buffers are allocated anew.
        return False

    def elements(self, optimizer: Any, key: Key) -> int:
        return int(optimizer.elements_in_ipg_bucket)

    def index(self, optimizer: Any, key: Key) -> int:
        return int(optimizer.ipg_index)

    def fill(self, optimizer: Any, key: Key, index: int) -> None:
        optimizer.ipg_index = index

    def buffers(self, optimizer: Any, key: Key) -> Sequence[torch.Tensor]:
        # Set by the first backward, and None between backwards.
        return getattr(optimizer, "ipg_buffer", None) or ()

    def gradients(self, optimizer: Any, key: Key) -> Sequence[torch.Tensor]:
        gradients: Sequence[torch.Tensor] = optimizer.grads_in_ipg_bucket
        return gradients

    def oversized(self, optimizer: Any, key: Key) -> torch.Tensor | None:
        param: torch.Tensor | None = optimizer.extra_large_param_to_reduce
        return param


_COMMON_ATTRIBUTES = (
    "contiguous_gradients",
    "extra_large_param_to_reduce",
    "get_gradient_for_reduction",
    "overlap_comm",
    "params_in_partition",
    "partition_gradients",
    "reduce_bucket_size",
    "reduction_stream",
)
_BUCKET_ATTRIBUTES = ("buffer", "elements", "grads", "index")
_FLAT_ATTRIBUTES = ("elements_in_ipg_bucket", "grads_in_ipg_bucket")


def buckets_of(optimizer: Any) -> Buckets:
    """Return how the release of ``optimizer`` keeps its buckets.

    Raise UnsupportedDeepSpeedError, naming the attributes, when it is in no known way.
    """
    missing = [name for name in _COMMON_ATTRIBUTES if not hasattr(optimizer, name)]
    keyed = getattr(optimizer, "ipg_buckets", None)
    if keyed is not None:
        if not hasattr(optimizer, "get_param_comm_dtype"):
            missing.append("get_param_comm_dtype")
        for bucket in keyed.values():
            missing += [
                f"ipg_buckets[...].{n}" for n in _BUCKET_ATTRIBUTES if not hasattr(bucket, n)
            ]
    elif not any(hasattr(optimizer, name) for name in _FLAT_ATTRIBUTES):
        missing.append("ipg_buckets")
    else:
        missing += [name for name in _FLAT_ATTRIBUTES if not hasattr(optimizer, name)]
    if missing:
        names = [f"{type(optimizer).__name__}.{name}" for name in dict.fromkeys(missing)]
        raise unsupported(names, safe_mode=False)
    return _FlatBucket() if keyed is None else _Buckets()


def waits_are_for_what_is_tracked(optimizer: Any) -> bool:
    """Return whether DeepSpeed's waits in a backward are for the buckets and the partition alone.

    With ``cpu_offload`` they are also for copies to the host; ZenFlow, and ZeRO-1 with gradients
    added up in another dtype, reduce temporary copies.
    """
    others = getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "zenflow", False)
    return not others and not keeps_accumulators(optimizer)


def keeps_accumulators(optimizer: Any) -> bool:
    """Return whether gradients are added up in tensors of another dtype than the parameters'.

    ZeRO-1 does, with a ``grad_accum_dtype`` of its own: what is reduced are copies of them.
    """
    return bool(getattr(optimizer, "use_grad_accum_attribute", False))


def gradient_of(optimizer: Any, param: Any) -> torch.Tensor | None:
    """Return where the gradient of ``param`` is: its accumulator, if there are any.

    Asking the optimizer for what is to be reduced would make a copy of the accumulator.
    """
    if keeps_accumulators(optimizer):
        accumulator: torch.Tensor | None = param.grad_accum
        return accumulator
    gradient: torch.Tensor | None = optimizer.get_gradient_for_reduction(param)
    return gradient


def accumulators(optimizer: Any) -> list[torch.Tensor | None]:
    """Return the tensors in which gradients are added up, of all parameters."""
    params = (param for group in optimizer.bit16_groups for param in group)
    return [getattr(param, "grad_accum", None) for param in params]


def sums_up_gradients_of_several_backwards(optimizer: Any) -> bool:
    """Return whether a parameter's gradient may hold a sum that an earlier backward began."""
    return getattr(optimizer, "gradient_accumulation_steps", 2) != 1


def partition_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold this rank's reduced gradients, one for each piece of memory."""
    seen: set[int] = set()
    for tensor in _reduced_gradients(optimizer):
        address = tensor.untyped_storage().data_ptr()
        if address not in seen:
            seen.add(address)
            yield tensor


def _reduced_gradients(optimizer: Any) -> Iterator[torch.Tensor]:
    collected = getattr(optimizer, "grads_in_partition", None)
    if collected is not None:
        yield collected
    for group in getattr(optimizer, "averaged_gradients", {}).values():
        # Since 0.19.3 float32 gradients are accumulated in one flat tensor.
        flat = getattr(group, "flat_partition", None)
        yield from (group or ()) if flat is None else (flat,)
    if not optimizer.contiguous_gradients:
        for params in optimizer.params_in_partition:
            for param in params:
                gradient = gradient_of(optimizer, param)
                if gradient is not None:
                    yield gradient


def leaves_to_the_device(accelerator_class: type, method: str) -> bool:
    """Return whether an accelerator has to define ``method`` itself.

    From 0.19.5 on the abstract class pins memory, from 0.19.6 on it also tells what is pinned, both
    with other signatures.
    """
    return method in getattr(accelerator_class, "__abstractmethods__", ())


# -- ZeRO-3 and sequence parallelism ----------------------------------------------------------

ZERO3_OPTIMIZER = "DeepSpeedZeroOptimizer_Stage3"
ZERO3_STEP = "step"
ZERO3_OVERFLOW = "has_overflow"
# Python's way of keeping two underscores private.
ZERO3_ADD = f"_{ZERO3_OPTIMIZER}__add_grad_to_ipg_bucket"

ZERO3_COORDINATOR = "PartitionedParameterCoordinator"
ZERO3_GATHER = f"_{ZERO3_COORDINATOR}__all_gather_params"
ZERO3_FETCH = "fetch_sub_module"
ZERO3_RELEASE = "release_sub_module"
_GATHERING_STREAM = f"_{ZERO3_COORDINATOR}__allgather_stream"

ZERO3_INIT = "Init"
ZERO3_PARTITION = "_partition_param"
ZERO3_FREE = "free_param"


def missing_for_zero3() -> list[str]:
    """Return what this package hooks for ZeRO-3 and the imported DeepSpeed does not have."""
    package = "deepspeed.runtime.zero"
    needed = {
        f"{package}.stage3.{ZERO3_OPTIMIZER}": (ZERO3_STEP, ZERO3_OVERFLOW, ZERO3_ADD),
        f"{package}.partitioned_param_coordinator.{ZERO3_COORDINATOR}": (
            ZERO3_GATHER,
            ZERO3_FETCH,
            ZERO3_RELEASE,
        ),
        f"{package}.partition_parameters.{ZERO3_INIT}": (ZERO3_PARTITION,),
    }
    missing = []
    for path, names in needed.items():
        module, _, owner = path.rpartition(".")
        found = getattr(sys.modules.get(module), owner, None)
        missing += [f"{owner}.{name}" for name in names if not hasattr(found, name)]
    if not hasattr(sys.modules.get(f"{package}.partition_parameters"), ZERO3_FREE):
        missing.append(ZERO3_FREE)
    return missing


def gathering_stream(coordinator: Any) -> Any:
    """Return the stream on which parameters are gathered; None on a synchronous device."""
    return getattr(coordinator, _GATHERING_STREAM, None)


def parameters_of(layer: Any) -> list[Any]:
    """Return the partitioned parameters that DeepSpeed gathers for ``layer``, and no others'."""
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator

    recurse = coordinator.z3_leaf_module(layer)
    return list(coordinator.iter_params(layer, recurse=recurse))


def writes_partition(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether ``Init._partition_param(param, buffer, has_been_updated, ...)`` will write.

    Otherwise it only frees the gathered parameter, as after each use.
    """
    param = args[0] if args else kwargs["param"]
    updated = args[2] if len(args) > 2 else kwargs.get("has_been_updated", False)
    return bool(updated) or getattr(param, "ds_tensor", None) is None


def ulysses_stream(module: Any) -> tuple[type | None, tuple[str, ...]]:
    """Return the class, and the attributes in which it may remember the default stream."""
    # Earlier releases misspell it.
    return getattr(module, "DistributedAttention", None), ("default_stream", "dafult_stream")


def fpdt_methods(module: Any) -> list[tuple[type, tuple[str, ...]]]:
    """Return the classes whose methods compute on what they call the default stream."""
    owner = getattr(module, "_FPDTGPUOffloadingAttentionImpl_", None)
    return [] if owner is None else [(owner, ("forward", "backward"))]
