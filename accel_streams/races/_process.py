"""Watch a whole process, as ``ACCEL_STREAMS_RACES`` asks for."""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, Literal

import wrapt

from accel_streams._errors import AccelStreamsError, RaceError, RaceWarning
from accel_streams.races._race import Race, short_name, where
from accel_streams.races._source import TraceSource, choose_source
from accel_streams.races._watch import Watch, told_unseen

__all__ = ["ProcessWatch", "watch_process"]

_watching: ProcessWatch | None = None


def watch_process(device_type: str, mode: Literal["off", "warn", "raise"]) -> None:
    """Look for races from now to the end of this process; a second call does nothing.

    ``warn``: each race is a `RaceWarning` as soon as it is found. ``raise``: RaceError is raised,
    at the operation where the device allows it, else when the step ends, and the process does not
    end with status 0.
    """
    global _watching
    if mode == "off" or _watching is not None:
        return
    watching = ProcessWatch(choose_source(device_type), raises=mode == "raise")
    watching.start()
    _watching = watching


class ProcessWatch:
    """A watch that speaks for itself, and ends with the process."""

    def __init__(self, source: TraceSource, *, raises: bool) -> None:
        self._raises = raises
        self._at_once = raises and source.sink_may_raise
        self._watch = Watch(source, found=self._found)
        self._known: set[tuple[object, ...]] = set()
        # What has to be raised at the next occasion.
        self._pending: list[Race] = []
        self._pending_warning: RaceWarning | None = None
        self._lock = _thread.allocate_lock()
        self._process = os.getpid()

    def start(self) -> None:
        """Begin, and have the ends of steps and of the process reported."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._watch.start(promptly=self._at_once)
        # Before a step too: then wrong gradients have not been used yet.
        register_optimizer_step_pre_hook(self._at_optimizer_step)
        register_optimizer_step_post_hook(self._at_optimizer_step)
        wrapt.register_post_import_hook(self._hook_engine, "deepspeed.runtime.engine")
        atexit.register(self._at_exit)

    def _hook_engine(self, module: Any) -> None:
        wrapt.wrap_function_wrapper(module, "DeepSpeedEngine.step", self._around_step)

    def _around_step(
        self,
        wrapped: Callable[..., Any],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        result = wrapped(*args, **kwargs)
        self.settle()
        return result

    def _at_optimizer_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.settle()

    def settle(self) -> None:
        """Analyse what has gathered, and raise what has to be raised."""
        if os.getpid() != self._process:
            return
        self._watch.flush()
        with self._lock:
            pending, self._pending = self._pending, []
            warning, self._pending_warning = self._pending_warning, None
        if pending:
            raise RaceError(self._watch.report(), races=pending)
        if warning is not None:
            raise warning

    def _found(self) -> None:
        """Tell the races that are new. Called by the thread whose work brought them to light."""
        new = []
        for race in self._watch.races_so_far():
            identity = _identity(race)
            if identity not in self._known:
                self._known.add(identity)
                new.append(race)
        if not new:
            return
        if not self._raises:
            for race in new:
                self._warn(race)
        elif self._at_once:
            raise RaceError(self._watch.report_so_far(), races=new)
        else:
            with self._lock:
                self._pending += new

    def _warn(self, race: Race) -> None:
        file, line, _ = race.second.source or ("<unknown>", 0, "")
        try:
            warnings.warn_explicit(_told(race), RaceWarning, file, line, module=__name__)
        except RaceWarning as warning:
            # The user has made it an error, and there is nobody here to catch it.
            self._pending_warning = self._pending_warning or warning

    def _at_exit(self) -> None:
        if os.getpid() != self._process:
            return  # A forked copy; what it has seen is its parent's.
        self._watch.stop()
        try:
            races, failure = self._watch.races, ""
        except AccelStreamsError as exc:
            races, failure = [], str(exc)
        operations = self._watch.operations
        if not failure and not operations and _is_launcher():
            return
        print("\n".join(self._summary(races, operations, failure)), file=sys.stderr, flush=True)
        if self._raises and (races or failure):
            _exit_with_failure(self._at_exit)

    def _summary(self, races: list[Race], operations: int, failure: str) -> list[str]:
        rank = os.environ.get("RANK")
        who = "accel_streams: races" + (f", rank {rank}" if rank else "")
        if failure:
            return [f"{who}: {failure}"]
        if not operations:
            return [
                f"{who}: no operation on the device {self._watch.source.device_type!r} was seen, "
                "so nothing was checked"
            ]
        if races and self._pending:
            # Nothing has told them yet: no step came after them.
            return [f"{who}: {self._watch.report()}"]
        over = f"in {operations:,} operations"
        if races:
            told = f"{who}: {len(races):,} race{'s' * (len(races) > 1)} {over}, told above"
        else:
            told = f"{who}: no races {over}"
        return [told, *told_unseen(self._watch.unseen)[1:]]


def _identity(race: Race) -> tuple[object, ...]:
    return (
        race.kind,
        *((side.name, side.mode, side.source) for side in (race.first, race.second)),
    )


def _told(race: Race) -> str:
    first, second = race.first, race.second
    return (
        f"race between streams: {race.kind} on {race.buffer}: {race.missing_edge}. First: "
        f"{short_name(first.name)} on `{first.stream_name}` {where(first.source, short=False)}; "
        f"then: {short_name(second.name)} on `{second.stream_name}` "
        f"{where(second.source, short=False)}."
    )


def _is_launcher() -> bool:
    """Tell whether this process only starts others: it imports DeepSpeed and trains nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).startswith("deepspeed.launcher")
    return os.path.basename(sys.argv[0] if sys.argv else "") in ("deepspeed", "ds")


def _exit_with_failure(handler: Callable[[], None]) -> None:
    # Python ignores what a handler raises, and has no other way to change the exit status here. So
    # run the handlers that remain, and end as it would.
    atexit.unregister(handler)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(1)
