"""Where the order of the accesses is taken care of, so that DeepSpeed's own waits may drop out.

DeepSpeed asks ``resolves_data_dependency()`` before each of its waits. The honest answer for a
device with independent streams is no, except where this package orders every access that the wait
is there for: inside the methods that it guards, on the host thread that runs them.
"""

from __future__ import annotations

import threading

__all__ = ["REGION", "Region"]


class Region(threading.local):
    """How deep this host thread is in methods whose accesses are ordered."""

    depth = 0


REGION = Region()
"""The one of this process."""
