"""Where the order of the accesses is taken care of, so that DeepSpeed's own waits may drop out.

DeepSpeed asks ``resolves_data_dependency()`` before each of its waits. The honest answer for a
device with independent streams is no, except where this package orders every access that the wait
is there for: inside the methods that it guards, on the host thread that runs them.

In other methods it waits for ``default_stream()`` where the stream that trains is meant. Only
inside those does the default stream stand for the current one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["REGION", "Region", "default_is_current"]


class Region(threading.local):
    """How deep this host thread is in methods whose accesses are ordered.

    ``default_is_current``: how deep in methods that say the default stream and mean the current.
    """

    depth = 0
    default_is_current = 0


REGION = Region()
"""The one of this process."""


@contextmanager
def default_is_current() -> Iterator[None]:
    """Have ``default_stream()`` give the current stream, on this host thread."""
    REGION.default_is_current += 1
    try:
        yield
    finally:
        REGION.default_is_current -= 1
