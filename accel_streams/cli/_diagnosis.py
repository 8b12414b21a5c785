"""Collect what ``accel-streams doctor`` shows, from whatever is installed.

Nothing here may fail because something is missing or broken: that is what it has to report.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata

from accel_streams import _bootstrap, _registry, _settings
from accel_streams._errors import AccelStreamsError
from accel_streams._loading import prints_to_stderr
from accel_streams._registry import BackendInfo
from accel_streams._version import __version__
from accel_streams.cli._listing import PROBE_LIMIT
from accel_streams.hazards import HAZARDS, Finding, results_for
from accel_streams.hazards._results import release_key

__all__ = ["Autoload", "Diagnosis", "Hazard", "Hazards", "diagnose"]

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_PREFIX = "ACCEL_STREAMS_"
_DISTRIBUTION = "accel-streams"


@dataclass(frozen=True, slots=True)
class Autoload:
    """Whether torch calls this package's entry point.

    ``registered``: the installed distribution has it; ``enabled``: the environment lets torch run
    entry points; ``ran``: torch was imported by this command and did run it.
    """

    registered: bool
    enabled: bool
    ran: bool
    summary: str


@dataclass(frozen=True, slots=True)
class Hazard:
    """What runs have shown of a hazard: as DeepSpeed ships, and with this package."""

    id: str
    title: str
    as_shipped: str
    accel_streams: str


@dataclass(frozen=True, slots=True)
class Hazards:
    """What was measured, before this package was published, with a release of DeepSpeed.

    ``measured``: that release, the installed one or the nearest below it; None: neither was.
    """

    measured: str | None
    source: str
    rows: tuple[Hazard, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One installation.

    ``problems`` are what was asked for and doesn't hold, ``notes`` what else is worth knowing. A
    version is None where the thing is not installed, the mode where its setting is unknown.
    """

    accel_streams: str
    python: str
    platform: str
    torch: str | None
    deepspeed: str | None
    supported_deepspeed: str
    autoload: Autoload
    accelerator: str
    zero_mode: str | None
    fake_device: str
    hazards: Hazards
    environment: tuple[tuple[str, str | None], ...]
    backends: tuple[BackendInfo, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def diagnose() -> Diagnosis:
    """Look at this installation; imports torch, and what the backends' probes import."""
    notes: list[str] = []
    problems: list[str] = []
    torch = _torch_version(notes)
    deepspeed = _installed_version("deepspeed")
    supported = _supported_deepspeed()
    zero_mode = _setting(_settings.zero_mode, problems)
    for read in (_settings.races_mode, _settings.schedule, _settings.seed):
        _setting(read, problems)
    backends = _backends(notes, problems)
    autoload = _autoload(torch, notes)
    accelerator = _accelerator(backends, problems)
    _check_deepspeed(deepspeed, supported, notes, problems)
    return Diagnosis(
        accel_streams=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        platform=platform.platform(),
        torch=torch,
        deepspeed=deepspeed,
        supported_deepspeed=supported,
        autoload=autoload,
        accelerator=accelerator,
        zero_mode=zero_mode,
        fake_device=_fake_device(),
        hazards=_hazards(deepspeed),
        environment=_environment(notes),
        backends=tuple(backends),
        notes=tuple(notes),
        problems=tuple(problems),
    )


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch_version(notes: list[str]) -> str | None:
    """Return the version of torch after importing it, as the backends' probes will."""
    try:
        version: str = import_module("torch").__version__
    except ImportError as exc:
        installed = _installed_version("torch")
        if installed is None:
            notes.append("torch is not installed: no backend can be usable.")
        else:
            notes.append(f"torch {installed} is installed and can't be imported: {exc}")
        return installed
    return str(version)


def _supported_deepspeed() -> str:
    """Return the range of the extra ``deepspeed`` in this distribution's own metadata."""
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return "unknown, accel-streams is not installed as a distribution"
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        if name.startswith("deepspeed") and "extra" in marker:
            bounds = name.removeprefix("deepspeed").strip(" ()").split(",")
            return ",".join(sorted((bound.strip() for bound in bounds), reverse=True))
    return "unknown"


def _check_deepspeed(
    version: str | None, supported: str, notes: list[str], problems: list[str]
) -> None:
    if version is None:
        notes.append("DeepSpeed is not installed: there is no training to put in order.")
    elif not all(_holds(version, bound) for bound in supported.split(",")):
        problems.append(
            f"DeepSpeed {version} is outside the supported range {supported}. Install one inside "
            "it; whether this one works is decided by what deepspeed.initialize finds in it."
        )


def _holds(version: str, bound: str) -> bool:
    """Return whether a version keeps one bound, as in ``<=0.19.8``; no bound is always kept."""
    if bound.startswith(">="):
        return _release(version) >= _release(bound)
    return not bound.startswith("<=") or _release(version) <= _release(bound)


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version or bound: ``0.19.8`` of ``<=0.19.8+local``."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))


def _setting(read: Callable[[], object], problems: list[str]) -> str | None:
    try:
        value = read()
    except AccelStreamsError as exc:
        problems.append(str(exc))
        return None
    return None if value is None else str(value)


def _backends(notes: list[str], problems: list[str]) -> list[BackendInfo]:
    """Return every backend after probing it, also those that ACCEL_STREAMS_PLUGINS leaves out."""
    infos = _registry.discover(_registry.installed_entry_points())
    try:
        wanted = {info.name for info in _registry.registered()}
    except AccelStreamsError as exc:
        problems.append(str(exc))
        wanted = set()
    probed = []
    for info in infos:
        if info.name in wanted:
            with prints_to_stderr():
                probed.append(_registry.probe(info, PROBE_LIMIT))
        else:
            notes.append(f"ACCEL_STREAMS_PLUGINS leaves out the backend {info.name!r}.")
    notes.extend(_registry.fault(info) for info in probed if info.state in _registry.FAULTY)
    return probed


def _autoload(torch: str | None, notes: list[str]) -> Autoload:
    registered = any(
        point.value.startswith("accel_streams.")
        for point in metadata.entry_points(group="torch.backends")
    )
    # torch takes exactly "1" for yes.
    enabled = os.environ.get(_AUTOLOAD, "1") == "1"
    ran = _bootstrap.autoload_ran
    if ran:
        summary = "registered, and torch ran it"
    elif torch is None:
        summary = "registered, not run: torch is not installed" if registered else "not registered"
    elif not registered:
        summary = "not registered: accel-streams is not installed as a distribution"
    elif not enabled:
        summary = f"registered, switched off by {_AUTOLOAD}={os.environ[_AUTOLOAD]}"
    elif "torch" not in sys.modules:
        summary = "registered, not run: torch can't be imported"
    else:
        summary = "registered, not run: torch runs entry points from 2.5 on"
    if torch is not None and not ran:
        notes.append(
            "torch does not run this package's entry point here; put `import accel_streams` before "
            "`import deepspeed`, which does the same."
        )
    return Autoload(registered=registered, enabled=enabled, ran=ran, summary=summary)


def _accelerator(backends: Sequence[BackendInfo], problems: list[str]) -> str:
    """Return what ``DS_ACCELERATOR`` would give a training script."""
    try:
        request = _settings.ds_accelerator()
        if request is None:
            return "DeepSpeed's own choice, unless the script calls accel_streams.install()"
        if not request.ours:
            return f"DeepSpeed's {request.value!r}, or the backend of that name if it knows none"
        with warnings.catch_warnings():
            # What it would warn about is among the notes already.
            warnings.simplefilter("ignore")
            chosen = _registry.choose(request.backend, backends)
    except AccelStreamsError as exc:
        problems.append(f"DS_ACCELERATOR={os.environ['DS_ACCELERATOR']}: {exc}")
        return "none, DS_ACCELERATOR can't be satisfied"
    return f"accel_streams on the backend {chosen.name!r}"


def _environment(notes: list[str]) -> tuple[tuple[str, str | None], ...]:
    names = [_AUTOLOAD, *_settings.VARIABLES]
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in names:
            names.append(name)
            notes.append(f"{name} is set, and accel_streams reads no variable of that name.")
    return tuple((name, os.environ.get(name)) for name in names)


def _hazards(deepspeed: str | None) -> Hazards:
    """Return what the files that come with this package say of the installed DeepSpeed."""
    if deepspeed is None:
        return Hazards(None, "DeepSpeed is not installed")
    results = results_for(deepspeed)
    if results is None:
        return Hazards(None, f"not measured with DeepSpeed {deepspeed}, nor with any before it")
    source = f"DeepSpeed {results.deepspeed}, torch {results.torch}, commit {results.commit}"
    if release_key(results.deepspeed) != release_key(deepspeed):
        source = f"not measured with DeepSpeed {deepspeed}; nearest below: {source}"
    rows = []
    for scenario in HAZARDS.values():
        variants = results.hazards.get(scenario.id)
        if variants is None:
            states = ["not measured"] * 2
        else:
            states = [_state(variants[name]) for name in ("deepspeed", "accel_streams")]
        rows.append(Hazard(scenario.id, scenario.title, *states))
    return Hazards(results.deepspeed, source, tuple(rows))


def _state(finding: Finding) -> str:
    return f"{finding.state}: {finding.reason}" if finding.reason else finding.state


def _fake_device() -> str:
    """Return whether the simulated device has been built for this torch, and where that is."""
    try:
        plan = import_module("accel_streams.fake._build").plan_build()
    except (ImportError, AccelStreamsError) as exc:
        return f"can't be built: {exc}"
    if plan.library.exists():
        return f"built: {plan.library}"
    return f"not built yet; the first use builds it in {plan.directory}"
