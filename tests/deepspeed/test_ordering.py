"""ZeRO's ordering on a model of ZeRO: no conflicting pair of accesses is left without an order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_streams import Capabilities, Ordering, UnsupportedDeepSpeedError
from accel_streams.deepspeed import _ordering, _seams
from zero_model import (
    DTYPES,
    Config,
    Hook,
    Param,
    make_optimizer_class,
    module_with,
    train_step,
    use_memory_again,
)
from zero_recording import RecordingBackend, RecordingStream, races_in

DEFAULT, SIDE, OTHER = 0, 1, 2

# Two fill a bucket of 10, one from each stream; the next one reduces it, on either stream in turn.
TWO_PRODUCERS = [
    Hook(4, owned=index % 3 != 0, stream=(DEFAULT, SIDE)[(index + 1) // 2 % 2])
    for index in range(13)
]
TWO_DTYPES = [
    replace(hook, stream=stream, dtype=dtype)
    for hook in TWO_PRODUCERS
    for stream, dtype in ((DEFAULT, "bf16"), (SIDE, "fp32"))
]
BRANCHES = [replace(hook, branch=hook.stream == SIDE) for hook in TWO_PRODUCERS]
OVERSIZED = [Hook(4, True, DEFAULT), Hook(40, False, SIDE), *TWO_PRODUCERS, Hook(30, True, SIDE)]

Run = Callable[..., RecordingBackend]


def runner(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what trains the model for some steps, and returns what the device was given."""

    def run(
        config: Config,
        hooks: list[Hook],
        *,
        mode: str = "track",
        skip: str | None = None,
        steps: int | Sequence[Mapping[str, Any]] = 2,
        caller: int = OTHER,
        ordering: Ordering = Ordering.ASYNC,
        prepare: Callable[[RecordingBackend], None] = lambda backend: None,
        **step: Any,
    ) -> RecordingBackend:
        monkeypatch.setenv("ACCEL_STREAMS_ZERO", mode)
        backend = RecordingBackend(Capabilities(ordering))
        for _ in (SIDE, OTHER):
            backend.new_stream()
        monkeypatch.setattr(_seams, "backend_in_use", lambda: backend)
        monkeypatch.setattr(_ordering, "in_backward", lambda: backend.in_backward)
        monkeypatch.setattr(_ordering, "skip_edges", set() if skip is None else {skip})
        optimizer_class = make_optimizer_class(config, backend)
        _seams._hook(module_with(optimizer_class))
        optimizer = optimizer_class([Param(hook.numel, hook.owned, hook.dtype) for hook in hooks])
        prepare(backend)
        for changes in [{}] * steps if isinstance(steps, int) else steps:
            train_step(optimizer, backend, hooks, **{"caller": caller, **step, **changes})
            use_memory_again(backend, (DEFAULT, SIDE, OTHER))
        return backend

    return run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(monkeypatch)


CONFIGS = {
    f"{'overlap' if overlap else 'in order'}, "
    f"{'contiguous' if contiguous else 'scattered'}, ZeRO-{stage}, {release}": replace(
        layout, overlap_comm=overlap, contiguous_gradients=contiguous, stage=stage
    )
    for overlap in (True, False)
    for contiguous in (True, False)
    for stage in (1, 2)
    for release, layout in {
        "0.17.1": Config(flat=True, reduces_all=True),
        "0.18.2": Config(resets_index=True, reduces_all=True),
        "0.19.2": Config(),
        "0.19.8": Config(waits_for_producers=True),
    }.items()
}


@pytest.mark.parametrize(
    "hooks",
    [TWO_PRODUCERS, OVERSIZED, TWO_DTYPES, BRANCHES],
    ids=["small", "oversized", "two dtypes", "branches"],
)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
class TestEveryConfiguration:
    def test_is_free_of_races(self, run: Run, config: Config, hooks: list[Hook]) -> None:
        assert races_in(run(config, hooks)) == []

    def test_is_free_of_races_when_the_host_waits(
        self, run: Run, config: Config, hooks: list[Hook]
    ) -> None:
        backend = run(config, hooks, mode="sync")
        assert races_in(backend) == []
        assert backend.host_waits > 0

    def test_never_makes_the_host_wait(self, run: Run, config: Config, hooks: list[Hook]) -> None:
        assert run(config, hooks).host_waits == 0

    def test_gets_no_wait_when_switched_off(
        self, run: Run, config: Config, hooks: list[Hook]
    ) -> None:
        backend = run(config, hooks, mode="off")
        assert (backend.waits, backend.recorded_events, backend.kept_alive) == ([], 0, [])

    @pytest.mark.parametrize("ordering", [Ordering.STREAM_ORDERED, Ordering.SYNCHRONOUS])
    def test_gets_no_wait_where_the_device_orders(
        self, run: Run, config: Config, hooks: list[Hook], ordering: Ordering
    ) -> None:
        backend = run(config, hooks, ordering=ordering)
        assert (backend.waits, backend.recorded_events, backend.host_waits) == ([], 0, 0)

    def test_gets_no_event_from_a_single_stream(
        self, run: Run, config: Config, hooks: list[Hook]
    ) -> None:
        """With overlap the reduction stream is a second one, and nothing else is waited for."""
        single = [replace(hook, stream=DEFAULT) for hook in hooks]
        backend = run(config, single, caller=DEFAULT)
        if config.overlap_comm:
            reduction = OTHER + 1
            assert set(backend.waits) <= {(reduction, DEFAULT), (DEFAULT, reduction)}
        else:
            assert (backend.waits, backend.recorded_events, backend.kept_alive) == ([], 0, [])
        assert races_in(backend) == []


# For each edge a program that goes wrong without it, and how.
NEEDED = {
    "bucket: allocation->write": (
        # The first hook allocates where earlier work still uses the memory; another one writes.
        Config(overlap_comm=False),
        [Hook(4, True, SIDE), Hook(4, True, OTHER)],
        {"write-after-write"},
    ),
    "bucket: release->write": (
        Config(waits_for_producers=True),
        TWO_PRODUCERS,
        {"write-after-read"},
    ),
    "bucket: producer->read": (Config(), TWO_PRODUCERS, {"read-after-write"}),
    "bucket: release->free": (Config(overlap_comm=False), TWO_PRODUCERS, {"use-after-free"}),
    "gradient: producer->read": (
        Config(overlap_comm=False, contiguous_gradients=False),
        TWO_PRODUCERS,
        {"read-after-write"},
    ),
    "gradient: keep-alive": (Config(), OVERSIZED, {"use-after-free"}),
    # Whoever reduces a bucket writes the next one of that dtype, so it takes two dtypes.
    "partition: release->write": (Config(overlap_comm=False), TWO_DTYPES, {"write-after-write"}),
    "partition: producer->read": (Config(), TWO_PRODUCERS, {"read-after-write"}),
    "partition: keep-alive": (Config(overlap_comm=False), TWO_PRODUCERS, {"use-after-free"}),
}
# As shipped the host has waited for the device by then, so that this needs no wait of the user's.
STEPS = {"partition: producer->read": {"stepper": SIDE}}


def test_every_edge_has_a_program_that_needs_it() -> None:
    assert set(NEEDED) == set(_ordering.EDGES)


@pytest.mark.parametrize("edge", NEEDED)
def test_without_the_edge_there_is_a_race(run: Run, edge: str) -> None:
    config, hooks, expected = NEEDED[edge]
    step = STEPS.get(edge, {})
    assert races_in(run(config, hooks, **step)) == []
    kinds = {race.kind for race in races_in(run(config, hooks, skip=edge, **step))}
    assert kinds & expected, f"without {edge!r}: {kinds or 'no race'}"


@pytest.mark.parametrize("producers", [{DEFAULT}, {DEFAULT, SIDE}], ids=["one", "two"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_hook_of_the_users_may_read_a_gradient_after_deepspeeds(
    run: Run, config: Config, producers: set[int]
) -> None:
    """As shipped the reduction waits for all that the hooks' streams were given until it."""
    hooks = [
        replace(hook, stream=hook.stream if hook.stream in producers else DEFAULT, read_after=True)
        for hook in OVERSIZED
    ]
    assert races_in(run(config, hooks)) == []


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_backwards_of_one_step_may_run_on_streams_that_do_not_wait_for_each_other(
    run: Run, config: Config
) -> None:
    """As shipped the host waits for each; nothing but the gradients is written until the step."""
    callers = (SIDE, OTHER, SIDE)
    steps = [{"caller": caller, "accumulate": True} for caller in callers] + [{"caller": OTHER}]
    assert races_in(run(config, TWO_PRODUCERS, steps=steps)) == []


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_gradients_that_the_caller_reduces_after_a_backward_live_until_then(
    run: Run, config: Config
) -> None:
    if config.stage == 1 and not config.overlap_comm:
        return  # There the hooks leave them to the caller anyway.
    assert races_in(run(config, [*BRANCHES, *OVERSIZED], coalesced=True)) == []


hooks_strategy = st.lists(
    st.builds(
        Hook,
        numel=st.sampled_from([1, 3, 4, 10, 11, 25]),
        owned=st.booleans(),
        stream=st.sampled_from([DEFAULT, SIDE, OTHER]),
        dtype=st.sampled_from(DTYPES),
        branch=st.booleans(),
        read_after=st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(
    hooks=hooks_strategy,
    config=st.sampled_from(list(CONFIGS.values())),
    caller=st.sampled_from([DEFAULT, SIDE, OTHER]),
)
def test_no_program_has_a_race(hooks: list[Hook], config: Config, caller: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        backend = runner(monkeypatch)(config, hooks, caller=caller, steps=3)
        assert races_in(backend) == []


def test_the_model_races_as_shipped(run: Run) -> None:
    """The model must be able to fail: H2 and H3 of the newest release, H1 of 0.19.2."""
    newest = Config(waits_for_producers=True)
    overlap = {race.kind for race in races_in(run(newest, TWO_PRODUCERS, mode="off"))}
    assert "write-after-read" in overlap
    assert "read-after-write" not in overlap
    in_order = replace(newest, overlap_comm=False)
    assert {"read-after-write", "write-after-read"} <= {
        race.kind for race in races_in(run(in_order, TWO_PRODUCERS, mode="off"))
    }
    old = {race.kind for race in races_in(run(Config(), TWO_PRODUCERS, mode="off"))}
    assert "read-after-write" in old


def test_a_single_stream_alone_needs_its_oversized_gradients_kept(run: Run) -> None:
    hooks = [replace(hook, stream=DEFAULT) for hook in OVERSIZED]
    kinds = {race.kind for race in races_in(run(Config(), hooks, mode="off", caller=DEFAULT))}
    assert kinds == {"use-after-free"}


def test_a_hook_that_writes_an_unexpected_buffer_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a release choose its buffer in another way, training stops instead of going wrong."""

    def swap(backend: RecordingBackend) -> None:
        original = _ordering.ZeroOrdering.after_write

        def after_write(self: Any, optimizer: Any, param: Any) -> None:
            for bucket in optimizer.buckets().values():
                bucket.index = 1 - bucket.index
            original(self, optimizer, param)

        monkeypatch.setattr(_ordering.ZeroOrdering, "after_write", after_write)

    with pytest.raises(UnsupportedDeepSpeedError, match="ACCEL_STREAMS_ZERO=sync"):
        run(Config(), TWO_PRODUCERS, prepare=swap)


def test_streams_and_buffers_get_names(run: Run) -> None:
    backend = run(Config(overlap_comm=True), TWO_PRODUCERS, mode="off")
    assert {"reduction_stream", "ipg_buffer[0, bf16]", "ipg_buffer[1, bf16]"} <= set(backend.labels)
    assert backend.labels["reduction_stream"] == OTHER + 1


def test_the_ordering_keeps_no_memory(run: Run) -> None:
    """Neither buffers nor the optimizer stay alive because of the bookkeeping."""
    import gc
    import weakref

    freed: list[weakref.ref[Any]] = []
    original = _ordering.ZeroOrdering.after_allocation

    def watch(self: Any, optimizer: Any) -> None:
        original(self, optimizer)
        for bucket in optimizer.buckets().values():
            freed.extend(weakref.ref(tensor) for tensor in bucket.buffer)
        freed.append(weakref.ref(optimizer))

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(_ordering.ZeroOrdering, "after_allocation", watch)
            run(Config(), TWO_PRODUCERS)
        assert freed
        assert [ref for ref in freed if ref() is not None] == []
    finally:
        gc.enable()


def test_streams_are_told_apart_by_id_alone() -> None:
    with pytest.raises(AssertionError, match="stream_id"):
        assert RecordingStream(0) == RecordingStream(0)
