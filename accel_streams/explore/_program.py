"""Run a Python function on the simulated device, again and again, under schedules of our choice."""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from accel_streams.explore._delays import Delay, schedule_name
from accel_streams.explore._device import synchronize_all
from accel_streams.explore._failures import ExploreError
from accel_streams.explore._from_trace import operations_of, polled
from accel_streams.explore._search import Execution

__all__ = ["FakeDeviceProgram", "told_value"]

_LONGEST_TEXT: Final = 200

_T = TypeVar("_T")
# One for all searches: what it holds is freed when a run begins, never in one.
_KEPT: dict[int, object] = {}


class FakeDeviceProgram(Generic[_T]):
    """A function that uses ``device="fake"``, as something to search.

    What it returns is compared: tensors, or containers of them, numbers, strings. An Exception that
    it raises is an outcome too, so that it may assert what it expects.
    """

    def __init__(self, program: Callable[[], _T]) -> None:
        from accel_streams import fake

        fake.enable()
        self._program = program

    def run(self, delays: Sequence[Delay]) -> Execution:
        """Run the function in-order but for `delays`."""
        from accel_streams import fake
        from accel_streams.fake._extension import extension

        device = extension()
        before = fake.schedule()
        with _without_collector():
            self._forget_earlier_runs()
            fake.start_trace()
            device.take_steps()
            device.note_steps(True)
            try:
                fake.set_schedule(schedule_name(delays))
                ended = self._ended()
                try:
                    records = fake.stop_trace()
                except RuntimeError as exc:  # an operation that failed, and nobody waited for it
                    ended = exc
                    records = fake.stop_trace()
            finally:
                device.note_steps(False)
                fake.set_schedule(*before)
            steps = device.take_steps()
            operations, order = operations_of(records, steps)
            if isinstance(ended, Exception):
                text = f"raised {type(ended).__name__}: {_first_line(ended)}"
                outcome = text
            else:
                outcome, text = told_value(ended)
            del ended
            # All that this run has made is still among the youngest objects.
            gc.collect(0)
        return Execution(operations, order, outcome, text, polled(steps))

    def replay(self, delays: Sequence[Delay]) -> _T:
        """Run the function once as the search would, outside it; return what it returns."""
        from accel_streams import fake

        before = fake.schedule()
        with _without_collector():
            self._forget_earlier_runs()
            fake.set_schedule(schedule_name(delays))
            try:
                value = self._program()
                synchronize_all("fake")
            finally:
                fake.set_schedule(*before)
        return value

    def _ended(self) -> object:
        """Return what the function returns, or the exception it raises."""
        try:
            return self._program()
        except Exception as exc:
            exc.__traceback__ = None  # it would keep the function's tensors alive
            return exc

    def _forget_earlier_runs(self) -> None:
        """Bring the device to the state in which every run begins.

        The next allocation on a stream takes over what was freed there: one for each default stream
        is made here, and kept, so that an earlier run's memory is not a later run's business.
        """
        import torch

        for index in range(torch.fake.device_count()):  # type: ignore[attr-defined]
            torch.fake.synchronize(index)  # type: ignore[attr-defined]
            _KEPT.pop(index, None)
            _KEPT[index] = torch.empty(1, device=f"fake:{index}")
            torch.fake.synchronize(index)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Let tensors in cycles be freed between the runs only, not at a moment that differs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:_LONGEST_TEXT]


def told_value(value: object) -> tuple[str, str]:
    """Return what is equal for equal values, bit by bit, and a short text of the value."""
    digest = hashlib.sha256()
    text = _told(value, digest.update)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}... ({digest.hexdigest()[:12]})"
    return digest.hexdigest(), text


def _told(value: Any, update: Callable[[bytes], object]) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        host = value.detach().cpu().contiguous()
        update(f"tensor {host.dtype} {tuple(host.shape)}".encode())
        update(host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b"")
        return str(host.tolist())
    if isinstance(value, Mapping):
        update(f"mapping {len(value)}".encode())
        items = [f"{_told(key, update)}: {_told(item, update)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        update(f"sequence {len(value)}".encode())
        return "[" + ", ".join(_told(item, update) for item in value) + "]"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        update(repr(value).encode())
        return repr(value)
    raise ExploreError(
        f"the program returned a {type(value).__name__}, which can't be compared between "
        "schedules; return tensors, numbers, strings, or lists and dictionaries of them"
    )
