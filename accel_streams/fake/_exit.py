"""What is left in the queues and in autograd's threads when a process ends, or forks."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from pathlib import Path

import torch
from torch.autograd import Variable

from accel_streams.fake._device import registered_type
from accel_streams.fake._extension import extension

__all__ = ["register", "settle_autograd"]

# For a stream that is held then: a thread that outlives the interpreter may yet release it.
_HOLD_TIMEOUT_S = 1.0

# How many operations had been queued when this process was forked; None in a process that wasn't.
_inherited: int | None = None


def register() -> None:
    """Have queued work run before the process ends."""
    atexit.register(_finish)
    os.register_at_fork(after_in_child=_note_fork)


def _note_fork() -> None:
    global _inherited
    _inherited = int(extension().operations())


def _finish() -> None:
    """Run what is queued; the other ranks may be waiting for collectives among it.

    Not in a forked child that has not used the device: what it has queued is a copy of its parent's
    work. An operation that fails here would have failed in the script, had it waited for it, so the
    exit status is 1.
    """
    module = extension()
    if _inherited is not None and module.operations() == _inherited:
        return
    module.hang_threads_at_exit()
    module.set_hold_timeout(_HOLD_TIMEOUT_S)
    if _autograd_has_run():
        with contextlib.suppress(RuntimeError):  # of autograd, which a forked child can't use
            settle_autograd()
    try:
        module.drain()
    except Exception as exc:
        print(
            f"accel_streams: when the process ended, work was queued on the fake device that did "
            f"not run to its end: {exc}. Call torch.fake.synchronize() where the script ends, to "
            f"get this as an exception.",
            file=sys.stderr,
        )
        _exit_with_failure()


def settle_autograd() -> None:
    """Have autograd's threads let go of the passes they have run.

    ``backward`` returns a little before the device's thread drops the pass, and what that owns of
    Python's. A thread that does so after the end of the interpreter aborts the process. It takes up
    another pass only when it is through with the one before, so give it one that owns nothing.
    """
    device_type = registered_type()
    for index in range(extension().device_count()):
        with torch.enable_grad():
            root = torch.empty((), device=f"{device_type}:{index}", requires_grad=True)
            result = root.view_as(root)
            gradient = torch.empty_like(result)
        # Not torch.autograd.grad, which has the pass own an object of Python's.
        found = Variable._execution_engine.run_backward(
            (result,),
            (gradient,),
            False,  # keep_graph
            False,  # create_graph
            (root,),
            allow_unreachable=False,
            accumulate_grad=False,
        )
        # This pass, too, is dropped a little later. It must not have the last reference to these.
        _never_free((root, result, gradient, found))


def _never_free(kept: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _autograd_has_run() -> bool:
    """Tell whether autograd has threads; True where that can't be seen."""
    try:
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    except OSError:
        return True
    return not names or any(name.startswith("pt_autograd") for name in names)


def _exit_with_failure() -> None:
    # Python ignores what a handler raises, and has no other way to change the exit status here. So
    # run the handlers that remain, and end as it would.
    atexit.unregister(_finish)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(1)
