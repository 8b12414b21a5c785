"""Run one hazard's program: ``python -m accel_streams.hazards.scenarios H10 '{"steps": 5}'``."""

from __future__ import annotations

import importlib
import json
import sys

from accel_streams.hazards.scenarios import HAZARDS
from accel_streams.hazards.scenarios._scenario import PACKAGE


def main(arguments: list[str]) -> None:
    """Run the program that the first argument names, with the case changed by the second."""
    if not 1 <= len(arguments) <= 2 or arguments[0] not in HAZARDS:
        raise SystemExit(f"usage: python -m {PACKAGE} {{{','.join(HAZARDS)}}} [JSON object]")
    scenario = HAZARDS[arguments[0]]
    changes = json.loads(arguments[1]) if len(arguments) == 2 else {}
    program = importlib.import_module(f"{PACKAGE}._{scenario.program}")
    program.run({**scenario.case, **changes})


main(sys.argv[1:])
