# mypy: disable-error-code="attr-defined, no-untyped-call"
# torch.fake comes into being at run time; some of torch's methods have no types.
"""Watching a block, a test, and a whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from accel_streams import AccelStreamsError, NothingWatchedError, RaceError, fake
from accel_streams.races import render_text, watch
from accel_streams.races._revive import race_of

pytest_plugins = ["pytester"]
LIMIT = 300
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
ROOT = Path(__file__).parents[2]
TRAIN = Path(__file__).with_name("scripts") / "train_zero.py"
pytestmark = pytest.mark.timeout(LIMIT + 20)


@pytest.fixture(autouse=True)
def _enabled() -> None:
    fake.enable()
    torch.fake.synchronize()


def race() -> None:
    x, side = torch.ones(4, device="fake"), torch.fake.Stream()
    side.wait_stream(torch.fake.current_stream())
    x.mul_(2)
    with torch.fake.stream(side):
        x.sum()


class TestBlock:
    def test_a_race_is_seen_and_raised_by_check(self) -> None:
        with watch() as seen:
            race()
        (found,) = seen.races
        assert found.kind == "read-after-write"
        with pytest.raises(RaceError, match="must wait for") as caught:
            seen.check()
        assert caught.value.races == (found,)
        assert "1 race in 3 operations" in str(caught.value)
        assert "Not seen:" in str(caught.value)

    def test_what_is_right_passes(self) -> None:
        with watch("fake:0") as seen:
            torch.ones(4, device="fake").mul_(2)
        seen.check()
        assert (seen.races, seen.operations) == ([], 2)

    def test_seeing_nothing_is_not_seeing_no_race(self) -> None:
        with watch() as seen:
            torch.ones(4)
        with pytest.raises(NothingWatchedError, match="No operation on the device 'fake'"):
            seen.check()

    def test_it_can_be_asked_in_the_middle(self) -> None:
        with watch() as seen:
            torch.ones(4, device="fake")
            assert seen.operations == 1
            race()
            assert len(seen.races) == 1
        assert seen.operations == 4

    def test_watches_may_be_nested_and_leave_nothing_behind(self) -> None:
        with watch() as outer:
            race()
            with watch() as inner:
                torch.ones(4, device="fake")
            race()
        assert (inner.operations, outer.operations) == (1, 7)
        assert inner.races == []
        torch.ones(4, device="fake")
        assert outer.operations == 7

    def test_a_device_without_streams_is_refused(self) -> None:
        with pytest.raises(AccelStreamsError, match="nothing can race there"), watch("cpu"):
            pass

    def test_a_report_survives_its_way_between_processes(self) -> None:
        with watch() as seen:
            race()
        again = [race_of(each) for each in seen.to_json()["races"]]
        assert render_text(again) == render_text(seen.races)


class TestPlugin:
    @pytest.fixture(autouse=True)
    def _built_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # pytester gives its runs another home, in which the device would be built once more.
        monkeypatch.setenv("XDG_CACHE_HOME", CACHE)

    def test_a_marked_test_fails_with_the_report(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest, torch
            from accel_streams import fake
            fake.enable()

            def work(wait):
                x, side = torch.ones(4, device="fake"), torch.fake.Stream()
                if wait:
                    side.wait_stream(torch.fake.current_stream())
                with torch.fake.stream(side):
                    x.sum()

            @pytest.mark.no_races
            def test_racy():
                work(wait=False)

            @pytest.mark.no_races("fake")
            def test_right():
                work(wait=True)

            @pytest.mark.no_races
            def test_idle():
                pass

            @pytest.mark.no_races
            def test_that_fails_itself():
                work(wait=False)
                assert 1 == 2

            def test_with_the_fixture(race_watch):
                work(wait=False)
                assert [race.kind for race in race_watch.races] == ["read-after-write"]

            def test_that_nobody_watches():
                work(wait=False)
            """
        )
        result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider")
        result.assert_outcomes(passed=3, failed=3)
        result.stdout.fnmatch_lines(
            [
                "*RaceError: 1 race in 2 operations*",
                "*missing: *must wait for*",
                "*NothingWatchedError: No operation*",
                "*assert 1 == 2*",
            ]
        )

    def test_it_imports_nothing_where_it_is_not_used(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import sys

            def test_nothing_is_imported():
                heavy = {"torch", "wrapt", "accel_streams.races", "accel_streams.fake"}
                assert "accel_streams._pytest" in sys.modules
                assert not heavy & set(sys.modules)
            """
        )
        result = pytester.runpytest_subprocess(
            "-p", "no:cacheprovider", "-p", "no:hypothesispytest"
        )
        result.assert_outcomes(passed=1)


def train(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Train with DeepSpeed under a user's stream, on one rank."""
    arguments = ["--stage", "2", "--overlap", "1", "--contiguous", "1", "--steps", "2"]
    return subprocess.run(
        [sys.executable, str(TRAIN), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "DS_ACCELERATOR": "accel_streams:cpu_fake",
            "LOCAL_RANK": "0",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


class TestProcess:
    def test_warn_tells_each_race_once_and_a_summary(self, tmp_path: Path) -> None:
        done = train(tmp_path, ACCEL_STREAMS_RACES="warn", ACCEL_STREAMS_ZERO="off")
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stderr.splitlines() if "RaceWarning: race between" in line]
        assert told
        assert len(set(told)) == len(told)
        assert any("deepspeed/runtime/zero/stage_1_and_2.py:" in line for line in told)
        (summary,) = [line for line in done.stderr.splitlines() if "told above" in line]
        assert f"{len(told)} race" in summary
        assert "Not seen:" in done.stderr

    def test_raise_ends_the_training_at_the_step(self, tmp_path: Path) -> None:
        done = train(tmp_path, ACCEL_STREAMS_RACES="raise", ACCEL_STREAMS_ZERO="off")
        assert done.returncode == 1
        assert "RaceError:" in done.stderr
        assert "missing:" in done.stderr
        assert "engine.step()" in done.stderr

    def test_raise_with_this_package_s_order_trains_to_the_end(self, tmp_path: Path) -> None:
        done = train(tmp_path, ACCEL_STREAMS_RACES="raise")
        assert done.returncode == 0, done.stderr
        (summary,) = [line for line in done.stderr.splitlines() if "no races in" in line]
        assert int(summary.split()[-2].replace(",", "")) > 100

    def test_a_warning_made_an_error_is_not_lost(self, tmp_path: Path) -> None:
        done = train(
            tmp_path,
            ACCEL_STREAMS_RACES="warn",
            ACCEL_STREAMS_ZERO="off",
            PYTHONWARNINGS="error::UserWarning:accel_streams.races._process",
        )
        assert done.returncode == 1
        assert "RaceWarning: race between streams" in done.stderr

    def test_a_race_after_the_last_step_is_no_success(self, tmp_path: Path) -> None:
        script = tmp_path / "late.py"
        script.write_text(
            "import deepspeed, torch\n"
            "x, side = torch.ones(4, device='fake'), torch.fake.Stream()\n"
            "with torch.fake.stream(side):\n"
            "    x.sum()\n"
        )
        for mode, status in (("raise", 1), ("warn", 0), ("off", 0)):
            done = subprocess.run(
                [sys.executable, str(script)],
                env={
                    **os.environ,
                    "DS_ACCELERATOR": "accel_streams:cpu_fake",
                    "ACCEL_STREAMS_RACES": mode,
                },
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
            assert done.returncode == status, done.stderr
            assert ("late.py:4" in done.stderr) == (mode != "off")

    def test_a_process_that_did_nothing_says_so(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", "import deepspeed"],
            env={
                **os.environ,
                "DS_ACCELERATOR": "accel_streams:cpu_fake",
                "ACCEL_STREAMS_RACES": "warn",
            },
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0
        assert "no operation on the device 'fake' was seen" in done.stderr
