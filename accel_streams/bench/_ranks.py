"""Start the ranks of a benchmark as processes of this machine, and wait for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from accel_streams._errors import AccelStreamsError

__all__ = ["run_ranks"]


def run_ranks(
    command: Sequence[str], ranks: int, *, timeout_s: float, environment: Mapping[str, str]
) -> None:
    """Run ``python COMMAND`` once a rank, with what ``torch.distributed`` needs in the environment.

    Raise AccelStreamsError when a rank fails or the time is up; the others are ended then.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        variables = {
            **os.environ,
            **environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        children.append(subprocess.Popen([sys.executable, *command], env=variables))
    deadline = time.monotonic() + timeout_s
    try:
        # The first to fail ends the others, which would wait for it.
        while any(child.poll() is None for child in children):
            failed = [child.returncode for child in children if child.returncode]
            if failed or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        codes = [child.poll() for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    if None in codes and not any(codes):
        raise AccelStreamsError(f"the ranks were still running after {timeout_s:.0f} s; ended them")
    if any(codes):
        raise AccelStreamsError(f"a rank failed: exit statuses {codes}; its output is above")
