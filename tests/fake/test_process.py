# mypy: disable-error-code="no-untyped-call"
# Some of torch's methods have no types.
"""The device in a process: enabling it, and how a process ends or forks that has used it."""

from __future__ import annotations

import contextvars
import re
import subprocess
import sys
import textwrap
import weakref
from typing import NoReturn

import pytest
import torch

from accel_streams import fake
from accel_streams._errors import FakeDeviceError, SettingError
from accel_streams.fake import _api, _build, _exit
from accel_streams.fake._extension import extension


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process, with these variables set."""
    settings = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in environment.items())
    return subprocess.run(
        [sys.executable, "-c", f"import os\n{settings}{textwrap.dedent(program)}"],
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def not_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process look as if the device was not enabled; to build anything fails the test."""

    def build() -> NoReturn:
        pytest.fail("it got as far as to build")

    monkeypatch.setattr(_api, "is_loaded", lambda: False)
    monkeypatch.setattr(_build, "load_extension", build)


class TestEnabling:
    def test_twice_changes_nothing(self) -> None:
        module, loaded = torch.get_device_module("fake"), extension()
        fake.set_schedule("lazy", 3)
        fake.enable()
        assert fake.is_enabled()
        assert torch.get_device_module("fake") is module
        assert extension() is loaded
        assert fake.schedule() == ("lazy", 3)

    def test_from_several_threads_takes_the_schedule_from_the_environment(self) -> None:
        done = run(
            """
            import threading
            import torch
            from accel_streams import fake

            together = threading.Barrier(4)
            failures = []

            def enable():
                together.wait(60)
                try:
                    fake.enable()
                except Exception as exc:
                    failures.append(exc)

            threads = [threading.Thread(target=enable) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            print(failures, fake.schedule(), torch.ones(2, device="fake").tolist())
            """,
            ACCEL_STREAMS_SCHEDULE="priority",
            ACCEL_STREAMS_SEED=str(2**64 - 1),
        )
        assert done.stdout == f"[] ('priority', {2**64 - 1}) [1.0, 1.0]\n", done.stderr

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("ACCEL_STREAMS_SCHEDULE", "alphabetical"),
            ("ACCEL_STREAMS_SCHEDULE", ""),
            ("ACCEL_STREAMS_SEED", "-1"),
            ("ACCEL_STREAMS_SEED", "seven"),
            ("ACCEL_STREAMS_SEED", str(2**64)),
        ],
    )
    @pytest.mark.usefixtures("not_enabled")
    def test_an_unknown_setting_is_refused_before_anything_is_built(
        self, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, value)
        with pytest.raises(SettingError, match=f"^{variable} has the unknown value '{value}'"):
            fake.enable()

    def test_beside_another_device_is_refused(self) -> None:
        done = run(
            """
            import torch
            from accel_streams import fake

            def refused():
                try:
                    fake.enable()
                except fake_error as exc:
                    print(exc)
                assert not fake.is_enabled()

            from accel_streams._errors import FakeDeviceError as fake_error
            library = torch.library.Library("aten", "IMPL")
            library.impl("empty.memory_format", lambda *_, **__: None, "PrivateUse1")
            refused()
            torch.utils.rename_privateuse1_backend("npu")
            refused()
            """
        )
        assert done.returncode == 0, done.stderr
        unnamed, named = done.stdout.splitlines()
        assert "the device 'privateuseone' has taken it" in unnamed
        assert "the device 'npu' has taken it" in named
        assert "run it in a process that does not import the package behind 'npu'." in named

    def test_settings_and_extension_know_the_same_schedules(self) -> None:
        assert list(fake.SCHEDULES) == extension().schedule_names()

    def test_a_seed_that_does_not_fit_is_refused(self) -> None:
        fake.set_schedule("random", 2**64 - 1)
        with pytest.raises(FakeDeviceError, match=f"from 0 to {2**64 - 1}, got {2**64}"):
            fake.set_schedule("random", 2**64)
        assert fake.schedule() == ("random", 2**64 - 1)


# A handler that is registered first runs last.
ENDING = """
import atexit
import sys
import torch
from accel_streams import fake
from accel_streams.fake._extension import extension

atexit.register(lambda: print("left:", extension().pending()))
fake.enable()
stream = torch.fake.Stream()
x = torch.zeros(4, device="fake")
stream.wait_stream(torch.fake.current_stream())
"""
FAILING = """
torch.nn.functional.embedding(torch.tensor([9], device="fake"), x.view(2, 2))
"""


class TestEnding:
    def test_runs_what_is_queued(self) -> None:
        done = run(
            ENDING
            + """
with torch.fake.stream(stream):
    for _ in range(100):
        x.add_(1)
assert extension().pending() > 100
"""
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "left: 0\n"

    @pytest.mark.parametrize("end", ["", "sys.exit(3)"])
    def test_reports_an_operation_that_fails_then(self, end: str) -> None:
        done = run(ENDING + FAILING + end)
        assert done.returncode == 1
        assert done.stdout == "left: 0\n"
        assert re.fullmatch(
            r"accel_streams: when the process ended, .*index_select: index out of range.*\n",
            done.stderr,
        )

    def test_does_not_report_again_what_the_script_was_told(self) -> None:
        done = run(
            ENDING
            + FAILING
            + """
try:
    torch.fake.synchronize()
except RuntimeError as exc:
    print("told")
"""
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "told\nleft: 0\n", "")

    def test_does_not_wait_for_a_stream_that_nobody_releases(self) -> None:
        done = run(
            ENDING
            + """
gate = fake.hold(stream)
with torch.fake.stream(stream):
    x.add_(1)
"""
        )
        assert done.returncode == 1
        assert "held: release it" in done.stderr
        assert len(done.stderr.splitlines()) == 1

    @pytest.mark.parametrize("device", ["fake:0", "fake:1"])
    def test_autograds_threads_let_go_of_objects_of_python(self, device: str) -> None:
        class Owned:
            pass

        variable = contextvars.ContextVar[Owned]("variable")

        def differentiate() -> weakref.ref[Owned]:
            variable.set(Owned())  # the pass owns a copy of this context
            x = torch.ones(4, device=device, requires_grad=True)
            x.sum().backward()
            return weakref.ref(variable.get())

        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(1000)  # seconds: this thread goes on, and the other waits
            owned = contextvars.copy_context().run(differentiate)
            _exit.settle_autograd()
            assert owned() is None
        finally:
            sys.setswitchinterval(interval)

    def test_starts_no_threads_of_autograd(self) -> None:
        done = run(
            """
            import atexit
            from pathlib import Path

            import torch
            from accel_streams import fake

            def tell():
                names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
                print(any(name.startswith("pt_autograd") for name in names))

            atexit.register(tell)
            fake.enable()
            torch.ones(4, device="fake")
            """
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")

    def test_is_quiet_while_there_are_hooks_and_a_graph(self) -> None:
        done = run(
            ENDING
            + """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        context.note = object()
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2 + context.saved_tensors[0] * 0

model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)]).to("fake")
seen = []
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad * 2))
with torch.fake.stream(stream):
    loss = Double.apply(model(x)).sum()
    loss.backward(retain_graph=True)
assert len(seen) == 8
assert extension().pending() > 0
"""
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "left: 0\n"


class TestForking:
    def test_gives_both_processes_what_was_queued(self) -> None:
        done = run(
            ENDING
            + """
x.add_(1)
pid = os.fork()
x.add_(1 if pid else 10)
y = x * 2
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    print("parent:", y.tolist())
else:
    print("child:", y.tolist())
"""
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            "child: [22.0, 22.0, 22.0, 22.0]",
            "left: 0",
            "parent: [4.0, 4.0, 4.0, 4.0]",
            "left: 0",
        ]

    def test_a_child_that_leaves_the_device_alone_does_not_run_its_parents_work(self) -> None:
        done = run(
            ENDING
            + FAILING
            + """
pid = os.fork()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    os._exit(0)
"""
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert int(done.stdout.partition("left: ")[2]) > 0

    def test_a_child_runs_its_own_work_when_it_ends(self) -> None:
        done = run(
            ENDING
            + """
pid = os.fork()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    os._exit(0)
x.add_(1)
"""
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "left: 0\n"
