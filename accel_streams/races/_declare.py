"""Declare kernels that torch does not dispatch, and name what reports speak of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["declaring", "kernel"]


class _Declaring(Protocol):
    def declare(
        self, name: str, reads: list[Any], writes: list[Any], stream: Any
    ) -> Callable[[], None]:
        """Record the kernel; return what to call when it is launched."""


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
    yield
    for each in launched:
        each()
