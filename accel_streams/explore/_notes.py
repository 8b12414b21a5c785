"""What a process that runs a script notes for a search or for making a schedule shorter.

The runner's processes write it to a file that the environment variable of `VARIABLE` names, one
for each rank, also when the script fails.
"""

from __future__ import annotations

import atexit
import bisect
import io
import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accel_streams.races._files import atomic_text

from ._delays import Delay
from ._digest import Collector
from ._failures import ExploreError
from ._from_trace import WHOLE, name_of, polled
from ._operations import WRITE, Operation

__all__ = ["VARIABLE", "Notes", "ScriptNotes", "asking_for", "inversions", "read_notes"]

VARIABLE = "_ACCEL_STREAMS_NOTES"

What = Literal["operations", "races", "inversions"]
"""All operations of a small script; what each race found would take to happen; what ran in another
order than it was submitted."""

Json = dict[str, Any]
# A block that is used more often is looked at for its last uses only.
_MOST_USES = 3000


def asking_for(what: What, folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the environment with which a run writes its notes into `folder`."""
    return ((VARIABLE, f"{what}:{folder}"),)


class ScriptNotes:
    """Gathers, in the process that runs the script."""

    def __init__(self, what: What, folder: Path) -> None:
        self.what: What = what
        self.path = folder / f"rank{os.environ.get('RANK', '0')}.json"
        self._records: list[tuple[Any, ...]] = []
        self._printed = io.StringIO()
        self._collector: Collector | None = None

    @classmethod
    def wanted(cls) -> ScriptNotes | None:
        """Return what gathers the notes that the environment asks for, None for none."""
        value = os.environ.pop(VARIABLE, None)
        if value is None:
            return None
        what, _, folder = value.partition(":")
        return cls(what, Path(folder))  # type: ignore[arg-type]  # from asking_for

    def begin(self) -> None:
        """Start to note; the trace has been started."""
        from accel_streams.fake._extension import extension

        extension().take_steps()
        extension().note_steps(True)
        if self.what == "operations":
            self._collector = Collector()
            self._collector.install()
            sys.stdout = _Tee(sys.stdout, self._printed)
            atexit.register(self._finish_failed)

    def receive(self, records: list[tuple[Any, ...]]) -> None:
        """Take records of the trace."""
        if self.what != "races":
            self._records += records

    def _finish_failed(self) -> None:
        """Write the notes of a script that has failed, whose trace nobody has ended."""
        from accel_streams import fake

        try:
            fake.stop_trace()
        except RuntimeError:  # of an operation that failed: so did the script
            fake.stop_trace()
        self.finish([])

    def finish(self, races: Sequence[Json]) -> None:
        """Write the notes. All work is done, and the trace's last records have come."""
        from accel_streams.fake._extension import extension

        atexit.unregister(self._finish_failed)
        extension().note_steps(False)
        steps = extension().take_steps()
        document: Json = {}
        if self.what == "operations":
            document = self._told_operations(steps)
        elif self.what == "races":
            document["delays"] = _of_races(races, steps)
        else:
            document["delays"] = inversions(self._records, steps)
        with atomic_text(self.path) as file:
            json.dump(document, file)

    def _told_operations(self, steps: Sequence[tuple[Any, ...]]) -> Json:
        from ._from_trace import operations_of

        try:
            operations, order = operations_of(self._records, steps)
        except ExploreError as exc:
            return {"error": str(exc)}
        digest = self._collector
        return {
            "operations": [[o.name, o.stream, o.accesses, o.follows, o.what] for o in operations],
            "order": order,
            "polled": polled(steps),
            "printed": self._printed.getvalue(),
            "digest": "" if digest is None or digest.empty else digest.digest(),
        }


class _Tee(io.TextIOBase):
    """Standard output, of which a copy is kept."""

    def __init__(self, *targets: Any) -> None:
        self._targets = targets

    def write(self, text: str) -> int:
        for target in self._targets:
            target.write(text)
        return len(text)

    def flush(self) -> None:
        for target in self._targets:
            target.flush()


@dataclass(frozen=True, slots=True)
class Notes:
    """What one rank has noted."""

    operations: tuple[Operation, ...] = ()
    order: tuple[int, ...] = ()
    polled: bool = False
    printed: str = ""
    digest: str = ""
    error: str = ""
    delays: tuple[Delay, ...] = field(default=())


def read_notes(folder: Path, rank: int = 0) -> Notes | None:
    """Return the notes of a rank, None if it has not come to write them."""
    path = folder / f"rank{rank}.json"
    if not path.exists():
        return None
    document = json.loads(path.read_text())
    document["operations"] = tuple(
        Operation(name, stream, tuple(map(tuple, accesses)), tuple(follows), what)
        for name, stream, accesses, follows, what in document.get("operations", ())
    )
    document["order"] = tuple(document.get("order", ()))
    document["delays"] = tuple(Delay(*pair) for pair in document.get("delays", ()))
    return Notes(**document)


def _of_races(races: Sequence[Json], steps: Sequence[tuple[Any, ...]]) -> list[Delay]:
    """Return, for each race, the one delay that makes its second operation come first."""
    ran = sorted(step for step in steps if step[1] or step[2])  # of a collective, its begin first
    seqs = [step[0] for step in ran]
    found: dict[Delay, None] = {}
    for race in races:
        names = []
        for side in ("first", "second"):
            operation = race[side]
            # Memory that is handed out or given back is no entry of a queue: what counts is the
            # latest one before it on its stream, for one given back the allocator's own.
            place = bisect.bisect_right(seqs, operation["seq"]) - 1
            exact = place >= 0 and seqs[place] == operation["seq"]
            stream = tuple(operation["stream_id"])
            while place >= 0 and not exact and ran[place][4] != stream:
                place -= 1
            if place >= 0:
                names.append(name_of(ran[place]))
        if len(names) == 2:
            found[Delay(*names)] = None
    return list(found)


def inversions(records: Sequence[tuple[Any, ...]], steps: Sequence[tuple[Any, ...]]) -> list[Delay]:
    """Return delays that make the conflicting operations of a run come in its order.

    Only those that were submitted in the other order; and of those, the ones that do not follow
    from the order within streams.
    """
    place = {step[0]: (number, step) for number, step in enumerate(steps) if step[1] or step[2]}
    uses: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for record in records:
        if record[0] == "launch" and record[1] in place:
            for access in record[5]:
                uses[access[0]].append((record[1], record[3], *access[1:4]))
        elif record[0] == "reuse":
            before = record[1] - 1
            while before not in place and before > record[1] - 100:
                before -= 1
            if before in place:
                uses[record[4]].append((before, record[3], 0, WHOLE, WRITE))
    pairs: set[tuple[int, int]] = set()
    for block in uses.values():
        block.sort()
        recent = block[-_MOST_USES:]
        for index, (late, stream, lo, hi, mode) in enumerate(recent):
            latest: dict[Any, int] = {}
            for early, other, low, high, others in recent[index + 1 :]:
                if (
                    other != stream
                    and place[early][0] < place[late][0]
                    and lo < high
                    and low < hi
                    and (mode | others) & WRITE
                ):
                    latest[other] = early
            pairs.update((late, early) for early in latest.values())
    # Who comes after one operation of a stream comes after all before it, and so does all that
    # comes after him on his own.
    reached: dict[tuple[Any, Any], int] = {}
    found = []
    for late, early in sorted(pairs):
        streams = (place[late][1][4], place[early][1][4])
        if reached.get(streams, -1) < early:
            reached[streams] = early
            found.append(Delay(name_of(place[late][1]), name_of(place[early][1])))
    return found
