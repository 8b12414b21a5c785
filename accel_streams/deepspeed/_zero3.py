"""Order the accesses to ZeRO-3's partitioned parameters and to their gradients.

Three streams use them: the one that trains, DeepSpeed's stream for gathering parameters and its
stream for reducing gradients. DeepSpeed orders most of it, by waiting for the *default* stream
where it means the one that trains, and leaves out:

- the *partitions*, each rank's part of the parameters: written by the optimizer on the stream of
  the step, read by the next gather on the stream for gathering;
- a *gathered parameter* that is used on more streams than the one that releases it: a layer
  applied under several streams;
- a *gradient outside the bucket* of which this rank keeps no part: dropped while it is reduced.

Nothing here makes the host wait.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from accel_streams._backend import Backend, Event, Stream, StreamId
from accel_streams.deepspeed._ordering import skip_edges
from accel_streams.deepspeed._region import default_is_current

if TYPE_CHECKING:
    import torch

__all__ = ["EDGES", "Zero3Ordering"]

EDGES = (
    "partition of parameters: producer->read",
    "gathered parameter: keep-alive",
    "ZeRO-3 gradient: producer->read",
    "ZeRO-3 gradient: keep-alive",
    "overflow check: producer->read",
)
"""What the ordering consists of; a name in ``skip_edges`` leaves that one out, for tests."""

_USERS = "_accel_streams_users"


class Zero3Ordering:
    """Order what one process does with partitioned parameters, whatever engine they belong to."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # The last write of partitions by each stream, and who has waited for all of them.
        self._writes: dict[StreamId, Event] = {}
        self._waited: set[StreamId] = set()

    # -- the partitions ----------------------------------------------------------------------------

    def partitions_written(self) -> None:
        """Note that the current stream has been given a write of partitions."""
        stream = self._backend.current_stream()
        stream_id = self._backend.stream_id(stream)
        event = self._writes.get(stream_id)
        if event is None:
            event = self._writes[stream_id] = self._backend.new_event()
        # At once: a gather ahead of its use must not wait for the layers before it as well.
        self._backend.record(event, stream)
        self._waited.clear()

    def before_gather(self, gatherer: Stream | None) -> None:
        """Make the gathering stream, if there is one, wait for those who wrote partitions."""
        if gatherer is None or EDGES[0] in skip_edges:
            return
        gatherer_id = self._backend.stream_id(gatherer)
        if gatherer_id in self._waited:
            return
        for writer_id, event in self._writes.items():
            if writer_id != gatherer_id:
                self._backend.wait(gatherer, event)
        self._waited.add(gatherer_id)

    # -- gathered parameters -----------------------------------------------------------------------

    def parameters_used(self, parameters: list[torch.nn.Parameter]) -> None:
        """Note that the current stream uses these parameters, until they are freed."""
        stream = self._backend.current_stream()
        stream_id = self._backend.stream_id(stream)
        for parameter in parameters:
            users: dict[StreamId, Stream] | None = getattr(parameter, _USERS, None)
            if users is None:
                users = {}
                setattr(parameter, _USERS, users)
            users[stream_id] = stream

    def before_free(self, parameter: torch.nn.Parameter) -> None:
        """Keep the gathered parameter's memory until every stream that used it is done.

        DeepSpeed does so for the current stream.
        """
        users: dict[StreamId, Stream] | None = getattr(parameter, _USERS, None)
        if not users:
            return
        users.pop(self._backend.stream_id(self._backend.current_stream()), None)
        if (
            users
            and EDGES[1] not in skip_edges
            and parameter.data.device.type == self._backend.device_type
        ):
            for stream in users.values():
                self._backend.keep_alive(parameter.data, stream)
        users.clear()

    # -- gradients ---------------------------------------------------------------------------------

    def adding_gradient(self) -> AbstractContextManager[None]:
        """Return the context in which a hook hands its gradient to the reducing stream."""
        return nullcontext() if EDGES[2] in skip_edges else default_is_current()

    def gradient_added(self, reducer: Stream | None, gradient: torch.Tensor, address: int) -> None:
        """Keep a gradient that stayed where it was, at ``address``, until it has been reduced."""
        if EDGES[3] in skip_edges or reducer is None or gradient.data_ptr() != address:
            return
        here = self._backend.stream_id(self._backend.current_stream())
        if self._backend.stream_id(reducer) != here:
            self._backend.keep_alive(gradient, reducer)

    def checking_overflow(self) -> AbstractContextManager[Any]:
        """Return the context in which the reducing stream looks for infinite gradients."""
        return nullcontext() if EDGES[4] in skip_edges else default_is_current()
