"""The process runner, on the CPU: results, failures, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_streams.explore import (
    IN_ORDER,
    VARIANTS,
    NotDeterministicError,
    Run,
    RunFailedError,
    Runner,
    Schedule,
    Script,
    StartError,
    Variant,
    compare,
)

PLAIN = "plain_device:PlainDevice"
FIFO = Schedule("fifo")
OURS = VARIANTS[1]


@pytest.fixture(scope="module")
def runner(_devices_importable: None) -> Iterator[Runner]:
    with Runner(ranks=2, device=PLAIN, timeout_s=60) as running:
        assert running.fresh_reason == ""
        yield running


@pytest.fixture
def impatient(_devices_importable: None) -> Iterator[Runner]:
    with Runner(ranks=2, device=PLAIN, timeout_s=3, jobs=2) as running:
        yield running


def gone(process: int, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # A zombie whose new parent is slow to reap it has ended all the same.
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        time.sleep(0.02)
    return False


def run(
    script: str, *arguments: str, schedule: Schedule = IN_ORDER, variant: Variant = OURS
) -> Run:
    return Run(Script(script, arguments), variant, schedule)


def test_equal_runs_have_equal_results_whatever_ran_before(
    runner: Runner, plain_script: str
) -> None:
    first, other, second = runner.run_all(
        [run(plain_script), run(plain_script, "--steps", "5"), run(plain_script)]
    )
    assert first.digest == second.digest != other.digest
    assert (first.steps, other.steps) == (3, 5)
    assert first.losses == second.losses
    assert len(other.losses) == 5
    assert [rank.rank for rank in first.ranks] == [0, 1]
    assert first.wall_s > 0
    assert 0 < first.peak_rss_bytes < 2**30


def test_results_keep_the_order_of_the_runs_and_are_told_as_they_come(
    impatient: Runner, plain_script: str
) -> None:
    steps = ["4", "1", "3", "2"]
    told: list[int] = []
    results = impatient.run_all(
        [run(plain_script, "--steps", n) for n in steps], lambda result: told.append(result.steps)
    )
    assert [result.steps for result in results] == [4, 1, 3, 2]
    assert sorted(told) == [1, 2, 3, 4]


def test_a_module_runs_like_with_python_m(
    runner: Runner, plain_script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The zygotes were started in the current folder, where "python -m" would look.
    module = os.path.relpath(plain_script).removesuffix(".py").replace(os.sep, ".")
    by_module = runner.run(Run(Script(module, ("--steps", "2"), module=True), OURS, IN_ORDER))
    assert by_module.digest == runner.run(run(plain_script, "--steps", "2")).digest


def test_the_variant_adds_environment_and_arguments(runner: Runner, plain_script: str) -> None:
    differ = Variant("differ", (("ACCEL_STREAMS_ZERO", "off"),), ("--differ-under", "fifo"))
    plain, differing = runner.run_all(
        [run(plain_script, schedule=FIFO), run(plain_script, schedule=FIFO, variant=differ)]
    )
    assert plain.digest != differing.digest


def test_fresh_interpreters_give_the_same_result(runner: Runner, plain_script: str) -> None:
    # Even those that seed nothing.
    runs = [run(plain_script, "--unseeded")] * 2
    with Runner(ranks=2, device=PLAIN, timeout_s=60, fresh=True) as fresh:
        results = fresh.run_all(runs) + runner.run_all(runs)
    assert len({result.digest for result in results}) == 1


def test_a_process_with_threads_is_not_forked(plain_script: str) -> None:
    with Runner(ranks=1, device="plain_device:ThreadedDevice", timeout_s=60) as threaded:
        assert "2 threads" in threaded.fresh_reason
        assert threaded.run(run(plain_script)).steps == 3


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ("crash", r"rank 1 exited with status 1 .*RuntimeError: the data of rank 1 is damaged"),
        ("slow", r"rank 1 exited with status 1 .*RuntimeError: the data of rank 1 is damaged"),
        ("status", r"rank 1 exited with status 3 "),
        ("words", r"rank 1 exited with status 1 .*no more data"),
        ("killed", r"rank 1 was killed by SIGKILL "),
        ("leave", r"rank 1 exited with status 0 before the script had ended"),
    ],
)
def test_one_failing_rank_fails_the_run_at_once(
    runner: Runner, plain_script: str, tmp_path: Path, failure: str, expected: str
) -> None:
    started = time.monotonic()
    with pytest.raises(RunFailedError, match=f"(?s){expected}") as caught:
        runner.run(run(plain_script, "--fail", failure, "--notes", str(tmp_path), schedule=FIFO))
    assert time.monotonic() - started < 15  # far less than the run's own timeout
    assert "ACCEL_STREAMS_SCHEDULE=fifo" in str(caught.value)
    assert plain_script in str(caught.value)
    assert_ranks_gone(tmp_path, 2)


def assert_ranks_gone(notes: Path, ranks: int) -> None:
    """Check that the ranks and the workers that they started are no more; the zygotes may be."""
    zygotes = {int(path.name) for path in notes.iterdir()}
    processes = {p for p in zygotes if not is_zygote(p)}
    assert len(zygotes) == 3 * ranks
    assert len(processes) >= 2 * ranks
    assert all(gone(process) for process in processes)


def is_zygote(process: int) -> bool:
    try:
        return b"_zygote" in Path(f"/proc/{process}/cmdline").read_bytes() and (
            os.getsid(process) == process == os.getpgid(process)
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_failure_does_not_stop_the_runner(runner: Runner, plain_script: str) -> None:
    before = runner.run(run(plain_script))
    with pytest.raises(RunFailedError):
        runner.run_all([run(plain_script, "--fail", "crash"), run(plain_script)])
    assert runner.run(run(plain_script)).digest == before.digest


def test_a_hanging_rank_is_ended_and_its_place_told(
    impatient: Runner, plain_script: str, tmp_path: Path
) -> None:
    with pytest.raises(RunFailedError, match="did not end within 3 s") as caught:
        impatient.run(run(plain_script, "--fail", "hang", "--notes", str(tmp_path)))
    lines = Path(plain_script).read_text().splitlines()
    sleeping = next(number for number, line in enumerate(lines, 1) if "time.sleep(1)" in line)
    assert f'plain.py", line {sleeping} in <module>' in str(caught.value)
    assert "rank 0 and rank 1" in str(caught.value)
    assert "runpy" not in str(caught.value)
    assert_ranks_gone(tmp_path, 2)


def test_workers_of_a_good_run_do_not_outlive_it(
    runner: Runner, plain_script: str, tmp_path: Path
) -> None:
    runner.run(run(plain_script, "--notes", str(tmp_path)))
    assert_ranks_gone(tmp_path, 2)


def test_a_script_that_trains_nothing_is_told_so(runner: Runner, plain_script: str) -> None:
    with pytest.raises(RunFailedError, match="nothing to compare between schedules"):
        runner.run(run(plain_script, "--no-optimizer"))


def test_a_device_that_cannot_be_prepared_is_told_in_its_own_words() -> None:
    with (
        pytest.raises(StartError, match=r"^no C\+\+ compiler was found; install g\+\+$"),
        Runner(ranks=2, device="plain_device:BrokenDevice"),
    ):
        pass


def test_what_the_device_says_while_it_is_prepared_is_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Runner(ranks=1, device="plain_device:BusyDevice"):
        pass
    assert "building the device" in capfd.readouterr().err


def test_nothing_is_left_behind(
    plain_script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, notes = tmp_path / "temporary", tmp_path / "notes"
    temporary.mkdir()
    notes.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    descriptors = len(os.listdir("/proc/self/fd"))
    with Runner(ranks=1, device=PLAIN, timeout_s=60) as running:
        running.run(run(plain_script, "--notes", str(notes)))
        assert list(temporary.iterdir())
    assert list(temporary.iterdir()) == []
    assert all(gone(int(path.name)) for path in notes.iterdir())
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_logs_are_kept_where_asked_and_old_ones_not_overwritten(
    plain_script: str, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    with Runner(ranks=1, device=PLAIN, timeout_s=60, logs=logs) as running:
        running.run(run(plain_script))
    (output,) = logs.glob("*/rank0.stdout")
    assert output.read_text() == "rank 0 of 1 done\n"
    with pytest.raises(StartError, match="not empty"), Runner(ranks=1, device=PLAIN, logs=logs):
        pass


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_the_command(
    end: signal.Signals, plain_script: str, tmp_path: Path
) -> None:
    notes, temporary = tmp_path / "notes", tmp_path / "temporary"
    notes.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "accel_streams.cli", "explore", "--device", PLAIN, "--"]
    command += [plain_script, "--fail", "hang", "--notes", str(notes)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    # A shell's background job ignores Ctrl-C, and so would the command that inherits this.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 60
        while len(list(notes.iterdir())) < 6:
            assert process.poll() is None
            assert time.monotonic() < deadline, "the script did not start"
            time.sleep(0.05)
        process.send_signal(end)
        assert process.wait(90) != 0
    finally:
        process.kill()
        process.wait()
    assert all(gone(int(path.name)) for path in notes.iterdir())
    if end != signal.SIGKILL:
        assert list(temporary.glob("accel-streams-*")) == []  # torch leaves a folder of its own


def test_a_process_that_is_killed_from_outside_takes_nothing_with_it_but_the_run(
    plain_script: str, tmp_path: Path
) -> None:
    zygotes: list[int] = []

    def kill_a_zygote() -> None:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 6 and time.monotonic() < deadline:
            time.sleep(0.05)
        zygotes.extend(p for p in (int(path.name) for path in tmp_path.iterdir()) if is_zygote(p))
        os.kill(zygotes[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_a_zygote)
    with Runner(ranks=2, device=PLAIN, timeout_s=60) as running:
        thread.start()
        with pytest.raises(StartError, match=r"rank \d was killed by SIGKILL"):
            running.run(run(plain_script, "--fail", "hang", "--notes", str(tmp_path)))
    thread.join(10)
    assert len(zygotes) == 2
    assert all(gone(int(path.name)) for path in tmp_path.iterdir())


def test_a_difference_is_reported_only_if_the_script_repeats_itself(
    runner: Runner, plain_script: str
) -> None:
    (summary,) = compare(
        runner, Script(plain_script, ("--differ-under", "fifo")), [OURS], [IN_ORDER, FIFO]
    )
    assert (summary.agreeing, summary.clean) == (1, False)
    with pytest.raises(NotDeterministicError, match="two in-order runs of variant accel_streams"):
        compare(runner, Script(plain_script, ("--entropy",)), [OURS], [IN_ORDER, FIFO])
