"""``accel-streams bench``: what can be told without a GPU. The results are committed beside it."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel_streams import AccelStreamsError
from accel_streams.bench import VARIANTS, Group, Options, Setting, ratio, run
from accel_streams.bench._profile import overlap
from accel_streams.bench._ranks import run_ranks
from accel_streams.bench._results import entries

torch = pytest.importorskip("torch")


class TestRatio:
    def test_is_taken_pair_by_pair(self) -> None:
        """What slows both sides of a pair down changes nothing."""
        result = ratio("a / b", [2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
        assert result.value == pytest.approx(2)
        assert [result.low, result.high] == pytest.approx([2, 2])

    def test_the_interval_covers_the_truth_as_often_as_it_says(self) -> None:
        generator = random.Random(0)
        covered = 0
        for _ in range(2000):
            above = [1.1 * math.exp(generator.gauss(0, 0.1)) for _ in range(5)]
            result = ratio("a / b", above, [1.0] * 5)
            covered += result.low <= 1.1 <= result.high
        assert 0.93 < covered / 2000 < 0.97

    @pytest.mark.parametrize(("above", "below"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
    def test_of_too_little_is_an_error(self, above: list[float], below: list[float]) -> None:
        with pytest.raises(ValueError, match="at least two pairs"):
            ratio("a / b", above, below)


class TestOverlap:
    def test_counts_communication_under_computation(self) -> None:
        spans = overlap(collectives=[(0, 10), (20, 30)], compute=[(5, 25), (24, 28)])
        assert spans == {"collectives": 20, "compute": 23, "hidden": 13 / 20, "possible": 1.0}

    def test_can_be_no_more_than_there_is_computation(self) -> None:
        assert overlap(collectives=[(0, 10)], compute=[(0, 4)])["possible"] == 0.4

    def test_without_communication_has_no_share(self) -> None:
        assert overlap(collectives=[], compute=[(0, 4)])["hidden"] is None


def test_results_name_setting_and_variant() -> None:
    samples = {"stock": [2.0, 2.0], "track": [1.0, 1.0]}
    alone = {"track": {"peak_bytes": 7}}
    runs, ratios = entries({"zero2": {"samples": samples, "alone": alone}}, "group")
    assert [entry["name"] for entry in runs] == ["group/zero2/stock", "group/zero2/track"]
    assert [entry["peak_bytes"] for entry in runs] == [None, 7]
    assert [(r.name, r.value) for r in ratios] == [("group/zero2: track / stock", 0.5)]


def test_every_variant_is_another_training() -> None:
    assert len(set(VARIANTS.values())) == len(VARIANTS)


def test_settings_have_names_of_their_own() -> None:
    settings = [Setting(), Setting(stage=1), Setting(user_stream=False), Setting(persistence=0)]
    assert len({setting.name for setting in settings}) == len(settings)


class TestBadInput:
    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "accel_streams.cli", "bench", *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_no_device_is_a_usage_error(self, tmp_path: Path) -> None:
        done = self.command("--json", str(tmp_path / "bench.json"))
        assert done.returncode == 2
        assert "finds no CUDA device" in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_an_unknown_variant_is_a_usage_error(self) -> None:
        done = self.command("--variants", "stock,quick")
        assert done.returncode == 2
        assert "no variant is called quick; there are stock, " in done.stderr

    def test_a_single_pair_makes_no_ratio(self) -> None:
        with pytest.raises(AccelStreamsError, match="at least 2 pairs"):
            Options(variants=("stock",), pairs=1)


class TestRanks:
    def test_each_gets_its_number(self, tmp_path: Path) -> None:
        program = (
            "import os, pathlib, sys; names = 'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MORE';"
            "pathlib.Path(sys.argv[1], os.environ['RANK'])"
            ".write_text(' '.join(os.environ[name] for name in names))"
        )
        run_ranks(["-c", program, str(tmp_path)], 2, timeout_s=60, environment={"MORE": "x"})
        written = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert written == {"0": "0 0 2 x", "1": "1 1 2 x"}

    def test_the_first_to_fail_ends_the_others(self) -> None:
        program = "import os, time; time.sleep(60 * int(os.environ['RANK'])); raise SystemExit(3)"
        with pytest.raises(AccelStreamsError, match=r"exit statuses \[3, None\]"):
            run_ranks(["-c", program], 2, timeout_s=50, environment={})

    def test_no_rank_outlives_the_time(self) -> None:
        with pytest.raises(AccelStreamsError, match="still running after 1 s"):
            run_ranks(["-c", "import time; time.sleep(60)"], 1, timeout_s=1, environment={})


def test_what_was_measured_is_kept_when_a_later_group_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from accel_streams.bench import _run

    def ranks(command: list[str], *_: Any, environment: dict[str, str], **__: Any) -> None:
        if environment:
            raise AccelStreamsError("a rank failed")
        measured = {"zero2": {"samples": {"track": [1.0]}, "alone": {}}}
        Path(command[-1]).write_text(json.dumps(measured))

    monkeypatch.setattr(_run, "run_ranks", ranks)
    monkeypatch.setattr(_run, "_ranks", lambda options: 2)
    monkeypatch.setattr(_run, "describe_machine", lambda ranks, commit: {})
    kept: list[int] = []
    groups = [Group("good", (Setting(),), {}), Group("bad", (Setting(),), {"X": "1"})]
    with pytest.raises(AccelStreamsError, match="a rank failed"):
        run(groups, Options(("track",)), keep=lambda document: kept.append(len(document["runs"])))
    assert kept == [1]
