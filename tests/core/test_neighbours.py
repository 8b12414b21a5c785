"""Hostile plug-ins: whatever an installed backend does, it harms nothing but itself."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_streams import (
    BackendConflictError,
    BrokenBackendError,
    UnavailableBackendError,
    _loading,
    _registry,
)
from accel_streams._registry import BackendInfo
from made_up_plugins import Plugins

Source = Callable[..., str]

# Run in the program that lists: a short patience, so that a hang costs the test little.
IMPATIENT = """
from accel_streams import _loading
from accel_streams.cli import _listing, main
_listing.LOAD_LIMIT = _listing.PROBE_LIMIT = 1.0
_loading._GRACE = 1.0
"""


def infos_of(plugins: Plugins) -> list[BackendInfo]:
    return _registry.discover(plugins.entry_points())


def listed(
    plugins: Plugins, *words: str, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``accel-streams list`` in a process of its own that sees the made-up plug-ins."""
    program = f"{before}\nfrom accel_streams.cli import main\nmain({['list', *words]!r})\n"
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, "PYTHONPATH": str(plugins.folder), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the state of each backend in the table that ``list`` printed, with nothing else."""
    head, *rows = (line.split() for line in done.stdout.splitlines())
    assert head[:2] == ["BACKEND", "STATE"], done.stdout
    assert len({row[0] for row in rows}) == len(rows), done.stdout
    return {row[0]: row[1] for row in rows}


EXCEPTIONS = [
    "SystemExit(3)",
    "SystemExit",
    "KeyboardInterrupt",
    "KeyboardInterrupt('no')",
    "GeneratorExit",
    "type('Own', (BaseException,), {})('text')",
]


class TestExceptions:
    @pytest.mark.parametrize("exception", EXCEPTIONS)
    def test_raised_while_it_is_imported(
        self, plugins: Plugins, backend_source: Source, exception: str
    ) -> None:
        plugins.add("bad", f"raise {exception}")
        plugins.add("good", backend_source("good"))
        bad, good = map(_registry.examine, infos_of(plugins))
        assert (bad.state, good.state) == ("broken", "registered")
        assert bad.reason is not None
        assert bad.reason.startswith("loading it raised ")
        with pytest.raises(BrokenBackendError) as caught:
            _registry.load("bad", infos_of(plugins))
        assert isinstance(caught.value.__cause__, BaseException)

    @pytest.mark.parametrize("exception", EXCEPTIONS)
    def test_raised_while_it_is_asked(
        self, plugins: Plugins, backend_source: Source, exception: str
    ) -> None:
        plugins.add("bad", backend_source("bad", probe=f"raise {exception}"))
        plugins.add("good", backend_source("good"))
        bad, good = map(_registry.probe, infos_of(plugins))
        assert (bad.state, good.state) == ("broken", "usable")
        assert bad.reason is not None
        assert bad.reason.startswith("probing it raised ")

    @pytest.mark.parametrize("where", ["__init__", "__getattr__"])
    def test_raised_by_what_is_looked_at(self, plugins: Plugins, where: str) -> None:
        plugins.add(
            "bad", f"class Backend:\n    def {where}(self, *args): raise KeyboardInterrupt\n"
        )
        (bad,) = map(_registry.examine, infos_of(plugins))
        assert bad.state == "broken"

    def test_a_reason_that_cannot_be_shown(self, plugins: Plugins, backend_source: Source) -> None:
        probe = "return type('R', (), {'__str__': lambda self: 1 / 0})()"
        plugins.add("bad", backend_source("bad", probe=probe))
        (bad,) = map(_registry.probe, infos_of(plugins))
        assert bad.state == "broken"

    @pytest.mark.parametrize("probing", [False, True])
    def test_the_users_own_interrupt_goes_through(
        self, plugins: Plugins, backend_source: Source, probing: bool
    ) -> None:
        """Ctrl-C while a backend is being loaded ends the program, as anywhere."""
        # A job in the background of a shell is started with it ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt = "__import__('signal').raise_signal(2)"
        source = backend_source("slow", probe=interrupt)
        plugins.add("slow", source if probing else f"{interrupt}\n")
        (info,) = infos_of(plugins)
        try:
            with pytest.raises(KeyboardInterrupt):
                _registry.probe(info)
        finally:
            signal.signal(signal.SIGINT, before)

    def test_list_and_doctor_go_on(self, plugins: Plugins, backend_source: Source) -> None:
        plugins.add("bad", "raise KeyboardInterrupt")
        plugins.add("worse", "import sys; sys.exit(0)")
        plugins.add("good", backend_source("good"))
        done = listed(plugins)
        assert done.returncode == 0, done.stderr
        found = states(done)
        assert (found["bad"], found["worse"], found["good"]) == ("broken", "broken", "registered")
        assert done.stderr.count("warning") == 2
        assert "Traceback" not in done.stderr


class TestPrints:
    NOISE = "import os\nprint('NOISE')\nos.write(1, b'NOISE\\n')\n"

    def test_to_stdout_goes_to_stderr(
        self, plugins: Plugins, backend_source: Source, tmp_path: Path
    ) -> None:
        """What a script parses holds the answer alone, also if C code prints."""
        plugins.add("loud", self.NOISE + textwrap.dedent(backend_source("loud")))
        plugins.add("talker", backend_source("talker", probe="print('NOISE')"))
        file = tmp_path / "list.json"
        done = listed(plugins, "--probe", "--json", str(file))
        assert done.returncode == 0, done.stderr
        assert "NOISE" not in done.stdout
        assert done.stderr.count("NOISE") == 3
        found = {
            entry["name"]: entry["state"] for entry in json.loads(file.read_text())["backends"]
        }
        assert found.items() >= {"loud": "usable", "talker": "usable"}.items()
        assert states(done) == found


class TestForks:
    @pytest.mark.parametrize("raises", [False, True])
    @pytest.mark.parametrize("probing", [False, True])
    def test_the_child_ends_there(
        self, plugins: Plugins, backend_source: Source, probing: bool, raises: bool
    ) -> None:
        """A second process that goes on with our work would print, and train, twice."""
        fork = "os.fork()" + ("; os.getpid() == PARENT or 1 / 0" if raises else "")
        source = textwrap.dedent(backend_source("forks", probe=fork if probing else "return None"))
        head = "import os\nPARENT = os.getpid()\n" + ("" if probing else f"{fork}\n")
        plugins.add("forks", head + source)
        done = listed(plugins, "--probe")
        assert done.returncode == 0, done.stderr
        assert states(done)["forks"] == "usable"
        assert "a plug-in has forked" in done.stderr

    def test_a_child_of_its_own_is_its_own_business(
        self, plugins: Plugins, backend_source: Source
    ) -> None:
        probe = "import subprocess; subprocess.run(['true'], check=True)"
        plugins.add("asks", backend_source("asks", probe=probe))
        done = listed(plugins, "--probe")
        assert states(done)["asks"] == "usable"
        assert "forked" not in done.stderr


class TestHangs:
    SLEEP = "import time\nwhile True: time.sleep(60)\n"
    STUBBORN = (
        "import time\n"
        "for _ in range(3):\n"
        "    try:\n"
        "        time.sleep(60)\n"
        "    except BaseException:\n"
        "        pass\n"
        "time.sleep(60)\n"
    )

    @pytest.mark.parametrize("source", [SLEEP, STUBBORN, "while True: pass\n"])
    def test_list_gives_it_up(self, plugins: Plugins, backend_source: Source, source: str) -> None:
        plugins.add("hangs", source)
        plugins.add("good", backend_source("good"))
        done = listed(plugins, before=IMPATIENT + "_loading._GRACE = 60.0\n")
        assert done.returncode == 0, done.stderr
        assert (states(done)["hangs"], states(done)["good"]) == ("broken", "registered")
        assert "loading it did not return within 1 s" in done.stdout

    def test_a_probe_that_hangs(self, plugins: Plugins, backend_source: Source) -> None:
        plugins.add("hangs", backend_source("hangs", probe="import time; time.sleep(60)"))
        done = listed(plugins, "--probe", before=IMPATIENT, ACCEL_STREAMS_PLUGINS="hangs")
        assert states(done) == {"hangs": "broken"}
        assert "probing it did not return within 1 s" in done.stdout

    def test_code_that_never_comes_back_to_python(
        self, plugins: Plugins, backend_source: Source
    ) -> None:
        """Nothing can be raised there; the traceback at least says whose fault it is."""
        module = plugins.add("hangs", "sum(range(10**14))\n")
        done = listed(plugins, before=IMPATIENT)
        assert done.returncode == 1
        assert f"{module}.py" in done.stderr

    def test_an_alarm_of_somebody_else_still_comes(
        self, plugins: Plugins, backend_source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rung = threading.Event()
        earlier = signal.signal(signal.SIGALRM, lambda *args: rung.set())
        timer = signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with _loading.time_limit(60.0):
                pass
            assert rung.wait(20)
        finally:
            signal.signal(signal.SIGALRM, earlier)
            signal.setitimer(signal.ITIMER_REAL, *timer)

    def test_who_asks_all_is_told_whom_he_waits_for(
        self,
        plugins: Plugins,
        backend_source: Source,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(_registry, "_PATIENCE", 0.01)
        said = threading.Event()
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        sys.modules["torch"].cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
            is_available=lambda: False
        )
        source = backend_source("slow", probe="__import__('plugin_wait').said.wait(30)")
        plugins.add("slow", source)
        waiting = types.ModuleType("plugin_wait")
        waiting.said = said  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "plugin_wait", waiting)

        class Hears(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                said.set()

        handler = Hears()
        logging.getLogger("accel_streams").addHandler(handler)
        try:
            assert _registry.choose(None, infos_of(plugins)).name == "slow"
        finally:
            logging.getLogger("accel_streams").removeHandler(handler)
        assert said.is_set()
        assert "'slow' of dist-slow 1.0 has not said" in caplog.text
        assert "ACCEL_STREAMS_PLUGINS" in caplog.text


class TestTorchWhileListing:
    def test_is_told_and_harms_nobody(self, plugins: Plugins, backend_source: Source) -> None:
        (plugins.folder / "torch.py").write_text("", encoding="utf-8")
        plugins.add("heavy", "import torch\n" + textwrap.dedent(backend_source("heavy")))
        plugins.add("light", backend_source("light"))
        done = listed(plugins)
        assert done.returncode == 0
        assert (states(done)["heavy"], states(done)["light"]) == ("registered", "registered")
        (warning,) = done.stderr.splitlines()
        assert "'heavy' of dist-heavy 1.0" in warning
        assert "imports torch" in warning

    def test_a_probe_may_import_it(self, plugins: Plugins, backend_source: Source) -> None:
        (plugins.folder / "torch.py").write_text("", encoding="utf-8")
        plugins.add("heavy", backend_source("heavy", probe="import torch"))
        done = listed(plugins, "--probe", ACCEL_STREAMS_PLUGINS="heavy")
        assert (states(done), done.stderr) == ({"heavy": "usable"}, "")


class TestPosesAsCuda:
    @pytest.fixture(autouse=True)
    def _torch_reports_cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = types.ModuleType("torch")
        torch.accelerator = types.SimpleNamespace(  # type: ignore[attr-defined]
            current_accelerator=lambda: types.SimpleNamespace(type="cuda")
        )
        monkeypatch.setitem(sys.modules, "torch", torch)

    def test_by_registering_its_name(self, plugins: Plugins, backend_source: Source) -> None:
        plugins.add("cuda", backend_source("cuda", device_type="cuda"), distribution="poser")
        infos = _registry.registered()
        assert {info.state for info in infos if info.name == "cuda"} == {"conflict"}
        for ask in (_registry.load, _registry.choose):
            with pytest.raises(BackendConflictError) as caught:
                ask("cuda")
            assert {name.split()[0] for name in caught.value.distributions} == {
                "accel-streams",
                "poser",
            }

    def test_by_calling_itself_so(self, plugins: Plugins, backend_source: Source) -> None:
        plugins.add("poser", backend_source("cuda", device_type="cuda"))
        with pytest.raises(BrokenBackendError, match="is called 'cuda'"):
            _registry.choose("poser", infos_of(plugins))

    def test_by_being_for_its_devices(self, plugins: Plugins, backend_source: Source) -> None:
        plugins.add("a_poser", backend_source("a_poser", device_type="cuda"))
        plugins.add("cuda", backend_source("cuda", device_type="cuda"))
        plugins.add("z_poser", backend_source("z_poser", device_type="cuda"))
        assert _registry.choose(None, infos_of(plugins)).name == "cuda"
        # Whoever wants it can have it.
        assert _registry.choose("z_poser", infos_of(plugins)).name == "z_poser"

    def test_two_posers_and_no_original(self, plugins: Plugins, backend_source: Source) -> None:
        for name in ("a_poser", "z_poser"):
            plugins.add(name, backend_source(name, device_type="cuda"))
        with pytest.raises(UnavailableBackendError, match="several backends are usable"):
            _registry.choose(None, infos_of(plugins))
