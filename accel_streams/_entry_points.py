"""Read the entry points of the installed distributions, at a cost that nobody notices.

``importlib.metadata`` says the same, and takes longer to import than ``accel-streams list`` may
take as a whole. Where distributions can lie elsewhere than in folders, it is asked all the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

__all__ = ["Registration", "installed"]


class Registration(NamedTuple):
    """One entry point: its name, ``value`` as ``module:attribute``, and who registers it.

    ``distribution`` and ``version`` are the owner's; empty when its metadata can't be read.
    """

    name: str
    value: str
    distribution: str = ""
    version: str = ""

    def load(self) -> Any:
        """Import the module and return the attribute; raise what either does."""
        module, _, path = (part.strip() for part in self.value.partition(":"))
        found: Any = import_module(module)
        for attribute in filter(None, path.partition("[")[0].strip().split(".")):
            found = getattr(found, attribute)
        return found


def installed(group: str, path: Sequence[str] | None = None) -> list[Registration]:
    """Return the entry points in ``group`` of the distributions on ``path`` (None: sys.path)."""
    folders = sys.path if path is None else path
    if path is None and _is_unusual():
        return _ask_importlib(group)
    found: list[Registration] = []
    seen: set[str] = set()
    for folder in folders:
        for info in _infos(folder or "."):
            owner = _owner(info)
            # As everywhere in Python, the first on the path hides the others of its name.
            if owner not in seen:
                seen.add(owner)
                found.extend(_read(info, group))
    return found


def _is_unusual() -> bool:
    """Return whether distributions may lie elsewhere than in folders on the path."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if [getattr(finder, "__name__", "") for finder in finders] != ["PathFinder"]:
        return True
    return any(os.path.isfile(entry) for entry in sys.path)


def _ask_importlib(group: str) -> list[Registration]:
    from importlib.metadata import entry_points

    return [
        Registration(
            point.name,
            point.value,
            "" if point.dist is None else point.dist.name,
            "" if point.dist is None else point.dist.version,
        )
        for point in entry_points(group=group)
    ]


def _infos(folder: str) -> list[str]:
    """Return the folders with the metadata of the distributions in ``folder``."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    infos = [
        os.path.join(folder, name) for name in names if name.endswith((".dist-info", ".egg-info"))
    ]
    if folder.endswith(".egg"):
        infos.append(os.path.join(folder, "EGG-INFO"))
    return infos


def _owner(info: str) -> str:
    """Return what tells one distribution from another: its name, however it is spelt."""
    folder = os.path.dirname(info) if os.path.basename(info) == "EGG-INFO" else info
    name = os.path.basename(folder).rpartition(".")[0].partition("-")[0]
    return "_".join(filter(None, name.lower().replace("-", "_").replace(".", "_").split("_")))


def _read(info: str, group: str) -> Iterable[Registration]:
    text = _text(os.path.join(info, "entry_points.txt"))
    if f"[{group}]" not in text:
        return ()
    name, version = _name_and_version(info)
    return [Registration(point, value, name, version) for point, value in _section(text, group)]


def _section(text: str, group: str) -> Iterable[tuple[str, str]]:
    """Return names and values of one section; the format is that of an INI file."""
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            inside = line[1:-1].strip() == group
        elif inside and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _name_and_version(info: str) -> tuple[str, str]:
    text = _text(os.path.join(info, "METADATA")) or _text(os.path.join(info, "PKG-INFO"))
    fields = {"Name": "", "Version": ""}
    for line in text.splitlines():
        if not line:
            break  # The description begins.
        key, _, value = line.partition(":")
        if fields.get(key) == "":
            fields[key] = value.strip()
    return fields["Name"], fields["Version"]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
