"""Whether an accelerator class is what the installed DeepSpeed will call.

DeepSpeed's abstract class changes between releases, and a class written for another one fails where
DeepSpeed first makes a call that it does not take: deep inside, and late.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["InterfaceFault", "interface_faults"]


@dataclass(frozen=True, slots=True)
class InterfaceFault:
    """A method that cannot take DeepSpeed's calls, and why."""

    method: str
    reason: str

    def __str__(self) -> str:
        return f"{self.method} {self.reason}"


def interface_faults(accelerator: Any) -> tuple[InterfaceFault, ...]:
    """Return what is wrong with ``accelerator``, an accelerator or its class, by method.

    Each method has to accept every call that DeepSpeed's abstract class accepts. ``create_graph``
    of an accelerator, not of a class, is called: it has to return a graph or raise, because
    DeepSpeed captures into whatever it returns.
    """
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

    cls = accelerator if isinstance(accelerator, type) else type(accelerator)
    found = list(_signature_faults(cls, DeepSpeedAccelerator))
    if cls is not accelerator and not any(fault.method == "create_graph" for fault in found):
        found.extend(_graph_faults(accelerator))
    return tuple(found)


def _signature_faults(cls: type, base: type) -> Iterator[InterfaceFault]:
    abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    for name, asked in vars(base).items():
        if name.startswith("_") or not inspect.isfunction(asked):
            continue
        if name in abstract:
            yield InterfaceFault(name, "is missing")
            continue
        offered = getattr(cls, name)
        if not callable(offered):
            yield InterfaceFault(name, "is no method")
            continue
        reason = _refuses(inspect.signature(offered), inspect.signature(asked))
        if reason is not None:
            yield InterfaceFault(name, reason)


def _refuses(offered: inspect.Signature, asked: inspect.Signature) -> str | None:
    """Return why a caller of ``asked`` could not call ``offered`` in its place, or None."""
    ours = offered.parameters
    by_place = [p.name for p in ours.values() if p.kind in _BY_PLACE]
    kinds = {parameter.kind for parameter in ours.values()}
    given = [p for p in asked.parameters.values() if p.kind not in _VARIADIC]
    for index, parameter in enumerate(given):
        mine = ours.get(parameter.name)
        if mine is None:
            known = inspect.Parameter.VAR_KEYWORD in kinds
        else:
            known = parameter.kind not in _BY_PLACE or by_place[index : index + 1] == [mine.name]
        if not known:
            return f"does not take {parameter.name!r}"
        if mine is not None and _optional(parameter) and not _optional(mine):
            return f"demands {parameter.name!r}, which DeepSpeed leaves out"
    names = {parameter.name for parameter in given}
    demanded = [p.name for p in ours.values() if p.name not in names and not _optional(p)]
    if demanded:
        return f"demands {', '.join(map(repr, demanded))}, which DeepSpeed does not give"
    return None


def _optional(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty or parameter.kind in _VARIADIC


_BY_PLACE = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _graph_faults(accelerator: Any) -> Iterator[InterfaceFault]:
    try:
        graph = accelerator.create_graph()
    except Exception:
        return  # Refusing is right where there are no graphs.
    if graph is None:
        yield InterfaceFault(
            "create_graph",
            "returns None, neither a graph nor an error: nothing would be captured or replayed",
        )
