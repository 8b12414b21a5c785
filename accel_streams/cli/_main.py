"""The command's entry, and how errors leave the process.

Exit status: 0 fine, 1 the thing checked does not hold or the work failed, 2 wrong usage, which
includes settings that mean nothing and backends that don't exist.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from accel_streams._errors import AccelStreamsError, SettingError, UnknownBackendError

__all__ = ["main"]

_USAGE_ERRORS = (SettingError, UnknownBackendError)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command with ``args`` (None: the process's own) and exit with its status."""
    words = sys.argv[1:] if args is None else list(args)
    try:
        _run(words)
        sys.stdout.flush()
    except AccelStreamsError as exc:
        print(f"accel-streams: error: {exc}", file=sys.stderr)
        sys.exit(2 if isinstance(exc, _USAGE_ERRORS) else 1)
    except BrokenPipeError:
        # Whoever read our output has stopped, as in `| head`. Nothing is wrong, and Python must
        # not try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _run(words: list[str]) -> None:
    if words == ["list"]:
        # What scripts and prompts call. The option parser would take several times as long to
        # import as the whole answer.
        from accel_streams.cli._listing import show_backends

        show_backends()
        return
    from accel_streams.cli._commands import command

    command.main(args=words, prog_name="accel-streams")
