"""A simulated asynchronous device on the CPU: real torch streams, chosen schedules.

``enable()`` gives torch the device type ``fake``. Work on it is queued and runs, in the order that
the chosen schedule says, when the host waits for it; a wait that is missing therefore fails every
time.
"""

from __future__ import annotations

from accel_streams.fake._api import (
    SCHEDULES,
    Gate,
    enable,
    hold,
    is_enabled,
    name_storage,
    name_stream,
    operations,
    reset_counters,
    schedule,
    set_queue_capacity,
    set_schedule,
    stream_names,
    synchronizing_ops,
    virtual_time,
)
from accel_streams.fake._collectives import BACKEND_NAME
from accel_streams.fake._trace import flush_trace, listen, start_trace, stop_trace

__all__ = [
    "BACKEND_NAME",
    "SCHEDULES",
    "Gate",
    "enable",
    "flush_trace",
    "hold",
    "is_enabled",
    "listen",
    "name_storage",
    "name_stream",
    "operations",
    "reset_counters",
    "schedule",
    "set_queue_capacity",
    "set_schedule",
    "start_trace",
    "stop_trace",
    "stream_names",
    "synchronizing_ops",
    "virtual_time",
]
