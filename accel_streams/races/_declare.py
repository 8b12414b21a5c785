"""Declare kernels that torch does not dispatch, and name what reports speak of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import wrapt

if TYPE_CHECKING:
    import torch

__all__ = ["declaring", "kernel", "note_triton"]


class _Declaring(Protocol):
    def declare(
        self, name: str, reads: list[Any], writes: list[Any], stream: Any
    ) -> Callable[[], None]:
        """Record the kernel; return what to call when it is launched."""

    def launched_unseen(self, name: str) -> None:
        """Note a kernel that nobody declared."""


declaring: list[_Declaring] = []
"""Those who look at the dispatcher now. The simulated device needs no declarations."""


@contextlib.contextmanager
def kernel(
    *,
    reads: Iterable[torch.Tensor] = (),
    writes: Iterable[torch.Tensor] = (),
    stream: Any = None,
    name: str = "kernel",
) -> Iterator[None]:
    """Declare that the block launches a kernel that torch's dispatcher does not see.

    ``reads`` and ``writes`` are the tensors that it reads and writes (one it does both to is in
    both), ``stream`` is where it runs, by default the current stream of the tensors' device. Where
    nothing is watched this costs next to nothing, and on the simulated device it changes nothing.
    """
    if not declaring:
        yield
        return
    read, written = list(reads), list(writes)
    launched = [source.declare(name, read, written, stream) for source in declaring]
    _declared.depth += 1
    try:
        yield
    finally:
        _declared.depth -= 1
    for each in launched:
        each()


class _Declared(threading.local):
    """How many declarations of a thread are open."""

    depth = 0


_declared = _Declared()
_hooked = False


def note_triton() -> None:
    """Have launches of Triton's kernels noted that nobody has declared, from now on."""
    global _hooked
    if not _hooked:
        _hooked = True
        wrapt.register_post_import_hook(_hook_triton, "triton.runtime.jit")


def _hook_triton(module: Any) -> None:
    wrapt.wrap_function_wrapper(module, "JITFunction.run", _around_run)


def _around_run(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if declaring and not _declared.depth and not kwargs.get("warmup"):
        for source in declaring:
            source.launched_unseen(str(getattr(instance, "__name__", instance)))
    return wrapped(*args, **kwargs)
