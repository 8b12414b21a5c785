"""Write the tables of docs/conformance.md from the results in benchmarks/results.

    python benchmarks/conformance_page.py             write the tables
    python benchmarks/conformance_page.py --measure   check cpu_fake and its mutants anew first

The text of the page is written by hand; each table stands between two comments.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

from page import RESULTS, ROOT, load, table

from accel_streams.conformance import GROUPS, properties
from accel_streams.conformance.mutants import MUTANTS

__all__ = ["CHECK", "MUTATED", "PAGE", "written"]

PAGE = ROOT / "docs" / "conformance.md"
CHECK, MUTATED, CUDA = "check_cpu_fake.json", "check_mutants.json", "check_cuda.json"


def written(text: str) -> str:
    """Return the page ``text`` with its tables as the results are."""
    for name, lines in (("properties", _properties()), ("mutants", _mutants())):
        before, start, rest = text.partition(f"<!-- made: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not start or not end:
            raise ValueError(f"{PAGE} has no place for the table of {name}")
        text = before + start + "\n".join(lines).strip("\n") + "\n" + end + after
    return text


def _properties() -> list[str]:
    columns = [_results(CHECK), _results(CUDA)]
    lines = []
    for letters, title in GROUPS.items():
        rows: list[tuple[str, ...]] = [
            (
                f"{each.id} {each.name}",
                _escaped(each.summary),
                "yes" if each.gate else "",
                *(results.get(each.id, "not measured") for results in columns),
            )
            for each in properties()
            if each.group == letters
        ]
        lines += [f"\n{title}:", *table(("property", "", "gate", "cpu_fake", "cuda"), rows)]
    return lines


def _results(name: str) -> dict[str, str]:
    return {each["id"]: each["result"] for each in load(name)["properties"]}


def _mutants() -> list[str]:
    document = {each["name"]: each for each in load(MUTATED)["mutants"]}
    rows: list[tuple[str, ...]] = [
        (
            f"`{name}`",
            _escaped(mutant.summary),
            ", ".join(document[name]["noticed"]) if name in document else "not measured",
        )
        for name, mutant in MUTANTS.items()
    ]
    return table(("mutant", "what is wrong with it", "noticed by"), rows)


def _escaped(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _measure() -> None:
    for name, options in ((CHECK, []), (MUTATED, ["--mutants"])):
        command: list[Any] = [sys.executable, "-m", "accel_streams.cli", "check", "cpu_fake"]
        subprocess.run([*command, *options, "--json", RESULTS / name], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true", help="check cpu_fake first")
    if parser.parse_args().measure:
        _measure()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
