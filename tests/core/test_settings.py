"""Each environment variable: its default, its values, and that anything else is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from accel_streams import SettingError, _settings
from torch_release import needs_simulated_device

# variable, reader, default, some right values with what they mean, some wrong values
CASES: list[tuple[str, Callable[[], object], object, dict[str, object], list[str]]] = [
    (
        "ACCEL_STREAMS_ZERO",
        _settings.zero_mode,
        "track",
        {"track": "track", "sync": "sync", "off": "off"},
        ["", "Track", "on", "0", " off"],
    ),
    (
        "ACCEL_STREAMS_RACES",
        _settings.races_mode,
        "off",
        {"off": "off", "warn": "warn", "raise": "raise"},
        ["", "error", "RAISE", "1"],
    ),
    (
        "ACCEL_STREAMS_SCHEDULE",
        _settings.schedule,
        None,
        {name: name for name in _settings.SCHEDULES},
        ["", "in_order", "FIFO", "rand"],
    ),
    (
        "ACCEL_STREAMS_SEED",
        _settings.seed,
        0,
        {"0": 0, "17": 17, str(2**64 - 1): 2**64 - 1},
        ["", "-1", "1.5", "0x10", "1_000", " 1", "²", "٣", str(2**64), "seed"],
    ),
    (
        "ACCEL_STREAMS_PLUGINS",
        _settings.plugins,
        None,
        {"": (), "  ": (), "cuda": ("cuda",), "cuda, my-dev": ("cuda", "my_dev")},
        [",", "cuda,", "cuda,,mlu"],
    ),
]

WRONG = [(variable, read, bad) for variable, read, _, _, wrong in CASES for bad in wrong]


@pytest.mark.parametrize(("variable", "read", "default", "right", "wrong"), CASES)
def test_known_values_and_default(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    read: Callable[[], object],
    default: object,
    right: dict[str, object],
    wrong: list[str],
) -> None:
    assert read() == default
    for text, meaning in right.items():
        monkeypatch.setenv(variable, text)
        assert read() == meaning


@pytest.mark.parametrize(("variable", "read", "value"), WRONG)
def test_unknown_value_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, read: Callable[[], object], value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError) as caught:
        read()
    error = caught.value
    assert (error.variable, error.value) == (variable, value)
    assert error.allowed
    assert variable in str(error)
    assert repr(value) in str(error)
    for allowed in error.allowed:
        assert allowed in str(error)


@pytest.mark.parametrize(
    ("value", "ours", "backend"),
    [
        ("accel_streams", True, None),
        ("accel-streams", True, None),
        ("accel_streams:cuda", True, "cuda"),
        ("accel_streams:cpu-fake", True, "cpu_fake"),
        ("accel-streams:cpu_fake", True, "cpu_fake"),
        ("cuda", False, None),
        ("vendor", False, None),
        ("accel_streams_other", False, None),
    ],
)
def test_ds_accelerator(
    monkeypatch: pytest.MonkeyPatch, value: str, ours: bool, backend: str | None
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", value)
    request = _settings.ds_accelerator()
    assert request is not None
    assert (request.value, request.ours, request.backend) == (value, ours, backend)


def test_ds_accelerator_unset_or_empty_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _settings.ds_accelerator() is None
    monkeypatch.setenv("DS_ACCELERATOR", "")
    assert _settings.ds_accelerator() is None


def test_ds_accelerator_with_nothing_after_the_colon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "accel_streams:")
    with pytest.raises(SettingError, match="accel_streams:<backend>"):
        _settings.ds_accelerator()


@needs_simulated_device
def test_the_schedules_are_those_of_the_simulated_device() -> None:
    from accel_streams.fake import SCHEDULES

    assert SCHEDULES == _settings.SCHEDULES


def test_every_variable_has_a_case_here() -> None:
    tested = {variable for variable, *_ in CASES} | {"DS_ACCELERATOR"}
    assert tested == set(_settings.VARIABLES)
