"""A few operations on two streams of the simulated device, for a systematic search.

With ``--forget-to-wait`` the sum is not always ready; with ``--check`` the script then fails.
"""

from __future__ import annotations

import sys

import torch

from accel_streams import fake

fake.enable()
side = torch.fake.Stream()  # type: ignore[attr-defined]
numbers = torch.ones(3, device="fake")
side.wait_stream(torch.fake.current_stream())  # type: ignore[attr-defined]
with torch.fake.stream(side):  # type: ignore[attr-defined]
    numbers.add_(1)
if "--forget-to-wait" not in sys.argv:
    torch.fake.current_stream().wait_stream(side)  # type: ignore[attr-defined]
total = (numbers * 5).tolist()
if "--check" in sys.argv and total != [10.0, 10.0, 10.0]:
    raise SystemExit(f"wrong: {total}")
print("total", *total)
