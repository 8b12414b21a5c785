"""The simulated device's core by itself: native tests, plain and under the sanitizers.

The programs lie in ``native/``. They are built together with the core, without torch and without
Python, so that the sanitizers see every line that runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import accel_streams

CORE = Path(accel_streams.__file__).parent / "fake" / "csrc" / "core"
NATIVE = Path(__file__).parent / "native"
FILES = sorted(path.stem for path in NATIVE.glob("test_*.cpp"))
SCHEDULES = ("in-order", "fifo", "lifo", "mru", "lru", "lazy", "random", "priority")

FLAGS = (
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Werror",
    "-g1",
    "-D_GLIBCXX_ASSERTIONS",
    "-pthread",
)
SANITIZERS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
# Requests for more memory than there is are to fail as they do without the sanitizers.
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1",
    "TSAN_OPTIONS": "allocator_may_return_null=1:halt_on_error=1:second_deadlock_stack=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
BUILD_TIMEOUT_S = 240.0
RUN_TIMEOUT_S = 90.0

pytestmark = pytest.mark.timeout(600)  # the first test of each build compiles


@pytest.fixture(scope="session", autouse=True)
def _enabled() -> None:
    """Leave the extension alone: nothing here needs it."""


@pytest.fixture(autouse=True)
def _clean_device() -> None:
    """Leave the device alone, for the same reason."""


@dataclass(frozen=True, slots=True)
class Program:
    """The native tests, built."""

    path: Path

    def run(self, *arguments: str) -> str:
        """Run the program, expect it to succeed, and return what it printed."""
        done = subprocess.run(
            [self.path, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_TIMEOUT_S,
            env={**os.environ, **SANITIZER_OPTIONS},
        )
        report = f"{' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, report
        return done.stdout


def compiler() -> list[str]:
    """Return the C++ compiler's command; skip the test when there is none."""
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no C++ compiler: {command[0]!r} not found (set CXX to one)")
    return command


def compile_to(target: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*compiler(), *arguments, "-o", str(target)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=BUILD_TIMEOUT_S,
    )


def check_sanitizer(flags: Sequence[str], folder: Path) -> None:
    """Skip the test unless a program that does nothing links with the sanitizer and runs."""
    source = folder / "probe.cpp"
    source.write_text("int main() { return 0; }\n")
    probe = folder / "probe"
    linked = compile_to(probe, [*flags, str(source)])
    if linked.returncode != 0:
        pytest.skip(f"{flags[0]} does not link here: {_last_line(linked.stderr)}")
    ran = subprocess.run(
        [probe], capture_output=True, text=True, errors="replace", timeout=RUN_TIMEOUT_S
    )
    if ran.returncode != 0:
        pytest.skip(f"{flags[0]} does not run here: {_last_line(ran.stderr)}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


@pytest.fixture(scope="module", params=SANITIZERS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Build the core and the tests, once for each sanitizer."""
    name = str(request.param)
    sanitizer = SANITIZERS[name]
    folder = tmp_path_factory.mktemp(f"native-{name}")
    if sanitizer:
        check_sanitizer(sanitizer, folder)
    flags = [*FLAGS, *sanitizer, f"-I{CORE}", f"-I{NATIVE}"]
    # One unit for the core and one for the tests: reading the headers is most of the work.
    objects = []
    # The core is optimised as it is when it ships; of the tests it would take the most time.
    for unit, home, level in (("core", CORE, "-O1"), ("tests", NATIVE, "-O0")):
        source = folder / f"{unit}.cpp"
        source.write_text("".join(f'#include "{path}"\n' for path in sorted(home.glob("*.cpp"))))
        objects.append(folder / f"{unit}.o")
        built = compile_to(objects[-1], [*flags, level, "-c", str(source)])
        assert built.returncode == 0, built.stderr
    path = folder / "native"
    linked = compile_to(path, [*flags, *map(str, objects)])
    assert linked.returncode == 0, linked.stderr
    return Program(path)


@pytest.mark.parametrize("file", FILES)
def test_native(program: Program, file: str) -> None:
    assert "passed" in program.run(file)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedules_name_and_seed_give_the_same_order_in_every_process(
    program: Program, schedule: str
) -> None:
    order = program.run("order", schedule, "3")
    assert len(order.split()) > 100
    assert program.run("order", schedule, "3") == order
    drawn = schedule in ("random", "priority")
    assert (program.run("order", schedule, "4") != order) == drawn


def test_each_schedule_gives_another_order(program: Program) -> None:
    orders = {schedule: program.run("order", schedule, "3") for schedule in SCHEDULES}
    # A wait for everything leaves lazy no choice but to go through the streams as fifo does.
    assert orders.pop("lazy") == orders["fifo"]
    assert len(set(orders.values())) == len(orders)


def test_a_file_without_tests_is_no_success(program: Program) -> None:
    with pytest.raises(AssertionError, match="exit status 1"):
        program.run("test_nothing")
