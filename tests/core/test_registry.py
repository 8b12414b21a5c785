"""Finding and choosing backends: right, broken, absent, doubled, and switched off."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable, Sequence

import pytest

from accel_streams import (
    BackendConflictError,
    BackendWarning,
    BrokenBackendError,
    IncompatibleBackendError,
    SettingError,
    UnavailableBackendError,
    UnknownBackendError,
    _registry,
)
from accel_streams._registry import BackendInfo
from made_up_plugins import Plugins

Source = Callable[..., str]


@pytest.fixture(autouse=True)
def _warn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "_warned", set())


@pytest.fixture
def torch_reports(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Stand in for torch, so that these tests neither import it nor depend on the machine."""

    def report(device_type: str | None) -> None:
        device = None if device_type is None else types.SimpleNamespace(type=device_type)
        torch = types.ModuleType("torch")
        torch.accelerator = types.SimpleNamespace(  # type: ignore[attr-defined]
            current_accelerator=lambda: device
        )
        monkeypatch.setitem(sys.modules, "torch", torch)

    return report


def discovered(plugins: Plugins) -> list[BackendInfo]:
    return _registry.discover(plugins.entry_points())


def states(infos: Sequence[BackendInfo]) -> dict[str, str]:
    return {info.name: info.state for info in infos}


class TestDiscover:
    def test_lists_by_name_without_importing(self, plugins: Plugins) -> None:
        module = plugins.add("zeta", "raise RuntimeError('imported')", version="2.1")
        plugins.add("alpha", "raise RuntimeError('imported')")
        infos = discovered(plugins)
        assert [info.name for info in infos] == ["alpha", "zeta"]
        assert infos[1].to_json() == {
            "name": "zeta",
            "distribution": "dist-zeta",
            "version": "2.1",
            "value": f"{module}:Backend",
            "state": "registered",
            "reason": None,
        }
        assert module not in sys.modules

    def test_no_entry_points_is_an_empty_list(self) -> None:
        assert _registry.discover([]) == []

    def test_hyphen_and_underscore_are_the_same(self, plugins: Plugins) -> None:
        plugins.add("my-device", "")
        assert [info.name for info in discovered(plugins)] == ["my_device"]

    def test_two_distributions_with_one_name_conflict(self, plugins: Plugins) -> None:
        plugins.add("my-dev", "", distribution="first", version="1.0")
        plugins.add("my_dev", "", distribution="second", version="2.0")
        plugins.add("other", "")
        infos = discovered(plugins)
        assert [(info.name, info.state) for info in infos] == [
            ("my_dev", "conflict"),
            ("my_dev", "conflict"),
            ("other", "registered"),
        ]
        for info in infos[:2]:
            assert info.reason is not None
            assert "first 1.0" in info.reason
            assert "second 2.0" in info.reason

    def test_one_registration_seen_twice_is_no_conflict(self, plugins: Plugins) -> None:
        plugins.add("twice", "")
        points = plugins.entry_points()
        assert states(_registry.discover([*points, *points])) == {"twice": "registered"}

    @pytest.mark.parametrize("name", ["Cuda", "1st", "_x", "a.b", "a b"])
    def test_a_name_that_is_no_word_is_broken(self, plugins: Plugins, name: str) -> None:
        plugins.add(name, "")
        (info,) = discovered(plugins)
        assert info.state == "broken"
        assert info.reason is not None
        assert repr(name) in info.reason

    def test_plugins_filter(self, plugins: Plugins) -> None:
        for name in ("one", "two", "three"):
            plugins.add(name, "")
        points = plugins.entry_points()
        assert list(states(_registry.discover(points, None))) == ["one", "three", "two"]
        assert _registry.discover(points, ()) == []
        assert list(states(_registry.discover(points, ("three", "one")))) == ["one", "three"]

    def test_filtering_settles_a_conflict_of_others_only(self, plugins: Plugins) -> None:
        plugins.add("same", "", distribution="first")
        plugins.add("same", "", distribution="second")
        plugins.add("other", "")
        points = plugins.entry_points()
        assert states(_registry.discover(points, ("other",))) == {"other": "registered"}
        assert states(_registry.discover(points, ("same",))) == {"same": "conflict"}

    def test_plugins_filter_refuses_a_name_nobody_registers(self, plugins: Plugins) -> None:
        plugins.add("one", "")
        with pytest.raises(SettingError, match=r"'onn'.*Expected: one") as caught:
            _registry.discover(plugins.entry_points(), ("onn",))
        assert caught.value.variable == "ACCEL_STREAMS_PLUGINS"
        assert caught.value.allowed == ("one",)

    def test_registered_heeds_the_variable(
        self, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugins.add("one", "")
        assert "one" in states(_registry.registered())
        monkeypatch.setenv("ACCEL_STREAMS_PLUGINS", "cuda")
        assert list(states(_registry.registered())) == ["cuda"]
        monkeypatch.setenv("ACCEL_STREAMS_PLUGINS", "")
        assert _registry.registered() == []


class TestLoad:
    def test_returns_an_instance_without_probing(
        self, plugins: Plugins, backend_source: Source
    ) -> None:
        plugins.add("my_dev", backend_source("my_dev", probe="raise AssertionError"))
        assert _registry.load("my-dev", discovered(plugins)).name == "my_dev"

    def test_unknown_name_lists_what_there_is(self, plugins: Plugins) -> None:
        plugins.add("alpha", "")
        plugins.add("beta", "")
        with pytest.raises(UnknownBackendError) as caught:
            _registry.load("aplha", discovered(plugins))
        assert caught.value.name == "aplha"
        assert caught.value.known == ("alpha", "beta")
        assert "alpha, beta" in str(caught.value)
        assert "Did you mean 'alpha'?" in str(caught.value)

    def test_unknown_name_says_when_it_is_switched_off(
        self, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugins.add("alpha", "")
        monkeypatch.setenv("ACCEL_STREAMS_PLUGINS", "")
        with pytest.raises(UnknownBackendError, match="ACCEL_STREAMS_PLUGINS leaves it out"):
            _registry.load("alpha")

    def test_unavailable_is_not_unknown(self, plugins: Plugins, backend_source: Source) -> None:
        plugins.add("alpha", backend_source("alpha", probe="return 'no such chip'"))
        with pytest.raises(UnavailableBackendError, match="no such chip") as caught:
            _registry.choose("alpha", discovered(plugins))
        assert not isinstance(caught.value, UnknownBackendError)
        assert caught.value.reason == "no such chip"
        assert caught.value.distributions == ("dist-alpha 1.0",)

    def test_conflict_names_every_claimant(self, plugins: Plugins) -> None:
        plugins.add("same", "", distribution="first", version="1.0")
        plugins.add("same", "", distribution="second", version="2.0")
        with pytest.raises(BackendConflictError) as caught:
            _registry.load("same", discovered(plugins))
        assert caught.value.distributions == ("first 1.0", "second 2.0")
        for text in ("first 1.0", "second 2.0", "uninstall"):
            assert text in str(caught.value)

    @pytest.mark.parametrize(
        ("source", "cause"),
        [
            ("raise OSError('libvendor.so: cannot open')", OSError),
            ("import a_package_that_is_not_there", ModuleNotFoundError),
            ("raise SystemExit(3)", SystemExit),
            ("x = 1", AttributeError),
            ("class Backend:\n    def __init__(self): raise ValueError('no')", ValueError),
            ("class Backend:\n    def __init__(self, device): pass", TypeError),
            ("Backend = 7", TypeError),
        ],
    )
    def test_broken_is_raised_from_its_cause(
        self, plugins: Plugins, source: str, cause: type[BaseException]
    ) -> None:
        plugins.add("bad", source)
        with pytest.raises(BrokenBackendError, match=r"dist-bad 1\.0") as caught:
            _registry.load("bad", discovered(plugins))
        assert isinstance(caught.value.__cause__, cause)
        assert cause.__name__ in str(caught.value)

    @pytest.mark.parametrize(
        ("api_version", "remedy"),
        [("2", "upgrade accel_streams"), ("0", "upgrade the backend"), ("'x'", "upgrade the")],
    )
    def test_another_api_version_is_incompatible(
        self, plugins: Plugins, api_version: str, remedy: str
    ) -> None:
        plugins.add("old", f"class Backend:\n    api_version = {api_version}")
        (info,) = discovered(plugins)
        with pytest.raises(IncompatibleBackendError, match=remedy) as caught:
            _registry.load("old", [info])
        assert caught.value.api_version == eval(api_version)
        assert "supports 1" in str(caught.value)
        assert _registry.examine(info).state == "incompatible"

    def test_missing_members_are_named(self, plugins: Plugins, backend_source: Source) -> None:
        source = backend_source("part").replace("new_event = record", "new_event")
        plugins.add("part", source.replace("keep_alive = ", ""))
        with pytest.raises(BrokenBackendError, match=r"lacks record, keep_alive of the Backend"):
            _registry.load("part", discovered(plugins))


class TestExamineAndProbe:
    def test_each_state_with_its_reason(self, plugins: Plugins, backend_source: Source) -> None:
        plugins.add("good", backend_source("good"))
        plugins.add("absent", backend_source("absent", probe="return 'two\\nlines'"))
        plugins.add("crash", backend_source("crash", probe="raise OSError('no driver')"))
        plugins.add("bad", "raise ImportError('libvendor.so')")
        plugins.add("old", "class Backend:\n    api_version = 0")
        infos = discovered(plugins)
        assert states(map(_registry.examine, infos)) == {  # type: ignore[arg-type]
            "absent": "registered",
            "bad": "broken",
            "crash": "registered",
            "good": "registered",
            "old": "incompatible",
        }
        probed = {info.name: _registry.probe(info) for info in infos}
        assert states(list(probed.values())) == {
            "absent": "unavailable",
            "bad": "broken",
            "crash": "broken",
            "good": "usable",
            "old": "incompatible",
        }
        assert probed["good"].reason is None
        assert probed["absent"].reason == "two lines"
        assert probed["crash"].reason == "probing it raised OSError: no driver"
        assert probed["bad"].reason == "loading it raised ImportError: libvendor.so"


class TestChoose:
    """The first table of the conventions: which backend ``accel_streams`` alone stands for."""

    def add(self, plugins: Plugins, source: Source, *names: str) -> None:
        for name in names:
            plugins.add(name, source(name, device_type=name))

    def test_the_device_torch_reports(
        self,
        plugins: Plugins,
        backend_source: Source,
        torch_reports: Callable[[str | None], None],
    ) -> None:
        self.add(plugins, backend_source, "alpha", "beta", "cpu_fake")
        torch_reports("beta")
        assert _registry.choose(None, discovered(plugins)).name == "beta"

    def test_else_the_only_usable_one(
        self,
        plugins: Plugins,
        backend_source: Source,
        torch_reports: Callable[[str | None], None],
    ) -> None:
        self.add(plugins, backend_source, "alpha", "cpu_fake")
        plugins.add("beta", backend_source("beta", probe="return 'no chip'"))
        for reported in (None, "something_else", "cpu_fake"):
            torch_reports(reported)
            assert _registry.choose(None, discovered(plugins)).name == "alpha"

    def test_never_the_simulated_device_by_itself(
        self,
        plugins: Plugins,
        backend_source: Source,
        torch_reports: Callable[[str | None], None],
    ) -> None:
        self.add(plugins, backend_source, "cpu_fake")
        plugins.add("beta", backend_source("beta", probe="return 'no chip'"))
        torch_reports("cpu_fake")
        with pytest.raises(UnavailableBackendError) as caught:
            _registry.choose(None, discovered(plugins))
        text = str(caught.value)
        assert "beta: unavailable, no chip" in text
        assert "cpu_fake: simulated, never chosen by itself" in text
        assert _registry.choose("cpu_fake", discovered(plugins)).name == "cpu_fake"

    def test_several_usable_and_none_reported(
        self,
        plugins: Plugins,
        backend_source: Source,
        torch_reports: Callable[[str | None], None],
    ) -> None:
        self.add(plugins, backend_source, "alpha", "beta")
        torch_reports(None)
        with pytest.raises(UnavailableBackendError, match="several backends are usable: alpha, b"):
            _registry.choose(None, discovered(plugins))

    def test_nothing_registered(self, torch_reports: Callable[[str | None], None]) -> None:
        torch_reports(None)
        with pytest.raises(UnavailableBackendError, match="none is registered"):
            _registry.choose(None, [])

    def test_old_torch_has_no_accelerator_module(
        self, plugins: Plugins, backend_source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.add(plugins, backend_source, "cuda", "mlu")
        torch = types.ModuleType("torch")
        torch.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
            is_available=lambda: True
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert _registry.choose(None, discovered(plugins)).name == "cuda"

    def test_a_broken_one_that_nobody_named_is_one_warning(
        self,
        plugins: Plugins,
        backend_source: Source,
        torch_reports: Callable[[str | None], None],
    ) -> None:
        self.add(plugins, backend_source, "alpha")
        plugins.add("bad", "raise OSError('libvendor.so')")
        torch_reports("alpha")
        infos = discovered(plugins)
        with pytest.warns(BackendWarning, match=r"'bad' of dist-bad 1.0.*libvendor.so") as caught:
            assert _registry.choose(None, infos).name == "alpha"
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert _registry.choose(None, infos).name == "alpha"

    def test_a_broken_one_that_was_named_is_an_error(
        self, plugins: Plugins, backend_source: Source
    ) -> None:
        self.add(plugins, backend_source, "alpha")
        plugins.add("bad", "raise OSError('libvendor.so')")
        with pytest.raises(BrokenBackendError, match=r"libvendor\.so") as caught:
            _registry.choose("bad", discovered(plugins))
        assert isinstance(caught.value.__cause__, OSError)

    def test_a_broken_one_does_not_touch_another_that_was_named(
        self, plugins: Plugins, backend_source: Source
    ) -> None:
        self.add(plugins, backend_source, "alpha")
        module = plugins.add("bad", "raise OSError('libvendor.so')")
        assert _registry.choose("alpha", discovered(plugins)).name == "alpha"
        assert module not in sys.modules


def test_the_built_in_backends_register_like_any_other() -> None:
    builtin = {
        info.name: info.value
        for info in _registry.registered()
        if info.distribution == "accel-streams"
    }
    assert set(builtin) == {"cuda", "mlu", "cpu_fake"}


def test_the_list_of_members_is_the_protocol() -> None:
    from accel_streams import Backend

    public = {name for name in vars(Backend) if not name.startswith("_")}
    members = public | set(Backend.__annotations__)
    assert members == {*_registry._MEMBERS, "api_version"}
