"""docs/conformance.md shows what was measured, and what was measured is still so."""

from __future__ import annotations

from typing import Any

import conformance_page
import pytest
import torch
from page import load

from accel_streams.backends.cpu_fake import CpuFakeBackend
from accel_streams.conformance import GROUPS, check_backend, properties
from accel_streams.conformance.mutants import MUTANTS


@pytest.fixture
def text() -> str:
    return conformance_page.PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_results(text: str) -> None:
    """If not, run `python benchmarks/conformance_page.py`, after a change with --measure."""
    assert text == conformance_page.written(text)


def test_every_property_and_every_mutant_has_a_row(text: str) -> None:
    for each in properties():
        assert f"\n| {each.id} {each.name} | " in text
    for title in GROUPS.values():
        assert f"\n{title}:\n" in text
    for name in MUTANTS:
        assert f"\n| `{name}` | " in text
    assert "not measured" not in text


def test_the_device_is_as_the_results_say() -> None:
    measured = load(conformance_page.CHECK)
    found = {each.id: each.result.value for each in check_backend(CpuFakeBackend())}
    if not hasattr(torch.Stream, "native_handle"):  # Older releases of torch don't tell it.
        assert found.pop("IDN-12") == "unverified"
        found["IDN-12"] = "passed"
    assert {each["id"]: each["result"] for each in measured["properties"]} == found
    assert set(found.values()) == {"passed"}
    assert measured["gate"] == "L3"


def test_each_mutant_was_noticed_by_all_that_name_it() -> None:
    measured: list[dict[str, Any]] = load(conformance_page.MUTATED)["mutants"]
    noticed = {each["name"]: set(each["noticed"]) for each in measured}
    assert noticed == {mutant.name: set(mutant.kills) for mutant in MUTANTS.values()}


@pytest.mark.parametrize("page", ["", "<!-- made: properties -->\nno end"])
def test_a_page_without_a_place_for_a_table_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="no place for the table of properties"):
        conformance_page.written(page)
