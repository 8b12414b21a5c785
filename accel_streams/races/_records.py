"""The records of a trace: what a device's host submitted, waited for, allocated and freed.

A record is a plain tuple. Its first item is the kind, the second ``seq`` (the order of submission
over the whole process, increasing), the third the index of the host thread (but not in ``ran``,
which no thread submitted). The rest by kind:

===============  ======================================================================
``launch``       stream, name, accesses, source: an operation was queued on the stream
``record``       stream, source: an event was recorded on the stream
``wait``         stream, record_seq, source: the stream waits for that recording of an event
``sync_stream``  stream, name, source: the host waited for all work of the stream; ``name`` is the
                 operation that made it wait (``item``, a copy to the host), empty for a synchronise
``sync_event``   record_seq, source: the host saw that recording of an event complete
``sync_device``  device_index, source: the host waited for all work of the device
``alloc``        stream, block, nbytes, source: memory was handed out; ``stream`` is its owner
``record_stream``  stream, block: the allocator was told that the stream uses the block
``free``         stream, block: the host dropped its last reference
``reuse``        stream, block: from here the memory may be handed to new work on the owner stream
``ran``          order, start_ns, end_ns: the operation ``seq`` ran (position in the run, virtual
                 clock); for pictures only, orders nothing
``name``         block, label: what to call a block in a report
``drop``         record_seq: nobody can wait for that recording any more
``release``      token: what the host thread knows can be taken over under the token
``acquire``      token: the host thread has taken over what was released under the token last
``left_out``     count: so many launches were left out of the trace because nothing they touch can
                 race
===============  ======================================================================

``stream`` is ``(device_index, stream_id)``. ``accesses`` is None where nobody knows what the
operation touches, else a tuple of ``(block, lo, hi, mode)`` or ``(block, lo, hi, mode, shape)``:
``block`` numbers an allocation (never a memory address: the address comes back, the number does
not), ``[lo, hi)`` are bytes inside it, ``mode`` is `READ`, `WRITE` or both (``READ | WRITE``). With
a ``shape`` ``(width, n1, s1, n2, s2, ...)``, longest stride first, they are not all of these bytes
but the ``width`` bytes from ``lo + k1 * s1 + k2 * s2 + ...`` on, for every k below its n.
``source`` is None or ``(file, line, function)``; ``("autograd", 0, "MmBackward0")`` for a step of
the backward pass, which has no Python frame.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

__all__ = [
    "FIELDS",
    "READ",
    "WRITE",
    "Access",
    "Record",
    "Shape",
    "Source",
    "StreamKey",
    "is_backward",
    "is_collective",
]

READ: Final = 1
WRITE: Final = 2

StreamKey: TypeAlias = tuple[int, int]
Source: TypeAlias = tuple[str, int, str]
Shape: TypeAlias = tuple[int, ...]
Access: TypeAlias = tuple[int, int, int, int] | tuple[int, int, int, int, Shape]
# Heterogeneous by kind; a source of traces builds millions of them, so no class wraps them.
Record: TypeAlias = tuple[Any, ...]

# The fields after the kind.
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "launch": ("seq", "thread", "stream", "name", "accesses", "source"),
    "record": ("seq", "thread", "stream", "source"),
    "wait": ("seq", "thread", "stream", "record_seq", "source"),
    "sync_stream": ("seq", "thread", "stream", "name", "source"),
    "sync_event": ("seq", "thread", "record_seq", "source"),
    "sync_device": ("seq", "thread", "device_index", "source"),
    "alloc": ("seq", "thread", "stream", "block", "nbytes", "source"),
    "record_stream": ("seq", "thread", "stream", "block"),
    "free": ("seq", "thread", "stream", "block"),
    "reuse": ("seq", "thread", "stream", "block"),
    "ran": ("seq", "order", "start_ns", "end_ns"),
    "name": ("seq", "thread", "block", "label"),
    "drop": ("seq", "thread", "record_seq"),
    "release": ("seq", "thread", "token"),
    "acquire": ("seq", "thread", "token"),
    "left_out": ("seq", "thread", "count"),
}


# What the names of collectives begin with, by library.
_COMMUNICATION: Final = frozenset({"cncl", "fccl", "gloo", "hccl", "mccl", "mpi", "nccl", "xccl"})


def is_backward(source: Source) -> bool:
    """Return whether ``source`` is a step of the backward pass, which has no file and line."""
    return source[1] == 0 and source[0] == "autograd"


def is_collective(name: str) -> bool:
    """Return whether an operation runs on a communicator's stream: ``fccl::all_reduce``."""
    library, colon, _ = name.partition(":")
    return bool(colon) and library in _COMMUNICATION
