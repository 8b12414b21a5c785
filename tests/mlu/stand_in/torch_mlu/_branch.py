"""Which branch of torch_mlu this process sees: its faults, by name.

``TORCH_MLU_STAND_IN`` is the name of a branch, or a comma list of faults, or ``none``. Without it
it is the branch with most of them.
"""

from __future__ import annotations

import os

__all__ = ["BRANCHES", "FAULTS", "NAME", "has"]

FAULTS = {
    "default_stream": "default_stream() returns the current stream",
    "blocking": "Event(blocking=True) raises",
    "no_sleep": "there is no _sleep",
    "unchecked": "an event takes any object for a stream of its own, and reads what isn't there",
}

_TAGGED = frozenset({"blocking", "no_sleep", "unchecked"})

BRANCHES = {
    "r1.22_pt2.1.0": _TAGGED | {"default_stream"},
    "r1.22_pt2.3.0": _TAGGED,
    "r1.22_pt2.4.0": _TAGGED,
    "r2.1_develop": frozenset({"unchecked"}),
    "r2.3_develop": _TAGGED,
    "r2.4_develop": frozenset({"unchecked"}),
    "none": frozenset(),
}

NAME = os.environ.get("TORCH_MLU_STAND_IN") or "r1.22_pt2.1.0"


def _faults(name: str) -> frozenset[str]:
    found = BRANCHES.get(name) or frozenset(name.split(",")) - {"none"}
    unknown = sorted(found - set(FAULTS))
    if unknown:
        raise ValueError(
            f"TORCH_MLU_STAND_IN={name!r}: {', '.join(unknown)} is none of {', '.join(BRANCHES)}, "
            f"and none of the faults {', '.join(FAULTS)}."
        )
    return found


_present = _faults(NAME)


def has(fault: str) -> bool:
    """Tell whether this process's torch_mlu has the fault."""
    assert fault in FAULTS, fault
    return fault in _present
