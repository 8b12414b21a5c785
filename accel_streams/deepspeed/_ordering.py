"""Order every conflicting access to ZeRO's gradient buffers, for one optimizer.

Three kinds of memory are shared between streams in a backward of ZeRO-1 and ZeRO-2:

- the *bucket buffers*: gradient hooks, on whatever streams they run, copy gradients into a buffer;
  a reduction reads it on another stream, and then it is filled again;
- *gradients outside the buckets* (larger than a bucket, or with ``contiguous_gradients: false``):
  written by autograd on the hook's stream, reduced where they are, and freed by the host at once;
- the *partition*: the reduced gradients that this rank keeps. Without ``overlap_comm`` each
  reduction runs on the stream of the hook that triggers it, and all of them write there.

Nothing here makes the host wait.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from accel_streams._backend import Backend, Stream, StreamId
from accel_streams._tracker import Edge, EventPool, ProducerTracker
from accel_streams.deepspeed import _versions
from accel_streams.deepspeed._versions import Buckets, Key

if TYPE_CHECKING:
    import torch

__all__ = ["EDGES", "Guard", "ZeroOrdering", "ZeroSynchronizing", "skip_edges"]

EDGES = (
    "bucket: allocation->write",
    "bucket: release->write",
    "bucket: producer->read",
    "bucket: release->free",
    "gradient: producer->read",
    "gradient: keep-alive",
    "partition: release->write",
    "partition: producer->read",
    "partition: keep-alive",
)
"""What the ordering consists of: waits, and memory that is kept from reuse."""


def in_backward() -> bool:
    """Return whether this host thread is inside a backward of torch's autograd."""
    import torch

    return torch._C._current_graph_task_id() != -1


skip_edges: set[str] = set()
"""For tests only: edges that optimizers made from now on leave out, to prove each to be needed."""


class Guard:
    """What is done around the seams of one optimizer: nothing, unless overridden.

    Called with the optimizer each time, because a reference to it would keep it, and all of its
    memory, alive until a garbage collection.
    """

    replaces_waits = False
    """Whether DeepSpeed's own waits inside the seams of the backward are not needed."""

    def before_allocation(self, optimizer: Any) -> None:
        """Prepare for the bucket buffers being allocated, unless they exist."""

    def after_allocation(self, optimizer: Any) -> None:
        """Note that the bucket buffers exist."""

    def before_write(self, optimizer: Any, param: torch.Tensor) -> None:
        """Prepare for a hook that puts the gradient of ``param`` into a bucket."""

    def after_write(self, optimizer: Any, param: torch.Tensor) -> None:
        """Note that the hook has put it there."""

    def abandon_write(self, optimizer: Any) -> None:
        """Note that the hook has ended with an exception."""

    def before_reduction(self, optimizer: Any, comm_dtype: Any) -> None:
        """Prepare for the reduction of the bucket of ``comm_dtype``; None: of every bucket."""

    def after_reduction(self, optimizer: Any) -> None:
        """Note that the reduction that began last has been submitted."""

    def abandon_reduction(self, optimizer: Any) -> None:
        """Note that the reduction that began last has ended with an exception."""

    def before_epilogue(self, optimizer: Any) -> None:
        """Prepare for the last reduction of a backward, after which the buffers are freed."""

    def after_epilogue(self, optimizer: Any) -> None:
        """Note that the buffers have been freed."""

    def before_accumulation(self, optimizer: Any) -> None:
        """Prepare for all gradients being added up, and dropped, outside their hooks."""

    def after_accumulation(self, optimizer: Any) -> None:
        """Note that the gradients have been added up and dropped."""

    def before_step(self, optimizer: Any) -> None:
        """Prepare for the reduced gradients being used, and freed."""

    def after_step(self, optimizer: Any) -> None:
        """Note that the reduced gradients have been used and freed."""


@dataclass(slots=True)
class _Buffer:
    """A bucket buffer; known by a weak reference, so that its memory isn't kept."""

    tensor: weakref.ref[torch.Tensor]
    allocator: Stream
    tracker: ProducerTracker


@dataclass(frozen=True, slots=True)
class _Writer:
    """The gradient hook now running: its stream, its bucket, and what it does there.

    ``outside``: the gradient stays where it is. ``reduces_first``: the bucket is full.
    """

    stream: Stream
    stream_id: StreamId
    key: Key
    outside: bool
    reduces_first: bool


@dataclass(frozen=True, slots=True)
class _Reduction:
    """A reduction between its two calls: the stream it runs on, and what it reads.

    ``indices``: which buffer of each bucket, where it is one.
    """

    consumer: Stream
    consumer_id: StreamId
    reads: list[ProducerTracker]
    indices: dict[Key, int]


class ZeroOrdering(Guard):
    """Order the accesses by events (``ACCEL_STREAMS_ZERO=track``)."""

    def __init__(self, backend: Backend, buckets: Buckets, *, replaces_waits: bool = False) -> None:
        """Order the accesses of an optimizer that keeps its gradients in ``buckets``.

        ``replaces_waits``: DeepSpeed's own waits are left out, so the end of a backward and the
        step have to be ordered here as well.
        """
        self.replaces_waits = replaces_waits
        self._backend = backend
        self._buckets = buckets
        self._skip = frozenset(skip_edges)
        self._pool = EventPool(backend)
        self._buffers: dict[tuple[Key, int], _Buffer] = {}
        self._outside: dict[Key, ProducerTracker] = {}
        self._partition = self._tracker("partition")
        # The streams on which gradients are computed, as long as each is taken in its own hook.
        self._streams: set[StreamId] = set()
        self._streams_known = True
        # The stream on which buffers seen for the first time have been allocated.
        self._allocator: Stream | None = None
        self._allocates = False
        self._writer: _Writer | None = None
        # The buffer that the writer has waited for.
        self._admitted: tuple[Key, int] | None = None
        self._reductions: list[_Reduction] = []
        self._in_epilogue = False

    # -- allocation ------------------------------------------------------------------------------

    def before_allocation(self, optimizer: Any) -> None:
        # Most hooks find the buffers there: then there is nothing to look at.
        self._allocates = not self._buckets.allocated(optimizer)
        if self._allocates:
            self._allocator = self._current_stream()[0]

    def after_allocation(self, optimizer: Any) -> None:
        if not self._allocates:
            return
        # Once for each buffer, and as soon as it exists: what its stream does later is no matter.
        for key in self._buckets.keys(optimizer):
            for index in range(len(self._buckets.buffers(optimizer, key))):
                self._buffer(optimizer, key, index)

    def _buffer(self, optimizer: Any, key: Key, index: int) -> _Buffer:
        """Return what is known of a buffer, which may have been allocated since the last time."""
        tensor = self._buckets.buffers(optimizer, key)[index]
        known = self._buffers.get((key, index))
        if known is not None and known.tensor() is tensor:
            return known
        allocator = self._allocator or self._current_stream()[0]
        tracker = self._tracker("bucket") if known is None else known.tracker
        tracker.allocated(allocator)
        buffer = _Buffer(weakref.ref(tensor), allocator, tracker)
        self._buffers[key, index] = buffer
        return buffer

    # -- writing ---------------------------------------------------------------------------------

    def before_write(self, optimizer: Any, param: torch.Tensor) -> None:
        stream, stream_id = self._current_stream()
        key = self._buckets.key_of(optimizer, param)
        numel, room = param.numel(), optimizer.reduce_bucket_size
        outside = numel > room or not optimizer.contiguous_gradients
        reduces_first = self._buckets.elements(optimizer, key) + numel > room
        self._admitted = None
        self._writer = _Writer(stream, stream_id, key, outside, reduces_first)
        in_hook = _in_hook(optimizer)
        self._streams_known &= in_hook
        if optimizer.overlap_comm and _versions.keeps_accumulators(optimizer):
            accumulator = _versions.gradient_of(optimizer, param)
            self._keep_gradients_alive([accumulator], optimizer.reduction_stream)
        if outside:
            return
        # The copy into the bucket takes the place of the gradient, whose memory is dropped then. In
        # a hook autograd keeps it until the hook's own stream is done with it, unless it is a sum
        # that an earlier backward began.
        if not in_hook or _versions.sums_up_gradients_of_several_backwards(optimizer):
            self._keep_gradients_alive([_versions.gradient_of(optimizer, param)], stream)
        if not reduces_first:
            self._admit(optimizer, self._buckets.index(optimizer, key), self._writer)

    def after_write(self, optimizer: Any, param: torch.Tensor) -> None:
        writer, self._writer = self._writer, None
        if writer is None or param.numel() == 0:
            # Noted already, by the hook of the method that this one overrides; or nothing to note.
            return
        if writer.outside:
            self._gradients_outside(writer.key).after_write(writer.stream, writer.stream_id)
            return
        index = self._buckets.index(optimizer, writer.key)
        if self._admitted != (writer.key, index):
            raise _versions.unsupported(
                [f"the bucket buffer that {_versions.WRITE} writes"], safe_mode=True
            )
        self._buffers[self._admitted].tracker.after_write(writer.stream, writer.stream_id)

    def abandon_write(self, optimizer: Any) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        # The copy may have been submitted, and waiting for it does no harm.
        if writer.outside:
            self._gradients_outside(writer.key).after_write(writer.stream, writer.stream_id)
        elif self._admitted is not None:
            self._buffers[self._admitted].tracker.after_write(writer.stream, writer.stream_id)

    def _admit(self, optimizer: Any, index: int, writer: _Writer) -> None:
        tracker = self._buffer(optimizer, writer.key, index).tracker
        tracker.before_write(writer.stream, writer.stream_id)
        self._admitted = (writer.key, index)

    def _gradients_outside(self, key: Key) -> ProducerTracker:
        tracker = self._outside.get(key)
        if tracker is None:
            tracker = self._outside[key] = self._tracker("gradient")
        return tracker

    # -- reducing --------------------------------------------------------------------------------

    def before_reduction(self, optimizer: Any, comm_dtype: Any) -> None:
        consumer, consumer_id = self._current_stream()
        if optimizer.overlap_comm:
            consumer = optimizer.reduction_stream
            consumer_id = self._backend.stream_id(consumer)
        reads: list[ProducerTracker] = []
        indices: dict[Key, int] = {}
        for key in self._buckets.reduced_by(optimizer, comm_dtype):
            if self._buckets.elements(optimizer, key) == 0:
                continue
            outside = self._waiting_outside(optimizer, key)
            if outside:
                tracker = self._gradients_outside(key)
                if _versions.keeps_accumulators(optimizer):
                    # A copy of it is reduced, and made here.
                    tracker.before_read(*self._current_stream())
                self._keep_gradients_alive(outside, consumer)
            else:
                index = indices[key] = self._buckets.index(optimizer, key)
                tracker = self._buffer(optimizer, key, index).tracker
            tracker.before_read(consumer, consumer_id)
            reads.append(tracker)
        if reads:
            self._partition.before_write(consumer, consumer_id)
        self._reductions.append(_Reduction(consumer, consumer_id, reads, indices))

    def after_reduction(self, optimizer: Any) -> None:
        reduction = self._note_reduction()
        if _versions.keeps_accumulators(optimizer):
            # Copies that were made and reduced are dropped now, and belong to this stream.
            for tracker in reduction.reads:
                tracker.before_write(*self._current_stream())
        if self._writer is not None and self._writer.reduces_first and not self._writer.outside:
            # Which buffer comes next is known for certain only now.
            self._admit_after_reduction(optimizer, self._writer, reduction)
        if self._in_epilogue:
            self._end_backward(optimizer)

    def abandon_reduction(self, optimizer: Any) -> None:
        # Part of it may have been submitted, and waiting for that does no harm.
        self._note_reduction()

    def _note_reduction(self) -> _Reduction:
        reduction = self._reductions.pop()
        consumer, consumer_id = reduction.consumer, reduction.consumer_id
        for tracker in reduction.reads:
            tracker.after_read(consumer, consumer_id)
        if reduction.reads:
            # It adds to what is there: the next one, wherever it runs, has to come after it.
            self._partition.after_write(consumer, consumer_id)
            self._partition.after_read(consumer, consumer_id)
        return reduction

    def _admit_after_reduction(
        self, optimizer: Any, writer: _Writer, reduction: _Reduction
    ) -> None:
        if not (optimizer.contiguous_gradients and optimizer.overlap_comm):
            self._admit(optimizer, self._buckets.index(optimizer, writer.key), writer)
            return
        # Two buffers in turn. 0.17.2 to 0.18.2 forget in the reduction whose turn it is, and would
        # fill the one that is being reduced: right with the waits here, and without any overlap.
        for key, index in reduction.indices.items():
            # The hook itself swaps those of its own bucket next.
            turn = index if key == writer.key else 1 - index
            if self._buckets.index(optimizer, key) != turn:
                self._buckets.fill(optimizer, key, turn)
        self._admit(optimizer, 1 - self._buckets.index(optimizer, writer.key), writer)

    def _waiting_outside(self, optimizer: Any, key: Key) -> list[torch.Tensor | None]:
        """Return the gradients that wait for reduction and are in no bucket buffer."""
        if not optimizer.contiguous_gradients:
            return list(self._buckets.gradients(optimizer, key))
        param = self._buckets.oversized(optimizer, key)
        return [] if param is None else [_versions.gradient_of(optimizer, param)]

    def _keep_gradients_alive(self, gradients: list[torch.Tensor | None], user: Stream) -> None:
        """Keep gradients, which belong to the stream that computed them, until ``user`` is done.

        The host drops them as soon as the work on ``user`` is submitted.
        """
        if "gradient: keep-alive" in self._skip or not self._is_shared_with(user):
            return
        for gradient in gradients:
            if gradient is not None:
                self._backend.keep_alive(gradient, user)

    # -- the end of a backward, and the step -------------------------------------------------------

    def before_epilogue(self, optimizer: Any) -> None:
        self._in_epilogue = True

    def after_epilogue(self, optimizer: Any) -> None:
        self._in_epilogue = False
        # It has read and put together what the reductions of this backward left.
        stream, stream_id = self._current_stream()
        self._partition.after_write(stream, stream_id)
        self._partition.after_read(stream, stream_id)

    def before_accumulation(self, optimizer: Any) -> None:
        self._streams_known = False  # Outside its hook nobody knows where a gradient comes from.
        params = (param for group in optimizer.bit16_groups for param in group)
        self._keep_gradients_alive([param.grad for param in params], self._current_stream()[0])

    def before_step(self, optimizer: Any) -> None:
        stream, stream_id = self._current_stream()
        self._partition.before_read(stream, stream_id)
        self._keep_partition_alive(optimizer, stream)

    def _end_backward(self, optimizer: Any) -> None:
        """Prepare for the buffers being freed: all of their reductions have been submitted."""
        stream, stream_id = self._current_stream()
        self._partition.before_write(stream, stream_id)
        self._keep_partition_alive(optimizer, stream)
        if "bucket: release->free" in self._skip:
            return
        for buffer in self._buffers.values():
            if buffer.tensor() is not None:
                # The allocator hands the memory to later work of this stream, so that waits, as if
                # it were to write the buffer. Unlike keep_alive it leaves the memory free for the
                # next backward, which wants as much again.
                buffer.tracker.before_write(buffer.allocator)

    def _keep_partition_alive(self, optimizer: Any, stream: Stream) -> None:
        """Keep the reduced gradients, which other streams have allocated, until ``stream`` is done.

        With a reduction stream, and a single other one, there is no need: the reduction stream
        allocates them, and allocates nothing further before it has waited for the next backward,
        which comes after this use of them.
        """
        if "partition: keep-alive" in self._skip or not self._is_shared_with(stream):
            return
        if _versions.keeps_accumulators(optimizer):
            self._keep_gradients_alive(_versions.accumulators(optimizer), stream)
        users = (*self._partition.users(), stream)
        if optimizer.overlap_comm and optimizer.contiguous_gradients:
            others = {self._backend.stream_id(user) for user in users}
            others.discard(self._backend.stream_id(optimizer.reduction_stream))
            if len(others) == 1:
                return
        for tensor in _versions.partition_tensors(optimizer):
            for user in users:
                self._backend.keep_alive(tensor, user)

    # -- small things ----------------------------------------------------------------------------

    def _is_shared_with(self, stream: Stream) -> bool:
        """Return whether any stream but ``stream`` may have to do with the gradients."""
        if not self._streams_known:
            return True
        return len(self._streams) > 1 or self._backend.stream_id(stream) not in self._streams

    def _current_stream(self) -> tuple[Stream, StreamId]:
        stream = self._backend.current_stream()
        stream_id = self._backend.stream_id(stream)
        self._streams.add(stream_id)
        return stream, stream_id

    def _tracker(self, memory: str) -> ProducerTracker:
        # A user's own hook may use a gradient, in the bucket by now, after DeepSpeed's; and what a
        # backward leaves is used by all that its stream is given until the step.
        prefix = f"{memory}: "
        skip = {edge.removeprefix(prefix) for edge in self._skip if edge.startswith(prefix)}
        return ProducerTracker(
            self._backend,
            pool=self._pool,
            writes_go_on=True,
            skip_edges=cast("frozenset[Edge]", frozenset(skip)),
        )


def _in_hook(optimizer: Any) -> bool:
    """Return whether the gradient that is taken now is taken in its own hook.

    ZeRO-1 without overlap takes all of them at the end of a backward, and an engine that puts off
    its reductions after it.
    """
    return in_backward() and bool(optimizer.overlap_comm or optimizer.partition_gradients)


class ZeroSynchronizing(Guard):
    """Let the host wait for the whole device around each reduction (``ACCEL_STREAMS_ZERO=sync``).

    Slow and simple: for a DeepSpeed whose gradient hooks aren't understood, and to compare with.
    ``buckets`` may be None: then the host also waits after each hook that might have allocated.
    """

    def __init__(self, backend: Backend, buckets: Buckets | None) -> None:
        self._backend = backend
        self._buckets = buckets
        self._known: dict[tuple[Key, int], weakref.ref[torch.Tensor]] = {}

    def after_allocation(self, optimizer: Any) -> None:
        self._synchronize_if_allocated(optimizer)

    def before_write(self, optimizer: Any, param: torch.Tensor) -> None:
        self._synchronize_if_allocated(optimizer)

    def before_reduction(self, optimizer: Any, comm_dtype: Any) -> None:
        self._backend.synchronize()

    def after_reduction(self, optimizer: Any) -> None:
        self._backend.synchronize()

    def abandon_reduction(self, optimizer: Any) -> None:
        self._backend.synchronize()

    def after_accumulation(self, optimizer: Any) -> None:
        self._backend.synchronize()

    def after_step(self, optimizer: Any) -> None:
        # What the step has freed may belong to another stream.
        self._backend.synchronize()

    def _synchronize_if_allocated(self, optimizer: Any) -> None:
        if self._buckets is None or self._see_new_buffers(optimizer, self._buckets):
            self._backend.synchronize()

    def _see_new_buffers(self, optimizer: Any, buckets: Buckets) -> bool:
        """Return whether there are buffers that weren't there the last time."""
        new = False
        for key in buckets.keys(optimizer):
            for index, tensor in enumerate(buckets.buffers(optimizer, key)):
                known = self._known.get((key, index))
                if known is None or known() is not tensor:
                    self._known[key, index] = weakref.ref(tensor)
                    new = True
        return new
