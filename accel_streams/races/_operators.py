"""What an operator does to its arguments, from its schema."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from accel_streams.races._records import READ, WRITE

__all__ = ["LIST", "Plan", "plan_of"]

LIST: Final = 4
"""Added to the mode of an argument that is a list of tensors."""

# Results that take only size, type and device from their argument.
_FACTORY: Final = re.compile(r"aten::(new_.*|.*_like)$")
_ALLOCATES_ONLY: Final = re.compile(r"aten::(_?empty.*|new_empty.*|.*empty_like)$")
# In place, and what was there before does not matter.
_OVERWRITES: Final = re.compile(
    r"aten::(copy_|fill_|zero_|normal_|uniform_|random_|bernoulli_|exponential_|geometric_|"
    r"cauchy_|log_normal_|eye_|_foreach_copy_|_foreach_zero_)$"
)
# Not marked as views in their schemas, or looking at nothing but sizes.
_TOUCHES_NOTHING: Final = frozenset(
    {
        "aten::_assert_tensor_metadata",
        "aten::_has_compatible_shallow_copy_type",
        "aten::_has_same_storage_numel",
        "aten::_nested_tensor_size",
        "aten::_unsafe_view",
        "aten::_version",
        "aten::is_pinned",
        "aten::is_same_size",
        "aten::is_set_to",
        "aten::numel",
        "aten::sym_is_contiguous",
        "aten::sym_numel",
        "aten::sym_size",
        "aten::sym_storage_offset",
        "aten::sym_stride",
        "prim::device",
        "prim::layout",
    }
)
_HOST_WAITS: Final = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"})
_INDEX: Final = frozenset({"aten::index", "aten::_unsafe_index"})
_COPIES: Final = frozenset({"aten::copy_", "aten::_copy_from", "aten::_to_copy"})
_MOVES_STORAGE: Final = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})


class Plan:
    """How to look at one operator's calls.

    ``modes`` has a number for each positional argument: 0, or how it is accessed (plus `LIST`).
    ``keywords`` the same by name. ``kind`` is what needs to be looked at: nothing ("view"), tensors
    ("plain"), or one of "copy", "index", "moves", "record_stream", "collective", "wait_tensor".
    """

    __slots__ = (
        "call",
        "func",
        "host_waits",
        "keywords",
        "kind",
        "makes",
        "modes",
        "name",
        "writes_results",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.func: Any = None
        # What runs it. An OpOverload's own call is one more function of Python around this.
        self.call: Any = None
        self.kind = "plain"
        self.modes: tuple[int, ...] = ()
        self.keywords: dict[str, int] = {}
        self.makes = False
        self.writes_results = True
        self.host_waits = False


def plan_of(func: Any) -> Plan:
    """Return how to look at the calls of ``func``, an OpOverload."""
    schema = func._schema
    plan = Plan(
        schema.name if not schema.overload_name else f"{schema.name}.{schema.overload_name}"
    )
    tags = func.tags
    if schema.name == "aten::record_stream":
        plan.kind = "record_stream"
        return plan
    if schema.name.startswith("c10d::"):
        plan.kind = "collective"
        return plan
    if schema.name in ("_c10d_functional::wait_tensor", "c10d_functional::wait_tensor"):
        plan.kind = "wait_tensor"
        return plan
    if schema.name in _TOUCHES_NOTHING:
        plan.kind = "view"
        return plan
    if schema.name in _MOVES_STORAGE:
        plan.kind = "moves"
        return plan
    if torch.Tag.inplace_view in tags:
        plan.kind = "view"
        return plan
    plan.writes_results = not _ALLOCATES_ONLY.match(schema.name)
    factory = bool(_FACTORY.match(schema.name)) or not plan.writes_results
    modes = []
    for argument in schema.arguments:
        mode = _mode(argument, factory=factory, overwrites=bool(_OVERWRITES.match(schema.name)))
        if mode:
            plan.keywords[argument.name] = mode
        modes.append(0 if argument.kwarg_only else mode)
    while modes and not modes[-1]:
        modes.pop()
    plan.modes = tuple(modes)
    plan.makes = any(
        _holds_tensors(result.type) and result.alias_info is None for result in schema.returns
    )
    if not plan.makes and not plan.keywords:
        plan.kind = "view"
    elif schema.name in _COPIES:
        plan.kind = "copy"
    elif schema.name in _INDEX:
        plan.kind = "index"
    plan.host_waits = schema.name in _HOST_WAITS or (
        schema.name not in _INDEX
        and bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(tags))
    )
    return plan


def _mode(argument: Any, *, factory: bool, overwrites: bool) -> int:
    kind = str(argument.type)
    if not _holds_tensors(argument.type):
        return 0
    alias = argument.alias_info
    if alias is not None and alias.is_write:
        mode = WRITE if argument.is_out or overwrites else READ | WRITE
    elif alias is not None or factory:
        return 0  # A view looks at sizes only.
    else:
        mode = READ
    return mode + LIST if kind.startswith("List") else mode


def _holds_tensors(kind: Any) -> bool:
    return "Tensor" in str(kind)
