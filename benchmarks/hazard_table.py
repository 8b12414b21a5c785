"""Measure which hazard shows with which release of DeepSpeed, and write the table in the docs.

    python benchmarks/hazard_table.py                     with the installed release
    python benchmarks/hazard_table.py --releases all      with every release of the matrix
    python benchmarks/hazard_table.py --write-docs        docs/hazards.md from what was measured

Each hazard's program runs as DeepSpeed ships and with this package, under several schedules of the
simulated device. What the runs show goes to ``accel_streams/hazards/results``, a file a release,
and comes with the package. The exit status is 1 if anything was wrong with this package.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from checkout import commit
from deepspeed_releases import MATRIX, default_folder, environment, overlay

from accel_streams.explore import version_of
from accel_streams.hazards import HAZARDS, Finding, ReleaseResults, document, load_results, measure

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "accel_streams" / "hazards" / "results"
DOCS = ROOT / "docs" / "hazards.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--releases", nargs="+", help="releases of DeepSpeed, or all")
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--only", nargs="+", choices=HAZARDS, help="these hazards, keep the others")
    parser.add_argument("--schedules", nargs="+", help="in-order first; else those of each hazard")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    if options.write_docs:
        DOCS.write_text(document(load_results()), encoding="utf-8")
        return 0
    if options.releases:
        return measure_releases(options)
    return measure_installed(options.only, options.schedules)


def measure_releases(options: argparse.Namespace) -> int:
    """Measure each release in a process of its own; return the worst exit status."""
    statuses = []
    for release in MATRIX if options.releases == ["all"] else options.releases:
        command = [sys.executable, __file__]
        for name in ("only", "schedules"):
            if getattr(options, name):
                command += [f"--{name}", *getattr(options, name)]
        target = overlay(release, options.folder)
        statuses.append(subprocess.run(command, env=environment(target), check=False).returncode)
    return max(statuses)


def measure_installed(only: list[str] | None, schedules: list[str] | None) -> int:
    """Measure the installed release and write its file."""
    release = version_of("deepspeed") or "none"
    print(f"DeepSpeed {release}", flush=True)
    results = measure(
        hazards=only,
        schedules=schedules,
        commit=commit("accel_streams/deepspeed"),
        progress=lambda line: print(line, flush=True),
    )
    path = results.save(RESULTS) if only is None else merged(results).save(RESULTS)
    print(f"wrote {path}")
    ours = [variants["accel_streams"] for variants in results.hazards.values()]
    return 0 if all(map(fine, ours)) else 1


def fine(finding: Finding) -> bool:
    return finding.clean or finding.state == "can't run"


def merged(new: ReleaseResults) -> ReleaseResults:
    """Return ``new`` with the hazards that were measured earlier and not now."""
    old = load_results().get(new.deepspeed)
    if old is None:
        return new
    both = {**old.hazards, **new.hazards}
    ordered = {hazard: both[hazard] for hazard in HAZARDS if hazard in both}
    return replace(new, hazards=ordered)


if __name__ == "__main__":
    sys.exit(main())
