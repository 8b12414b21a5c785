"""Watch what a program does on a device, and tell the races."""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from accel_streams._errors import NothingWatchedError, RaceError, TraceFormatError
from accel_streams.races._analyse import Analyser
from accel_streams.races._race import Race
from accel_streams.races._records import Record
from accel_streams.races._report import render_text, to_json
from accel_streams.races._source import TraceSource, choose_source

if TYPE_CHECKING:
    import torch

__all__ = ["Watch", "told_unseen", "watch"]


class Watch:
    """What was seen between ``start`` and ``stop``, and until now in between.

    ``found`` is called, by whichever thread brought it to light, each time that there are new
    races. ``keep_records`` is how many records are kept in `records`, for pictures.
    """

    def __init__(
        self,
        source: TraceSource,
        *,
        found: Callable[[], None] | None = None,
        keep_records: int = 0,
    ) -> None:
        self.source = source
        self.records: list[Record] = []
        self._found = found
        self._room = keep_records
        self._analyser = Analyser(source.device_type)
        self._told = 0
        self._active = False
        # Reentrant: what `found` does may look at the races. Not from threading, whose locks are
        # watched themselves.
        self._lock = _thread.RLock()

    def start(self, *, promptly: bool = False) -> None:
        """Begin. ``promptly``: analyse after every operation where the source can."""
        self._active = True
        self.source.start(self._receive, promptly=promptly)

    def stop(self) -> None:
        """End; what was seen can be asked for as before. A second call does nothing."""
        if self._active:
            self._active = False
            self.source.stop()

    def flush(self) -> None:
        """Analyse what has gathered."""
        if self._active:
            self.source.flush()

    def _receive(self, records: Sequence[Record]) -> None:
        with self._lock:
            if len(self.records) < self._room:
                self.records.extend(records[: self._room - len(self.records)])
            # Nobody could catch it here. The analyser remembers it, and `races` raises it.
            with contextlib.suppress(TraceFormatError):
                self._analyser.feed(records)
            count = self._analyser.race_count
            if self._found is not None and count != self._told:
                self._told = count
                self._found()

    @property
    def races(self) -> list[Race]:
        """The races so far.

        Raise TraceFormatError when the analysis failed: it then has no result.
        """
        self.flush()
        return self.races_so_far()

    def races_so_far(self) -> list[Race]:
        """Return the races in what was analysed already."""
        with self._lock:
            return self._analyser.races(self.source.stream_names())

    @property
    def operations(self) -> int:
        """How many operations on the device were analysed so far."""
        self.flush()
        return self._analyser.operations

    @property
    def unseen(self) -> list[str]:
        """What could not be seen, in plain words."""
        self.flush()
        return self.unseen_so_far()

    def unseen_so_far(self) -> list[str]:
        """Return what could not be seen of what was analysed already."""
        return [*self._analyser.unseen, *self.source.unseen()]

    def check(self) -> None:
        """Raise RaceError when there was a race, NothingWatchedError when there was nothing."""
        races = self.races
        if races:
            raise RaceError(self.report(), races=races)
        if not self.operations:
            raise NothingWatchedError(
                f"No operation on the device {self.source.device_type!r} was seen, so this says "
                "nothing about races. Watch the code that uses the device, and in the process "
                "that does."
            )

    def report(self) -> str:
        """Return the races, over how many operations, and what could not be seen, as text."""
        self.flush()
        return self.report_so_far()

    def report_so_far(self) -> str:
        """Return the report on what was analysed already."""
        text = render_text(self.races_so_far(), operations=self._analyser.operations)
        return "\n".join([text, *told_unseen(self.unseen_so_far())])

    def to_json(self) -> dict[str, Any]:
        """Return what ``accel-streams races --json`` writes."""
        return to_json(self.races, operations=self.operations, unseen=self.unseen)


def told_unseen(unseen: Sequence[str]) -> list[str]:
    """Return the lines that say what could not be seen."""
    return ["", "Not seen:", *(f"- {each}" for each in unseen)] if unseen else []


@contextlib.contextmanager
def watch(device: torch.device | str | None = None) -> Iterator[Watch]:
    """Look for races in what is done on ``device`` inside the ``with`` block.

    ``device`` is a device or its type; by default the simulated one if it is enabled, else the
    accelerator of this machine. What was queued before the block is not known to the analysis:
    synchronise first. Nothing is raised for a race: ask the `Watch` that the block is given, or
    call its ``check``.
    """
    seen = Watch(choose_source(device))
    seen.start()
    try:
        yield seen
    finally:
        seen.stop()
