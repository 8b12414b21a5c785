"""Reading entry points ourselves says what importlib.metadata says, only sooner."""

from __future__ import annotations

import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from accel_streams import _entry_points
from accel_streams._entry_points import Registration, installed

GROUP = "a.group"


def add(folder: Path, name: str, points: str, *, info: str = "", header: str = "") -> None:
    """Put a distribution into ``folder``; ``info`` is the name of its metadata's folder."""
    place = folder / (info or f"{name}-1.0.dist-info")
    place.mkdir(parents=True, exist_ok=True)
    (place / "entry_points.txt").write_text(points, encoding="utf-8")
    file = "METADATA" if place.suffix == ".dist-info" else "PKG-INFO"
    text = header or f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nVersion: of the text\n"
    (place / file).write_text(text, encoding="utf-8")


def theirs(*folders: Path) -> set[Registration]:
    """Return what importlib.metadata finds in ``folders``."""
    found, seen = set(), set()
    for distribution in metadata.distributions(path=[str(folder) for folder in folders]):
        if distribution.name in seen:
            continue
        seen.add(distribution.name)
        for point in distribution.entry_points.select(group=GROUP):
            found.add(
                Registration(point.name, point.value, distribution.name, distribution.version)
            )
    return found


def ours(*folders: Path) -> set[Registration]:
    return set(installed(GROUP, [str(folder) for folder in folders]))


@pytest.mark.parametrize(
    "group", ["accel_streams.backends", "console_scripts", "pytest11", "torch.backends", "none"]
)
def test_this_environment_is_read_alike(group: str) -> None:
    points = {
        (point.name, point.value, point.dist.name, point.dist.version)
        for point in metadata.entry_points(group=group)
        if point.dist is not None
    }
    assert {tuple(registration) for registration in installed(group)} == points
    assert group != "accel_streams.backends" or points


def test_the_format(tmp_path: Path) -> None:
    add(
        tmp_path,
        "some-dist",
        "[other]\nno = no:no\n\n# a comment\n[a.group]\nx-y=mod:Cls\n# another\n"
        "  spaced  =  pack.mod : Cls.inner [extra]  \n\n[third]\nno = no:no\n",
    )
    (spaced, plain) = sorted(ours(tmp_path))
    assert plain == Registration("x-y", "mod:Cls", "some-dist", "1.0")
    assert (spaced.name, spaced.value) == ("spaced", "pack.mod : Cls.inner [extra]")
    assert ours(tmp_path) == theirs(tmp_path)


def test_every_place_for_metadata(tmp_path: Path) -> None:
    points = "[a.group]\n{} = mod:Cls\n"
    add(tmp_path, "wheel", points.format("one"))
    add(tmp_path, "develop", points.format("two"), info="develop.egg-info")
    egg = tmp_path / "old-1.0-py3.10.egg"
    add(egg, "old", points.format("three"), info="EGG-INFO")
    found = {registration.name for registration in ours(tmp_path, egg)}
    assert found == {"one", "two", "three"}
    assert ours(tmp_path, egg) == theirs(tmp_path, egg)


def test_the_first_on_the_path_hides_the_others_of_its_name(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    add(first, "The.Dist", "[a.group]\nnew = mod:Cls\n", info="the_dist-2.0.dist-info")
    add(second, "the-dist", "[a.group]\nold = mod:Cls\n", info="The_Dist-1.0.dist-info")
    assert {registration.name for registration in ours(first, second)} == {"new"}
    assert {registration.name for registration in ours(second, first)} == {"old"}
    assert ours(first, second) <= theirs(first, second)


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    add(tmp_path, "good", "[a.group]\nx = mod:Cls\n")
    (tmp_path / "empty-1.0.dist-info").mkdir()
    (tmp_path / "file-1.0.dist-info").write_text("not a folder")
    (tmp_path / "torn-1.0.dist-info").mkdir()
    (tmp_path / "torn-1.0.dist-info" / "entry_points.txt").write_bytes(b"[a.group]\n\xff = mod:X")
    found = ours(tmp_path, tmp_path / "missing")
    assert Registration("x", "mod:Cls", "good", "1.0") in found
    assert {registration.distribution for registration in found} == {"good", ""}


@pytest.mark.parametrize("how", ["zip", "finder"])
def test_distributions_in_other_places_are_left_to_importlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    asked: list[str] = []

    def ask(group: str) -> list[Registration]:
        asked.append(group)
        return []

    monkeypatch.setattr(_entry_points, "_ask_importlib", ask)
    installed(GROUP)
    assert not asked
    if how == "zip":
        archive = tmp_path / "all.zip"
        zipfile.ZipFile(archive, "w").close()
        monkeypatch.syspath_prepend(archive)
    else:
        finder = type("Finder", (), {"find_distributions": None, "find_spec": lambda *a: None})
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    installed(GROUP)
    assert asked == [GROUP]


def test_asking_importlib_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "dist", "[a.group]\nx = mod:Cls\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert _entry_points._ask_importlib(GROUP) == installed(GROUP)


def test_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Registration("x", "json.decoder:JSONDecoder.decode").load().__name__ == "decode"
    assert Registration("x", "json:dumps [extra]").load().__name__ == "dumps"
    assert Registration("x", "json.decoder").load().__name__ == "json.decoder"
    with pytest.raises(AttributeError):
        Registration("x", "json:nothing").load()
    with pytest.raises(ModuleNotFoundError):
        Registration("x", "no_such_module:x").load()
