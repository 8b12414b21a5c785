"""Show that the race check tells the release that has a hazard from the one that mended it.

    python benchmarks/release_pairs.py

For each hazard that DeepSpeed has mended, its program runs once, in order, with the last release
that has it and with the first that hasn't, both as they ship. The check has to report it on the
first and not on the second, and this package may leave no report on either, where it supports the
release. Writes ``benchmarks/results/release_pairs.json``; the exit status is 1 if any pair differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepspeed_releases import MATRIX, default_folder, environment, overlay

from accel_streams.explore import VARIANTS, Runner, version_of
from accel_streams.hazards import HAZARDS, measure_scenario
from accel_streams.hazards._results import release_key

PAIRS = {
    "H14": ("0.14.2", "0.14.3"),
    "H11": ("0.18.7", "0.18.8"),
    "H13": ("0.18.9", "0.19.0"),
    "H1": ("0.19.2", "0.19.3"),
}
"""By hazard: the last release that has it, and the first that hasn't."""

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "release_pairs.json"


def look(hazard: str) -> dict[str, Any]:
    """Run the hazard's program with the installed release; return what was seen, by variant."""
    scenario = HAZARDS[hazard]
    release = version_of("deepspeed") or "none"
    old = release_key(release) < release_key(MATRIX[0])
    found = {}
    with Runner(ranks=scenario.ranks, timeout_s=300, jobs=1) as runner:
        for variant in VARIANTS[:1] if old else VARIANTS:
            finding = measure_scenario(runner, scenario, variant, ["in-order"])
            found[variant.name] = asdict(finding)
    return {"release": release, "torch": version_of("torch"), "variants": found}


def look_with(hazard: str, release: str, folder: Path) -> dict[str, Any]:
    """Do so in a process that has ``release``."""
    variables = environment(overlay(release, folder))
    if release_key(release) < release_key(MATRIX[0]):
        variables["PYTHONPATH"] += os.pathsep + str(HERE / "before_0_15")
    command = [sys.executable, __file__, "--look", hazard]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert seen["release"] == release
    return seen


def holds(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether the hazard was reported before, not after, and never with this package."""
    shipped = [seen["variants"]["deepspeed"] for seen in (before, after)]
    ours = [seen["variants"].get("accel_streams") for seen in (before, after)]
    return (
        shipped[0]["state"] == "present"
        and shipped[1]["state"] in ("not seen", "other")
        and all(finding is None or finding["state"] == "not seen" for finding in ours)
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--look", choices=HAZARDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        print(json.dumps(look(options.look)))
        return 0
    rows = []
    for hazard, pair in PAIRS.items():
        before, after = (look_with(hazard, release, options.folder) for release in pair)
        rows.append(
            {"hazard": hazard, "holds": holds(before, after), "before": before, "after": after}
        )
        states = [
            f"{seen['release']} {name}: {finding['state']}"
            for seen in (before, after)
            for name, finding in seen["variants"].items()
        ]
        print(f"{hazard} {'holds' if rows[-1]['holds'] else 'DOES NOT HOLD'}: {', '.join(states)}")
    RESULTS.write_text(json.dumps({"schema": 1, "pairs": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
