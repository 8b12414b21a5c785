"""Calls that may not come back."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Caller"]


class Caller:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="conformance call", daemon=True)
        self._thread.start()

    def returned(self) -> bool:
        """Return whether the call has ended."""
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Wait for the call's end for at most so long, and return whether it has ended."""
        self._thread.join(seconds)
        return self.returned()

    def result(self) -> None:
        """Raise what the ended call has raised, if anything."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as exc:  # Handed to whoever asks for the result.
            self._error = exc
