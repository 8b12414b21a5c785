"""An ordinary script without DeepSpeed, that can be told to misbehave on one rank."""

import argparse
import atexit
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--fail")
parser.add_argument("--fail-rank", type=int, default=1)
parser.add_argument("--differ-under", help="a schedule under which other numbers come out")
parser.add_argument("--entropy", action="store_true", help="differ from run to run")
parser.add_argument("--unseeded", action="store_true")
parser.add_argument("--no-optimizer", action="store_true")
parser.add_argument("--notes", type=Path, help="a folder for process ids")
options = parser.parse_args()

rank = int(os.environ["RANK"])
if options.notes is not None:
    worker = subprocess.Popen(["sleep", "1000"])
    for process in (os.getpid(), os.getppid(), worker.pid):
        (options.notes / str(process)).touch()

dist.init_process_group("gloo")
if not options.unseeded:
    torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(options.steps):
    if options.fail and rank == options.fail_rank and step == 1:
        if options.fail == "crash":
            raise RuntimeError("the data of rank 1 is damaged")
        elif options.fail == "slow":
            # The peers lose their connection, and end, well before this process does.
            atexit.register(time.sleep, 0.5)
            atexit.register(dist.destroy_process_group)
            raise RuntimeError("the data of rank 1 is damaged")
        elif options.fail == "status":
            sys.exit(3)
        elif options.fail == "words":
            sys.exit("no more data")
        elif options.fail == "leave":
            os._exit(0)
        elif options.fail == "killed":
            os.kill(os.getpid(), 9)
        elif options.fail == "hang":
            while True:
                time.sleep(1)
    inputs = torch.randn(8, 4)
    if options.unseeded:
        inputs += random.random()
    if options.entropy:
        inputs += int.from_bytes(os.urandom(2), "little") / 65536
    if os.environ["ACCEL_STREAMS_SCHEDULE"] == options.differ_under:
        inputs += 1
    loss = model(inputs).square().mean()
    if options.no_optimizer:
        continue
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
print("rank", rank, "of", dist.get_world_size(), "done")
