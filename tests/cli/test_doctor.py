"""``accel-streams doctor``: complete on a bare Python, and honest about what does not hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from accel_streams import _bootstrap, _registry
from accel_streams.cli import _diagnosis
from accel_streams.hazards import HAZARDS, Finding, ReleaseResults, _results
from made_up_plugins import Plugins

BLOCKER = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
from accel_streams.cli import main
main({words!r})
"""


def doctor(
    tmp_path: Path, *, blocked: tuple[str, ...] = (), **environment: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run ``doctor`` in a new process in which some packages can't be imported."""
    file = tmp_path / "doctor.json"
    words = ["doctor", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER.format(blocked=blocked, words=words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done, json.loads(file.read_text(encoding="utf-8"))


BARE = ("torch", "deepspeed", "numpy", "wrapt", "rich")


def test_works_without_torch_and_without_deepspeed(tmp_path: Path) -> None:
    done, document = doctor(tmp_path, blocked=BARE)
    assert done.returncode == 0, done.stdout
    assert document["schema"] == 1
    states = {entry["name"]: entry for entry in document["backends"]}
    assert set(states) >= {"cuda", "mlu", "cpu_fake"}
    for name in ("cuda", "cpu_fake"):
        assert states[name]["state"] == "unavailable"
        assert "torch" in states[name]["reason"]
    assert document["autoload"]["ran"] is False
    assert "can't be imported" in " ".join(document["notes"])
    assert "can't be built" in document["fake_device"]
    # The distribution is there, though it can't be imported: what was measured with it is shown.
    assert len(document["hazards"]["rows"]) == len(HAZARDS)


def test_shows_everything_about_a_whole_installation(tmp_path: Path) -> None:
    done, document = doctor(tmp_path)
    assert done.returncode == 0, done.stdout
    assert document["torch"] == metadata.version("torch")
    assert document["deepspeed"] == metadata.version("deepspeed")
    assert document["supported_deepspeed"] == ">=0.15.2,<=0.19.8"
    assert document["autoload"] == {"registered": True, "enabled": True, "ran": True}
    assert document["zero_mode"] == "track"
    assert document["environment"]["ACCEL_STREAMS_ZERO"] is None
    assert document["problems"] == []
    for text in (
        document["python"],
        document["torch"],
        document["deepspeed"],
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
        "ACCEL_STREAMS_ZERO",
        "cpu_fake",
        "no problems found",
    ):
        assert text in done.stdout


def test_reports_all_unknown_values_at_once(tmp_path: Path) -> None:
    done, document = doctor(
        tmp_path,
        blocked=BARE,
        ACCEL_STREAMS_ZERO="maybe",
        ACCEL_STREAMS_RACES="loud",
        ACCEL_STREAMS_SCHEDULE="fastest",
        ACCEL_STREAMS_SEED="-1",
        ACCEL_STREAMS_PLUGINS="nonsense",
        DS_ACCELERATOR="accel_streams:",
    )
    assert done.returncode == 1
    assert document["zero_mode"] is None
    problems = "\n".join(document["problems"])
    for variable in ("ZERO", "RACES", "SCHEDULE", "SEED", "PLUGINS"):
        assert f"ACCEL_STREAMS_{variable}" in problems
    assert "DS_ACCELERATOR" in problems
    assert len(document["problems"]) == 6
    assert all(problem in done.stdout for problem in document["problems"])


def test_switched_off_entry_points_are_said_with_the_remedy(tmp_path: Path) -> None:
    done, document = doctor(tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0
    assert document["autoload"] == {"registered": True, "enabled": False, "ran": False}
    assert "switched off by TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stdout
    assert "`import accel_streams` before `import deepspeed`" in done.stdout


class TestDiagnosis:
    """In this process, where single facts can be changed."""

    @pytest.fixture(autouse=True)
    def _entry_point_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_bootstrap, "autoload_ran", True)

    @pytest.mark.parametrize(
        ("value", "accelerator", "problem"),
        [
            ("accel_streams:cpu-fake", "accel_streams on the backend 'cpu_fake'", None),
            ("accel_streams:mlu", "can't be satisfied", "'mlu' of accel-streams"),
            ("accel_streams:nonsense", "can't be satisfied", "no backend called 'nonsense'"),
            ("cpu", "DeepSpeed's 'cpu'", None),
        ],
    )
    def test_what_ds_accelerator_would_give(
        self,
        monkeypatch: pytest.MonkeyPatch,
        value: str,
        accelerator: str,
        problem: str | None,
    ) -> None:
        monkeypatch.setenv("DS_ACCELERATOR", value)
        diagnosis = _diagnosis.diagnose()
        assert accelerator in diagnosis.accelerator
        assert len(diagnosis.problems) == (0 if problem is None else 1)
        assert problem is None or problem in diagnosis.problems[0]

    def test_a_broken_backend_is_a_note_until_it_is_named(
        self, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugins.add("bad", "raise OSError('libvendor.so')")
        diagnosis = _diagnosis.diagnose()
        (info,) = [info for info in diagnosis.backends if info.name == "bad"]
        assert (info.state, info.reason) == ("broken", "loading it raised OSError: libvendor.so")
        assert [note for note in diagnosis.notes if "'bad' of dist-bad" in note]
        assert diagnosis.problems == ()
        monkeypatch.setenv("DS_ACCELERATOR", "accel_streams:bad")
        (problem,) = _diagnosis.diagnose().problems
        assert "libvendor.so" in problem

    def test_names_what_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACCEL_STREAMS_PLUGINS", "cpu_fake")
        diagnosis = _diagnosis.diagnose()
        assert [info.name for info in diagnosis.backends] == ["cpu_fake"]
        assert [note for note in diagnosis.notes if "leaves out the backend 'cuda'" in note]

    def test_a_misspelt_variable_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACCEL_STREAMS_ZER0", "sync")
        diagnosis = _diagnosis.diagnose()
        assert ("ACCEL_STREAMS_ZER0", "sync") in diagnosis.environment
        assert [note for note in diagnosis.notes if "ACCEL_STREAMS_ZER0" in note]

    @pytest.mark.parametrize(
        ("version", "fine"),
        [
            ("0.15.1", False),
            ("0.15.2", True),
            ("0.18.10", True),
            ("0.19.8", True),
            ("0.19.8+abc.9", True),
            ("0.19.9", False),
            ("0.20.0", False),
            ("1.0", False),
        ],
    )
    def test_a_deepspeed_outside_the_range_is_a_problem(
        self, monkeypatch: pytest.MonkeyPatch, version: str, fine: bool
    ) -> None:
        real = metadata.version
        monkeypatch.setattr(
            metadata, "version", lambda name: version if name == "deepspeed" else real(name)
        )
        diagnosis = _diagnosis.diagnose()
        assert [f"DeepSpeed {version}" in text for text in diagnosis.problems] == (
            [] if fine else [True]
        )

    def test_a_conflict_shows_every_claimant(
        self, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugins.add("same", "", distribution="first")
        plugins.add("same", "", distribution="second")
        monkeypatch.setattr(_registry, "installed_entry_points", plugins.entry_points)
        diagnosis = _diagnosis.diagnose()
        assert [info.state for info in diagnosis.backends] == ["conflict", "conflict"]
        assert [note for note in diagnosis.notes if "first 1.0" in note and "second 1.0" in note]


class TestHazards:
    """What was measured, with results made up here."""

    @pytest.fixture(autouse=True)
    def _results(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shipped = Finding("present", ("in-order",), agree=False, reports=("a race",))
        ours = Finding("not seen", ("in-order", "lifo"))
        known = {
            release: ReleaseResults(
                release, "2.13", "3.11", "0.1", f"of {release}",
                {"H2": {"deepspeed": shipped, "accel_streams": ours}},
            )
            for release in ("0.17.4", "0.18.9", "0.18.10")
        }  # fmt: skip
        monkeypatch.setattr(_results, "load_results", lambda: known)

    def test_of_the_installed_release(self) -> None:
        hazards = _diagnosis._hazards("0.18.9")
        assert hazards.measured == "0.18.9"
        assert hazards.source == "DeepSpeed 0.18.9, torch 2.13, commit of 0.18.9"
        states = {row.id: (row.as_shipped, row.accel_streams) for row in hazards.rows}
        assert states.pop("H2") == ("present", "not seen")
        assert set(states) == set(HAZARDS) - {"H2"}
        assert set(states.values()) == {("not measured", "not measured")}

    @pytest.mark.parametrize(
        ("installed", "measured"), [("0.18.8", "0.17.4"), ("0.18.11+local", "0.18.10")]
    )
    def test_of_the_nearest_below(self, installed: str, measured: str) -> None:
        hazards = _diagnosis._hazards(installed)
        assert hazards.measured == measured
        assert hazards.source.startswith(f"not measured with DeepSpeed {installed}; nearest below")

    @pytest.mark.parametrize("installed", ["0.17.3", None])
    def test_of_none(self, installed: str | None) -> None:
        hazards = _diagnosis._hazards(installed)
        assert (hazards.measured, hazards.rows) == (None, ())
        assert ("not measured" if installed else "not installed") in hazards.source
