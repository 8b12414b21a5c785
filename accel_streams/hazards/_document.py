"""docs/hazards.md, made from what runs have shown."""

from __future__ import annotations

from collections.abc import Mapping

from accel_streams.hazards._results import STATES, Finding, ReleaseResults
from accel_streams.hazards.scenarios import HAZARDS

__all__ = ["document"]

_HEAD = """\
# The hazards of DeepSpeed, release by release

Made by `python benchmarks/hazard_table.py --write-docs` from the files in
`accel_streams/hazards/results`, which the same program writes from runs; nothing here is written by
hand. Each hazard has a program, in `accel_streams/hazards/scenarios`, that trains under the
conditions that the hazard needs. It runs on the simulated device as DeepSpeed ships and with this
package (`ACCEL_STREAMS_ZERO=track`): in order, with the race check on, and under other schedules,
whose parameters are compared with those of the run in order.
"""

_READING = """\
A cell is what was seen as shipped, an arrow, and what was seen with this package.
"""

_H17 = """\
H17 is no hazard but the reason why those of 0.19.8 remain: its own events (`ready_events`, \
`reuse_events`) are used only with `offload_optimizer` and without ZenFlow, so every other setting \
has the ordering of before.
"""

_AS_SHIPPED, _OURS = "deepspeed", "accel_streams"


def document(results: Mapping[str, ReleaseResults]) -> str:
    """Return the page for ``results``, by release, oldest first."""
    notes: dict[str, int] = {}
    releases = list(results)
    rows = [["", "hazard", *releases], ["---"] * (2 + len(releases))]
    for scenario in HAZARDS.values():
        cells = [_cell(results[release].hazards.get(scenario.id), notes) for release in releases]
        rows.append([scenario.id, scenario.title, *cells])
    parts = [_HEAD, _table(rows), _READING + _legend(results)]
    if notes:
        parts.append("\n".join(f"{number}. {note}" for note, number in notes.items()) + "\n")
    parts += ["## The conditions\n", _conditions(), _H17]
    parts += ["## What was run\n", _runs(results)]
    parts += ["## An example of each report\n", _examples(results)]
    return "\n".join(parts)


def _cell(variants: Mapping[str, Finding] | None, notes: dict[str, int]) -> str:
    if variants is None:
        return "not measured"
    shipped, ours = variants[_AS_SHIPPED], variants[_OURS]
    if shipped.state == ours.state == "can't run":
        return _words(shipped, notes)
    return f"{_words(shipped, notes)} → {_words(ours, notes)}"


def _words(finding: Finding, notes: dict[str, int]) -> str:
    if finding.state == "can't run":
        number = notes.setdefault(finding.reason, len(notes) + 1)
        return f"can't run ({number})"
    words: str = finding.state
    if finding.state == "present" and not finding.agree:
        words = "**present**"
    return words


def _legend(results: Mapping[str, ReleaseResults]) -> str:
    used = {
        finding.state
        for release in results.values()
        for variants in release.hazards.values()
        for finding in variants.values()
    }
    lines = [f"- *{state}*: {meaning}." for state, meaning in STATES.items() if state in used]
    lines.insert(
        1, "- ***present***: and under another schedule other parameters were trained, too."
    )
    return "\n" + "\n".join(lines) + "\n"


def _conditions() -> str:
    rows = [["", "ZeRO stage", "ranks", "streams with gradient hooks", "settings"], ["---"] * 5]
    for scenario in HAZARDS.values():
        settings = ", ".join(f"{name}: {value}" for name, value in scenario.case.items())
        rows.append(
            [
                scenario.id,
                " and ".join(map(str, scenario.stages)) or "none",
                str(scenario.ranks),
                "several" if scenario.needs == "multi" else "one is enough",
                settings,
            ]
        )
    return _table(rows)


def _runs(results: Mapping[str, ReleaseResults]) -> str:
    rows = [["DeepSpeed", "torch", "Python", "accel_streams", "commit", "runs"], ["---"] * 6]
    for release in results.values():
        runs = sum(
            len(finding.schedules)
            for variants in release.hazards.values()
            for finding in variants.values()
        )
        rows.append(
            [
                release.deepspeed,
                release.torch,
                release.python,
                release.accel_streams,
                release.commit,
                str(runs),
            ]
        )
    return _table(rows)


def _examples(results: Mapping[str, ReleaseResults]) -> str:
    """Return one report of each hazard, of the newest release that has it."""
    lines = []
    for hazard in HAZARDS:
        for release in reversed(list(results.values())):
            finding = release.hazards.get(hazard, {}).get(_AS_SHIPPED)
            if finding is not None and finding.reports:
                lines.append(f"- {hazard}, DeepSpeed {release.deepspeed}: {finding.reports[0]}.")
                break
    return "\n".join(lines) + "\n"


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
