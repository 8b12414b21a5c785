"""What users of the simulated device call, beside torch's own interface."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import PurePath
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch.utils import backend_registration

from accel_streams import _settings
from accel_streams._errors import FakeDeviceError
from accel_streams.fake import _build, _collectives, _device, _exit
from accel_streams.fake._extension import extension, is_loaded, set_extension

__all__ = [
    "SCHEDULES",
    "Gate",
    "enable",
    "enable_as",
    "hold",
    "is_enabled",
    "name_storage",
    "name_stream",
    "operations",
    "reset_counters",
    "schedule",
    "set_queue_capacity",
    "set_schedule",
    "stream_names",
    "synchronizing_ops",
    "virtual_time",
]

SCHEDULES: tuple[str, ...] = _settings.SCHEDULES
_MAX_SEED = 2**64 - 1

_enabling = threading.Lock()
_stream_labels: dict[tuple[int, int], str] = {}


def enable() -> None:
    """Give torch the device type ``fake`` and the module ``torch.fake``.

    A second call does nothing. The extension is built for the installed torch the first time (about
    half a minute) and cached. The environment variables ``ACCEL_STREAMS_SCHEDULE`` and
    ``ACCEL_STREAMS_SEED`` choose the schedule.

    Raises:
        BuildError: The extension can't be built or loaded.
        FakeDeviceError: Another package has taken torch's one place for a device from outside.
        SettingError: An environment variable has an unknown value.

    """
    device_type = _device.DEVICE_TYPE
    enable_as(device_type, _device.make_module(device_type), _collectives.register)


def enable_as(
    device_type: str, module: ModuleType, register_collectives: Callable[[], None]
) -> None:
    """Give torch the simulated device as another device type.

    For stand-ins of vendors' packages in tests. ``module`` becomes ``torch.<device_type>``, and
    ``register_collectives`` makes its communication known. What ``enable`` raises, this does too.
    """
    with _enabling:
        if is_loaded():
            return
        name, seed = _settings.schedule(), _settings.seed()  # before anything is built
        _check_place_is_free()
        set_extension(_build.load_extension())
        backend_registration.rename_privateuse1_backend(device_type)
        torch._register_device_module(device_type, module)  # type: ignore[no-untyped-call]
        backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
        register_collectives()
        set_schedule(name or "in-order", seed)
        _exit.register()


def _check_place_is_free() -> None:
    name = torch._C._get_privateuse1_backend_name()
    # A device that kept torch's name for it shows by its memory allocator.
    if name == "privateuseone" and not torch._C._dispatch_has_kernel_for_dispatch_key(
        "aten::empty.memory_format", "PrivateUse1"
    ):
        return
    raise FakeDeviceError(
        f"torch has one place for a device from outside, and the device {name!r} has taken it in "
        f"this process. The fake device can't be used beside it: run it in a process that does not "
        f"import the package behind {name!r}."
    )


def is_enabled() -> bool:
    """Tell whether ``enable()`` has been called in this process."""
    return is_loaded()


def set_schedule(name: str, seed: int = 0) -> None:
    """Choose in which order queued work runs from now on.

    Args:
        name: One of ``SCHEDULES``, or ``delay:A-B,...``: in-order, but the operation with the
            number A runs after B. The search of accel_streams.explore names schedules so.
        seed: For ``random`` and ``priority``: the same seed gives the same order.

    Raises:
        FakeDeviceError: There is no such schedule, or the seed is negative or needs more than 64
            bits.

    """
    if name not in SCHEDULES and not _settings.is_delays(name):
        raise FakeDeviceError(
            f"Unknown schedule {name!r} for the fake device: expected one of "
            f"{', '.join(SCHEDULES)}, or delay:A-B,C-D,... with numbers of operations."
        )
    if not 0 <= seed <= _MAX_SEED:
        raise FakeDeviceError(f"A schedule's seed is a number from 0 to {_MAX_SEED}, got {seed}.")
    extension().set_schedule(name, seed)


def schedule() -> tuple[str, int]:
    """Return the name and the seed of the schedule in use."""
    name, seed = extension().schedule()
    return str(name), int(seed)


def set_queue_capacity(operations: int) -> None:
    """Set how many operations may be queued before some of them run.

    Args:
        operations: At least 1; 4096 at first. A smaller queue needs less memory and hides
            reorderings that reach further.

    """
    extension().set_capacity(operations)


class Gate:
    """A place in a stream that work queued behind it can't pass until ``release()``."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def release(self) -> None:
        """Let the stream go on. May be called more than once, from any thread."""
        self._handle.release()

    @property
    def released(self) -> bool:
        """Whether the gate is open."""
        return bool(self._handle.released)

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def hold(stream: torch.Stream) -> Gate:
    """Hold ``stream`` here: what is queued on it from now on waits until the gate is released."""
    return Gate(extension().hold(stream.device_index, stream.stream_id))


def operations() -> int:
    """Return how many operations this process has queued."""
    return int(extension().operations())


def virtual_time() -> int:
    """Return the host's virtual clock in nanoseconds.

    It moves by a fixed cost for each operation and, when the host waits, to the time at which the
    awaited work ends on a device whose streams run side by side. It does not depend on the machine.
    """
    return int(extension().host_clock())


def synchronizing_ops() -> dict[str, int]:
    """Return how often each operation has made the host wait for the device.

    A wait nobody asked for hides missing waits between streams: tests assert what this returns.
    """
    return dict(extension().synchronizations())


def reset_counters() -> None:
    """Forget what ``synchronizing_ops`` has counted."""
    extension().reset_counters()


def name_stream(stream: torch.Stream, label: str) -> None:
    """Give a stream the name that reports and pictures call it by."""
    _stream_labels[stream.device_index, stream.stream_id] = label


def name_storage(tensor: torch.Tensor, label: str) -> None:
    """Give the memory behind ``tensor`` a name for reports, while a trace is recorded."""
    extension().name_storage(tensor, label)


def stream_names() -> dict[tuple[int, int], str]:
    """Return the names of streams by (device index, stream id).

    Communicators' streams have names of their own; a stream that was made while a trace was
    recorded is named after the line that made it.
    """
    names = {(index, 0): "default stream" for index in range(extension().device_count())}
    for index, stream_id, (file, line, _) in extension().stream_places():
        names[index, stream_id] = f"stream {stream_id} ({PurePath(file).name}:{line})"
    for index, stream_id, label in extension().communicator_streams():
        names[index, stream_id] = label
    return names | _stream_labels
