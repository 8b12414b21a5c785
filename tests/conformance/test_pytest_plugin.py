"""``pytest --accel-backend NAME``: a test for each property, and honest about each result."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CACHE = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytester gives its runs another home, in which the device would be built once more.
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    # The process that checks looks for a backend of this folder.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider", *arguments)


def test_each_result_is_told_as_what_it_is(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_mine(): pass")
    backend = "broken_backends:Lossy"
    wanted = "mine or ORD-11 or EVT-09 or IDN-01 or IDN-09 or IDN-12"
    result = run(pytester, "--accel-backend", backend, "-k", wanted)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            f"properties of {backend} to check: 5",
            "*test_each_result_is_told_as_what_it_is.py .*",
            f"accel-streams check {backend} FI.du*",
            "*Waiting for an event that was never recorded changes nothing, then or later.",
            "failed: raised RuntimeError: never recorded",
            f"*= accel-streams check {backend} =*",
            "1 passed",
            "1 failed",
            "  ORD-11 wait_unrecorded: raised RuntimeError: never recorded",
            "1 unverified",
            "  IDN-12 external: torch has no ExternalStream for this device",
            "1 inconclusive",
            "  EVT-09 elapsed_cross_stream: the clock is being set",
            "1 declared",
            "  IDN-09 pool: the second stream is the first (seen: *",
            "gate L3: a stream is held until the host releases it",
            "*1 failed, 2 passed, 51 deselected, 1 inconclusive, 1 declared, 1 unverified in *",
        ]
    )


def test_what_was_not_found_out_is_no_success(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--accel-backend", "broken_backends:Lossy", "-k", "EVT-09")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["  EVT-09 elapsed_cross_stream: the clock is being set", "*1 inconclusive in *"]
    )


def test_a_misspelt_name_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--accel-backend", "cpu_fak")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--accel-backend: There is no backend called 'cpu_fak'*"])


@pytest.mark.slow
def test_a_backend_that_cant_be_used_fails_with_its_reason(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--accel-backend", "broken_backends:nothing", "-k", "ORD-01 or ORD-02")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["There is no backend 'broken_backends:nothing': *"])
    result.assert_outcomes(failed=2, deselected=54)


def test_the_marker_selects_the_properties_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_mine(): pass")
    result = run(
        pytester, "--accel-backend", "cpu-fake", "-m", "accel_conformance", "--collect-only", "-q"
    )
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["accel-streams check cpu_fake::ORD-01 fifo"])
    result.stdout.no_fnmatch_line("*test_mine*")


@pytest.mark.slow
def test_after_the_first_failure_the_checking_ends(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--accel-backend", "broken_backends:Lossy", "-x", "-k", "ORD-11 or SYN")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1, deselected=47)
