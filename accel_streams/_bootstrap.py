"""Get in before DeepSpeed chooses its accelerator, at the price of one small import.

torch calls ``autoload`` at the end of ``import torch``. All it does is watch for DeepSpeed: wrapt,
which then takes over, costs more to import than may be added to ``import torch``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["autoload", "watch_for_deepspeed"]

_TARGET = "deepspeed.accelerator.real_accelerator"

autoload_ran = False
"""Whether torch has called the entry point in this process (``accel-streams doctor`` shows it)."""


def autoload() -> None:
    """Do what torch's entry point is for; never raise, or ``import torch`` would fail."""
    global autoload_ran
    autoload_ran = True
    try:
        watch_for_deepspeed()
    except Exception:
        _log_failure()


def watch_for_deepspeed() -> None:
    """Have the accelerator set as soon as DeepSpeed's accelerator module has been imported.

    Does nothing the second time. If that module has been imported already, act at once.
    """
    if any(isinstance(finder, _DeepSpeedWatch) for finder in sys.meta_path):
        return
    watch = _DeepSpeedWatch()
    sys.meta_path.insert(0, watch)
    if "deepspeed" in sys.modules:
        watch.hook()


class _DeepSpeedWatch:
    """A finder that finds nothing: it is asked first, and so learns of ``import deepspeed``."""

    def __init__(self) -> None:
        self._hooked = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Hook DeepSpeed when it is about to be imported; leave the finding to the others."""
        if fullname == "deepspeed":
            self.hook()
        return None

    def hook(self) -> None:
        """Register the post-import hook, once."""
        if not self._hooked:
            self._hooked = True
            try:
                from wrapt import register_post_import_hook
            except Exception:
                _log_failure()
                return
            register_post_import_hook(self._imported, _TARGET)

    def _imported(self, module: ModuleType) -> None:
        # Without the variable only accel_streams.install() acts, and that needs no hook.
        if not os.environ.get("DS_ACCELERATOR"):
            return
        from accel_streams.deepspeed import on_real_accelerator

        try:
            on_real_accelerator(module)
        except BaseException:
            # DeepSpeed's import fails with this error. Should the program try again, so do we;
            # a second attempt must not slip through to another accelerator.
            self._hooked = False
            raise


def _log_failure() -> None:
    """Say that this package is inactive, without raising into an import that isn't ours.

    Whoever has asked for it in ``DS_ACCELERATOR`` gets an error from DeepSpeed, which then doesn't
    know the name: nobody ends up on another accelerator unawares.
    """
    import logging

    logging.getLogger("accel_streams").warning(
        "accel_streams can't hook DeepSpeed and is inactive in this process.", exc_info=True
    )
