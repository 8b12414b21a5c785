"""Run a script in this process as one run of the explorer does.

``python -m accel_streams.explore [-m] train.py ARGUMENTS``; with several ranks, under a launcher's
option for a module. It is what ``accel-streams explore`` prints to replay a schedule: the simulated
device is there from the first line on, even for a script that only asks torch for it, and random
numbers that the script does not seed are the explorer's. The schedule is that of
``ACCEL_STREAMS_SCHEDULE``.
"""

from __future__ import annotations

import os
import sys

from accel_streams.explore._child import run_script, seed
from accel_streams.explore._plan import Script

_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


def main(arguments: list[str]) -> int:
    """Run the script that the arguments name; return its exit status, 2 when they name none."""
    module = arguments[:1] == ["-m"]
    target, *rest = (arguments[1:] if module else arguments) or [""]
    if not target:
        print("usage: python -m accel_streams.explore [-m] SCRIPT [ARGUMENTS]", file=sys.stderr)
        return 2
    if "RANK" not in os.environ:
        os.environ.update(_ALONE)
    from accel_streams import fake

    fake.enable()
    seed(int(os.environ["RANK"]))
    return run_script(Script(target, tuple(rest), module))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
