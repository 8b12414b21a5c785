"""The registry: which properties there are, and what a check of one has to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from accel_streams.conformance import GROUPS, Level, checks, properties
from accel_streams.conformance import _property as registry

if TYPE_CHECKING:
    from accel_streams.conformance import Bench

EXPECTED = """
ORD-01 fifo, ORD-02 independence, ORD-03 record_wait, ORD-04 prefix_wait, ORD-05 transitive,
ORD-06 fan_in, ORD-07 fan_out, ORD-08 rerecord_newest, ORD-09 rerecord_keeps, ORD-10 rerecord_moves,
ORD-11 wait_unrecorded, ORD-12 self_wait, ORD-13 wait_stream, ORD-14 wait_async,
ORD-15 cross_device, ORD-16 wrong_device, ORD-17 event_dropped, ORD-18 stream_dropped,
EVT-01 query_unrecorded, EVT-02 query_pending, EVT-03 query_monotonic, EVT-04 query_reset,
EVT-05 sync_effects, EVT-06 sync_prefix, EVT-07 elapsed, EVT-08 elapsed_errors,
EVT-09 elapsed_cross_stream, EVT-10 no_context,
SYN-01 stream_scope, SYN-02 stream_query, SYN-03 device_scope, SYN-04 other_device,
IDN-01 eq_hash, IDN-02 current, IDN-03 default_stable, IDN-04 default_distinct, IDN-05 restore,
IDN-06 cross_device_ctx, IDN-07 none_ctx, IDN-08 thread_local, IDN-09 pool, IDN-10 roundtrip,
IDN-11 priority, IDN-12 external, IDN-13 generic,
MEM-01 delay_reuse, MEM-02 all_consumers, MEM-03 view, MEM-04 released, MEM-05 owner_waits,
MEM-06 not_a_fence, MEM-07 pinned,
AGD-01 backward_stream, AGD-02 leaf_sync, AGD-03 hook_producer, AGD-04 multi_producer
"""
# Those that say nothing unless work is pending.
NEED_A_GATE = {
    *(f"ORD-{number:02}" for number in (*range(2, 11), 13, 14, 15, 17, 18)),
    *(f"EVT-{number:02}" for number in (2, 4, 5, 6)),
    *(f"SYN-{number:02}" for number in range(1, 5)),
    *(f"MEM-{number:02}" for number in range(1, 8)),
    *(f"AGD-{number:02}" for number in range(2, 5)),
}


def test_there_are_the_56_properties() -> None:
    expected = [entry.strip() for entry in EXPECTED.replace("\n", " ").split(",")]
    assert len(expected) == 56
    assert [f"{each.id} {each.name}" for each in properties()] == expected


def test_those_that_say_nothing_without_a_gate_ask_for_one() -> None:
    gated = {each.id for each in properties() if each.gate > Level.NONE}
    assert gated >= NEED_A_GATE


def test_each_says_itself_in_a_sentence() -> None:
    for each in properties():
        assert each.summary.endswith("."), each.id
        assert len(each.summary) <= 100, each.id
        assert each.group in GROUPS


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (["ORD-03"], ["ORD-03"]),
        (["record_wait", "evt-01"], ["ORD-03", "EVT-01"]),
        (["SYN"], [f"SYN-0{number}" for number in range(1, 5)]),
        ([], []),
    ],
)
def test_properties_are_selected_by_id_by_name_and_by_group(
    only: list[str], found: list[str]
) -> None:
    assert [each.id for each in registry.select(only)] == found


@pytest.mark.parametrize("word", ["ORD-99", "", "ord_03", "query"])
def test_a_selection_of_nothing_known_is_an_error(word: str) -> None:
    with pytest.raises(ValueError, match="there is no property"):
        registry.select(["ORD-03", word])


@pytest.fixture
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.mark.usefixtures("_no_traces")
def test_a_property_is_registered_once_in_a_group_and_with_a_sentence() -> None:
    properties()

    def documented(bench: Bench) -> None:
        """Say something."""

    def silent(bench: Bench) -> None:
        pass

    with pytest.raises(ValueError, match="two checks of the property ORD-03"):
        checks("ORD-03", "again")(documented)
    with pytest.raises(ValueError, match="belongs to no group"):
        checks("XXX-01", "other")(documented)
    with pytest.raises(ValueError, match="no docstring"):
        checks("ORD-99", "silent")(silent)
