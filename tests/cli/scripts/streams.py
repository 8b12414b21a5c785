"""Do on the device what the first argument says."""

import os
import sys
import threading

import torch
from deepspeed.accelerator import get_accelerator

what = sys.argv[1]
accelerator = get_accelerator()
device = accelerator.current_device_name()


def use_two_streams(wait: bool) -> None:
    x, side = torch.ones(8, device=device), accelerator.Stream()
    if wait:
        side.wait_stream(accelerator.current_stream())
    with accelerator.stream(side):
        x.sum()
    accelerator.synchronize()


if what == "idle-rank":
    if os.environ["RANK"] == "0":
        use_two_streams(wait=True)
elif what == "thread":
    thread = threading.Thread(target=use_two_streams, args=(False,))
    thread.start()
    thread.join()
elif what == "memory":
    use_two_streams(wait=False)
    torch.ones(1 << 60, device=device)
elif what != "nothing":
    use_two_streams(wait=what == "wait")
