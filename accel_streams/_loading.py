"""Run a plug-in's code so that it can harm nothing but itself.

What a backend's module does when it is imported, and its ``probe()``, is somebody else's code,
which runs because it is installed. It may leave by any exception, print, fork, or never return.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Failure", "announce_after", "guarded", "prints_to_stderr", "time_limit"]

T = TypeVar("T")

# How long a call that ignores time_limit's exception has until the process ends with a traceback.
_GRACE = 5.0  # seconds


class Failure(Exception):
    """A plug-in's code left by an exception, the cause of this one; says what happened."""


class _TookTooLong(BaseException):
    """Raised inside a plug-in whose time is up; not an Exception, or it could be swallowed."""


def guarded(call: Callable[[], T]) -> T:
    """Return what ``call`` returns, or raise Failure from whatever it raised.

    SystemExit, KeyboardInterrupt and every other BaseException count as the plug-in's failure: a
    module written as a script must not end the program that merely lists it. Only the user's own
    interrupt goes through. If the call has forked, the child ends here, and does not do the
    caller's work a second time.
    """
    process = os.getpid()
    try:
        result = call()
    except BaseException as exc:
        if os.getpid() != process:
            _end_child()
        if isinstance(exc, KeyboardInterrupt) and not _was_raised_by_code(exc):
            raise
        raise Failure(_summary(exc)) from exc
    if os.getpid() != process:
        _end_child()
    return result


def _summary(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    if isinstance(exc, _TookTooLong):
        return text
    return f"raised {type(exc).__name__}: {text}" if text else f"raised {type(exc).__name__}"


def _end_child() -> NoReturn:
    # Through os: the child's copies of open files must not be written a second time.
    os.write(2, b"accel-streams: warning: a plug-in has forked; its child ends here.\n")
    os._exit(1)


def _was_raised_by_code(exc: BaseException) -> bool:
    """Return whether a ``raise`` statement raised ``exc``; Ctrl-C raises it between any two."""
    from dis import opmap

    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    instruction = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return instruction in (opmap["RAISE_VARARGS"], opmap["RERAISE"])


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Send what is printed meanwhile to stderr, also by C code: stdout holds our own answer."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # Closed: there is nothing to keep apart.
        yield
        return
    try:
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise inside the block when it takes longer; None: no limit.

    For programs of ours, which own the process's alarm: code that never returns to Python ends the
    process after a while more, with a traceback that shows where it is.
    """
    if seconds is None:
        yield
        return
    import faulthandler
    import signal
    import time

    def alarm(number: int, frame: FrameType | None) -> NoReturn:
        raise _TookTooLong(f"did not return within {seconds:g} s")

    start = time.monotonic()
    handler = signal.signal(signal.SIGALRM, alarm)
    # Again every second, for code that swallows everything.
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:  # Somebody else's alarm, such as a test's.
            left = max(remaining - (time.monotonic() - start), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


@contextlib.contextmanager
def announce_after(seconds: float, message: str) -> Iterator[None]:
    """Log ``message`` as a warning if the block takes longer, so that a hang has a name."""
    import logging
    import threading

    timer = threading.Timer(seconds, logging.getLogger("accel_streams").warning, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
