"""The entry point torch calls on import."""

from __future__ import annotations


def autoload() -> None:
    """Do nothing yet."""
