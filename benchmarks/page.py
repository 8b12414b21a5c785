"""Write docs/benchmarks.md from the results in benchmarks/results.

python benchmarks/page.py            write the page
python benchmarks/page.py --check    exit with status 1 if it is not current
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

OPENING = """# Figures

Written by `python benchmarks/page.py` from the files in `benchmarks/results`. Each row names the \
command that measures it, and is as that command left it; a figure that was missed says so.
"""
FAKE = {
    "us_per_operation": "microseconds of host time for each operation of a ZeRO-like training step",
    "check_ratio": "a step with the race check, to one without",
    "load_s": "seconds to load the extension",
    "build_s": "seconds to build it, once",
}


def load(name: str) -> Any:
    """Return what a file of results holds."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return ["", *(f"| {' | '.join(line)} |" for line in lines)]


def reached(does: bool) -> str:
    """Say whether a figure is what it should be."""
    return "reached" if does else "**missed**"


def detector() -> list[str]:
    """Return the section on the race detector."""
    figures = load("detector.json")["figures"].values()
    rows = [
        (
            each["title"],
            each["value"],
            f"{reached(each['reached'])} ({each['target']})",
            f"`{each['command']}` at {each['commit']}",
        )
        for each in figures
    ]
    machine = max((each["machine"] for each in figures), key=len)
    return [
        "",
        "## Race detector",
        "",
        "`python benchmarks/detector_figures.py` measures these; measured on "
        f"{machine['cores']} cores with Python {machine['python']}, torch {machine['torch']} and "
        f"DeepSpeed {machine['deepspeed']}.",
        *table(("figure", "value", "wanted", "command and commit"), rows),
    ]


def mutations() -> list[str]:
    """Return the table of waits that were taken away."""
    figure = load("detector.json")["figures"].get("mutations")
    if figure is None:
        return []
    edges: dict[str, dict[str, str]] = figure["details"]
    releases = sorted({release for found in edges.values() for release in found})
    said = {"passed": "reported", "skipped": "not run", "failed": "**survived**"}
    rows = [
        (edge, *(said.get(found.get(release, ""), "") for release in releases))
        for edge, found in edges.items()
    ]
    header = ("wait or lifetime of the fix", *(f"DeepSpeed {release}" for release in releases))
    return [
        "",
        "### Each wait of the fix, taken away",
        "",
        "In one in-order run of DeepSpeed on the simulated device. The names are those of "
        "[how it works](how-it-works.md). Not run is what a release waits for by itself, or can't "
        "do at all.",
        *table(header, rows),
    ]


def simulated() -> list[str]:
    """Return the section on the simulated device."""
    results = load("fake_device.json")
    machine = results["machine"]
    rows = [
        (
            FAKE[each["name"]],
            f"{each['value']:g}",
            f"{reached(each['reached'])} (at most {each['limit']:g})",
        )
        for each in results["figures"]
    ]
    return [
        "",
        "## Simulated device",
        "",
        f"`python benchmarks/fake_device.py`, {results['operations_per_step']:,} operations a "
        f"step, on {machine['cpus']} cores with Python {machine['python']} and torch "
        f"{machine['torch']}.",
        *table(("figure", "value", "wanted"), rows),
    ]


def cuda() -> list[str]:
    """Return the section on what was seen on GPUs."""
    lines = ["", "## On GPUs"]
    for name in ("cuda_correctness.json", "cuda_correctness_1gpu.json"):
        results = load(name)
        machine, settings, cases = results["machine"], results["settings"], results["cases"]
        rows = [
            (
                case["name"],
                *(
                    f"{case[variant]['wrong']:,} of {case[variant]['elements']:,}"
                    for variant in ("off", "track")
                ),
            )
            for case in cases
        ]
        lines += [
            "",
            f"### {machine['gpus']} {machine['gpu']}: wrong parameters",
            "",
            f"`python benchmarks/cuda_correctness.py`: {settings['steps']} steps of a GPT with "
            f"{settings['layers']} layers of width {settings['width']}, compared bit by bit with "
            f"the same training with launches that block. torch {machine['torch']}, DeepSpeed "
            f"{machine['deepspeed']}, commit {machine['commit']}.",
            *table(("setting", "as shipped", "with this package"), rows),
        ]
    lines += demo()
    checked = load("check_cuda.json")
    results = [each["result"] for each in checked["properties"]]
    machine = checked["machine"]
    told = ", ".join(f"{results.count(kind)} {kind}" for kind in sorted({*results}))
    lines += [
        "",
        "### The conformance suite",
        "",
        f"`accel-streams check cuda` on {machine['gpus']} {machine['gpu']}, torch "
        f"{machine['torch']}, commit {machine['commit']}: {told}"
        + "".join(
            f"; {each['id']} {each['result']}: {each['detail']}"
            for each in checked["properties"]
            if each["result"] != "passed"
        )
        + ".",
    ]
    watched = load("races_cuda.json")
    lines += [
        "",
        "### The race check",
        "",
        f"`python benchmarks/races_cuda.py` on {watched['devices']} {watched['device']}, torch "
        f"{watched['torch']}, commit {watched['commit']}: {watched['as expected']} of "
        f"{watched['programs']} programs judged rightly. A small operation in place took "
        f"{watched['cost']['watched_us']:g} us of the host, and {watched['cost']['bare_us']:g} us "
        "when nothing was watched.",
    ]
    return lines


def demo() -> list[str]:
    """Return the section on the demo."""
    results = load("demo_cuda.json")
    machine, shown = results["machine"], results["demo"]
    shipped, ours = shown["variants"]
    told = []
    for variant, name in ((shipped, "as shipped"), (ours, "with this package")):
        runs = len(variant["schedules"])
        told.append(
            f"{name} {variant['agreeing'] - 1} of {runs - 1} free runs ended like the one in "
            f"which launches block, with {len(variant['races'])} races"
        )
    return [
        "",
        "### The demo",
        "",
        f"`{results['command']}` on {machine['gpus']} {machine['gpu']}, torch {shown['torch']}, "
        f"DeepSpeed {shown['deepspeed']}, commit {results['commit']}: {'; '.join(told)}.",
    ]


def page() -> str:
    """Return the page as it should be."""
    lines = [*detector(), *mutations(), *simulated(), *cuda()]
    return OPENING + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
