"""Let a script run without a launcher, as the one rank of a world of one."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

__all__ = ["run_alone_without_launcher"]

_registered = False


def run_alone_without_launcher() -> None:
    """Have ``python train.py`` run as rank 0 of 1 where DeepSpeed would ask MPI for its ranks.

    DeepSpeed does that when no launcher has set the ranks, and fails when mpi4py is not installed.
    On a simulated device, which is on one machine by nature, there is nothing to ask for.
    """
    global _registered
    if not _registered:
        _registered = True
        # Not on the module itself: its import is what leads here, and it is not complete yet.
        wrapt.register_post_import_hook(_hook, "deepspeed.runtime.engine")


def _hook(module: ModuleType) -> None:
    communication = sys.modules.get("deepspeed.comm.comm")
    if callable(getattr(communication, "mpi_discovery", None)):
        wrapt.wrap_function_wrapper(communication, "mpi_discovery", _around_discovery)


def _around_discovery(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if importlib.util.find_spec("mpi4py") is not None:
        return wrapped(*args, **kwargs)
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    partly = {name: value for name, value in os.environ.items() if name in ranks}
    if any(value != ranks[name] for name, value in partly.items()):
        return wrapped(*args, **kwargs)  # A launcher's, and incomplete: DeepSpeed's to explain.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(ranks)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(port))
    return None
