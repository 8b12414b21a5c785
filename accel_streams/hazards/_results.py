"""What runs have shown of each hazard, release by release: files that come with the package.

Standard library only: ``accel-streams doctor`` reads them where neither torch nor DeepSpeed is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeAlias

__all__ = [
    "RESULTS",
    "STATES",
    "Finding",
    "ReleaseResults",
    "State",
    "load_results",
    "release_key",
    "results_for",
]

RESULTS = "results"
"""The folder of the files, one for each release, in this package."""

State: TypeAlias = Literal["present", "differs", "other", "not seen", "can't run"]

STATES: Mapping[State, str] = {
    "present": "the race check reported the hazard",
    "differs": "nothing was reported, but some schedule ended with other parameters",
    "other": "other races were reported in the same run, not this one",
    "not seen": "nothing was reported, and every schedule ended with equal parameters",
    "can't run": "the program does not run with this release; the reason is given",
}
"""What runs can show of a hazard."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the runs of one hazard's program in one variant have shown.

    ``schedules``: those that were run. ``agree``: whether all of them ended with equal parameters.
    ``reports`` are the hazard's own, in words, ``others`` the number of other ones.
    """

    state: State
    schedules: tuple[str, ...] = ()
    agree: bool = True
    skipped_steps: int = 0
    reports: tuple[str, ...] = ()
    others: int = 0
    reason: str = ""

    @property
    def clean(self) -> bool:
        """Whether the program ran and there was nothing wrong."""
        return self.state == "not seen"

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Finding:
        """Read what ``asdict`` wrote."""
        return cls(
            **{
                **entry,
                "schedules": tuple(entry["schedules"]),
                "reports": tuple(entry["reports"]),
            }
        )


@dataclass(frozen=True, slots=True)
class ReleaseResults:
    """What was measured with one release of DeepSpeed, and with what.

    ``hazards``: by hazard, then by variant, ``deepspeed`` (as shipped) or ``accel_streams``.
    """

    deepspeed: str
    torch: str
    python: str
    accel_streams: str
    commit: str
    hazards: Mapping[str, Mapping[str, Finding]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"schema": 1, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ReleaseResults:
        """Read what ``to_json`` wrote."""
        if document["schema"] != 1:
            raise ValueError(f"unknown schema {document['schema']!r} of hazard results")
        known = {key: value for key, value in document.items() if key not in ("schema", "hazards")}
        hazards = {
            hazard: {name: Finding.from_json(entry) for name, entry in variants.items()}
            for hazard, variants in document["hazards"].items()
        }
        return cls(**known, hazards=hazards)

    def save(self, folder: Path) -> Path:
        """Write the file of this release to ``folder``."""
        path = folder / f"{self.deepspeed}.json"
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        return path


def release_key(release: str) -> tuple[int, ...]:
    """Return what sorts releases: the numbers of ``0.19.8`` in ``0.19.8+local``."""
    return tuple(map(int, re.findall(r"\d+", release.partition("+")[0])[:3]))


def load_results() -> dict[str, ReleaseResults]:
    """Return what was measured, by release, oldest first."""
    found = [
        ReleaseResults.from_json(json.loads(file.read_text(encoding="utf-8")))
        for file in (resources.files(__package__) / RESULTS).iterdir()
        if file.name.endswith(".json")
    ]
    found.sort(key=lambda results: release_key(results.deepspeed))
    return {results.deepspeed: results for results in found}


def results_for(release: str) -> ReleaseResults | None:
    """Return the results of ``release``; else of the nearest below it, else None."""
    below = [
        results
        for results in load_results().values()
        if release_key(results.deepspeed) <= release_key(release)
    ]
    return below[-1] if below else None
