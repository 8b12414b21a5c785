"""Put something in the place of attributes, and take it away again."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

__all__ = ["Patches"]

_ABSENT: Any = object()


class Patches:
    """Attributes that were replaced, to be restored in one go."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or a class, also of a class that is written in C."""
        before = vars(owner).get(name, _ABSENT)
        _assign(owner, name, value)
        self._done.append((owner, name, before, value))

    def undo(self) -> None:
        """Restore what nobody else has replaced since."""
        while self._done:
            owner, name, before, value = self._done.pop()
            if vars(owner).get(name, _ABSENT) is value:
                _assign(owner, name, before)


def _assign(owner: Any, name: str, value: Any) -> None:
    if not isinstance(owner, type):
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
        return
    try:
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    except TypeError:
        # torch.Stream and torch.Event are static types, whose attributes Python protects. A device
        # that uses them as they are has no other place where its waits can be seen.
        namespace: dict[str, Any] = gc.get_referents(vars(owner))[0]
        if value is _ABSENT:
            del namespace[name]
        else:
            namespace[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
