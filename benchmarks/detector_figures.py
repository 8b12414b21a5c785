"""Measure what the race detector is held to, print it as a table, and keep it.

    python benchmarks/detector_figures.py                        all but the last two, half an hour
    python benchmarks/detector_figures.py --only oracle memory   these
    python benchmarks/detector_figures.py --only tox matrix      how long the tests take

Each figure comes from a command of its own, which the table names. The results are kept in
``benchmarks/results/detector.json``, with the commit that each was measured at; figures that are
not asked for keep their last values. The exit status is 1 if one that was measured is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from checkout import commit
from deepspeed_releases import default_folder, environment, overlay

from accel_streams.explore import version_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "detector.json"
OLDER = "0.18.6"
"""A release in which every wait of the fix is needed; newer ones have some of them themselves."""


class Measured(NamedTuple):
    """One figure: its value in words, and whether it is what it should be."""

    value: str
    reached: bool
    details: Any = None


class Figure(NamedTuple):
    """What is measured, what it should be, with which command, and how to read the outcome."""

    title: str
    target: str
    command: str
    measure: Callable[[str], Measured]


def run(
    command: str, *, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of the repository with this interpreter; what it prints is returned."""
    words = command.split()
    if words[0] == "python":
        words[0] = sys.executable
    elif words[0] == "pytest":
        words[:1] = [sys.executable, "-m", "pytest"]
    return subprocess.run(
        words, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=False
    )


def printed(command: str) -> Any:
    """Return the JSON that a command prints; its exit status is in what it prints, too."""
    done = run(command)
    if not done.stdout.strip():
        raise SystemExit(f"{command} printed nothing and ended with status {done.returncode}")
    return json.loads(done.stdout)


def outcomes(command: str, *, variables: dict[str, str] | None = None) -> dict[str, str]:
    """Return, for each test that a pytest command ran, "passed", "failed" or "skipped"."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run(f"{command} -q --junitxml={report}", variables=variables)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        found = {}
        for case in cases:
            kinds = {child.tag for child in case}
            failed = kinds & {"failure", "error"}
            outcome = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
            found[case.attrib["name"]] = outcome
    return found


def oracle(command: str) -> Measured:
    """Compare the analysis with brute force."""
    seen = printed(command)
    missed, false = len(seen["seeds_with_a_missed_pair"]), len(seen["seeds_with_a_false_alarm"])
    wrong = len(seen["seeds_with_a_wrong_kind"])
    value = (
        f"{seen['programs']:,} programs, {seen['racing_pairs']:,} racing pairs: "
        f"{missed} programs with a missed one, {false} with a false alarm"
    )
    reached = seen["programs"] >= 10_000 and not missed and not false and not wrong
    return Measured(value, reached, seen["programs_with"])


def pairs(command: str) -> Measured:
    """Tell the release with a hazard from the one that mended it."""
    run(command)
    rows = json.loads((RESULTS.parent / "release_pairs.json").read_text())["pairs"]
    holding = [row["hazard"] for row in rows if row["holds"]]
    value = f"{len(holding)} of {len(rows)} pairs ({', '.join(holding)})"
    return Measured(value, len(holding) == len(rows) >= 4)


def mutations(command: str) -> Measured:
    """Take each wait of the fix away; one that a release has itself is tried on an older one."""
    newest = outcomes(command)
    older = outcomes(command, variables=environment(overlay(OLDER, default_folder())))
    edges: dict[str, dict[str, str]] = {}
    for release, found in ((version_of("deepspeed") or "", newest), (OLDER, older)):
        for name, outcome in found.items():
            edge = name.partition("[")[2].rstrip("]")
            edges.setdefault(edge, {})[release] = outcome
    reported = [edge for edge, found in edges.items() if "passed" in found.values()]
    failed = [edge for edge, found in edges.items() if "failed" in found.values()]
    value = f"{len(reported)} of {len(edges)} waits reported when they are taken away"
    return Measured(value, len(reported) == len(edges) > 10 and not failed, edges)


def controls(command: str) -> Measured:
    """Run what is in order as DeepSpeed ships it."""
    found = outcomes(command)
    passed = [name for name, outcome in found.items() if outcome == "passed"]
    value = f"{len(passed)} of {len(found)} clean configurations without a report"
    return Measured(value, len(passed) == len(found) >= 30)


def simulated(command: str) -> Measured:
    """Compare a step with the check to one without."""
    (ratio,) = (ratio for ratio in printed(command)["ratios"] if ratio["name"].endswith("CPU time"))
    value = f"{ratio['value']:.2f} times [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    return Measured(value, ratio["value"] <= 1.2)


def real(command: str) -> Measured:
    """Watch torch's dispatcher on the stand-in for a real device."""
    rows = printed(command)["operations"]
    value = ", ".join(f"{row['added_us']:.1f} us for {row['operation']}" for row in rows)
    return Measured(value, all(row["added_us"] < 10 for row in rows), rows)


def memory(command: str) -> Measured:
    """Feed the analysis with a trace in which the host never waits."""
    seen = printed(command)["memory"]
    kept = [sample["kept_accesses"] for sample in seen["samples"]]
    value = (
        f"{seen['operations']:,} operations: {kept[-1]} accesses kept at the end, {kept[1]} after "
        f"a fifth; {seen['grown_bytes'] / 1024:,.0f} KiB more"
    )
    return Measured(value, bool(seen["flat"]))


def minutes(limit: float) -> Callable[[str], Measured]:
    """Return what takes the time of a command that has to succeed."""

    def measure(command: str) -> Measured:
        began = time.monotonic()
        status = subprocess.run(command.split(), cwd=ROOT, check=False).returncode
        took = (time.monotonic() - began) / 60
        value = f"{took:.1f} min, exit status {status}, {os.cpu_count()} cores"
        return Measured(value, status == 0 and took <= limit)

    return measure


WITHOUT_ONE = (
    "pytest -k without_any_one_edge "
    "tests/deepspeed/test_zero_on_device.py tests/deepspeed/test_zero3_on_device.py"
)
FIGURES = {
    "oracle": Figure(
        "Against brute force",
        "10,000 random programs, no pair missed, no false alarm",
        "python benchmarks/race_oracle.py --programs 10000",
        oracle,
    ),
    "pairs": Figure(
        "Releases before and after a fix",
        "reported on the first, quiet on the second",
        "python benchmarks/release_pairs.py",
        pairs,
    ),
    "mutations": Figure(
        "Waits of the fix taken away",
        "each reported, with the right edge, in one in-order run",
        WITHOUT_ONE,
        mutations,
    ),
    "controls": Figure(
        "Negative controls",
        "at least 30 configurations, no report",
        "pytest -k test_nothing_is_reported tests/cases/test_controls.py",
        controls,
    ),
    "simulated": Figure(
        "Cost on the simulated device",
        "at most 1.2 times",
        "python benchmarks/fake_device.py --pairs 12 --loads 0",
        simulated,
    ),
    "real": Figure(
        "Cost of the dispatch source on a stand-in",
        "under 10 us an operation",
        "python benchmarks/races_cost.py",
        real,
    ),
    "memory": Figure(
        "Memory",
        "flat over 1,000,000 operations",
        "python benchmarks/race_check.py --operations 20000 --memory-operations 1000000",
        memory,
    ),
    "tox": Figure("Default tests", "under 15 minutes", "tox run", minutes(15)),
    "matrix": Figure("Whole matrix", "under 45 minutes", "tox run -m matrix", minutes(45)),
}
LONG = ("tox", "matrix")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=FIGURES, help="measure these")
    options = parser.parse_args()
    names = options.only or [name for name in FIGURES if name not in LONG]
    known = json.loads(RESULTS.read_text())["figures"] if RESULTS.exists() else {}
    at = commit()
    machine = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "torch": version_of("torch"),
        "deepspeed": version_of("deepspeed"),
    }
    for name in names:
        figure = FIGURES[name]
        print(f"measuring {name}: {figure.command}", file=sys.stderr)
        measured = figure.measure(figure.command)
        known[name] = {
            "title": figure.title,
            "target": figure.target,
            "value": measured.value,
            "reached": measured.reached,
            "command": figure.command,
            "commit": at,
            "machine": machine,
            "details": measured.details,
        }
        # After each: the next may take long, and may be interrupted.
        ordered = {each: known[each] for each in FIGURES if each in known}
        text = json.dumps({"schema": 1, "figures": ordered}, indent=1) + "\n"
        RESULTS.write_text(text, encoding="utf-8")
        # The page goes with them: the tests, which may be measured next, compare the two.
        subprocess.run([sys.executable, str(ROOT / "benchmarks" / "page.py")], check=True)
    for name in FIGURES:
        if name in known:
            row = known[name]
            verdict = "reached" if row["reached"] else "MISSED"
            print(f"{row['title']}: {row['value']}")
            print(f"    {verdict}; wanted: {row['target']}; {row['command']} at {row['commit']}")
    return 0 if all(known[name]["reached"] for name in names) else 1


if __name__ == "__main__":
    sys.exit(main())
