"""Run what needs an NVIDIA GPU. Without one, say that nothing was run, and do not fail."""

import subprocess
import sys

import torch

COMMANDS = (
    ["-m", "accel_streams.cli", "check", "cuda"],
    ["-m", "pytest", "tests/races/test_dispatch_cuda.py", "tests/deepspeed/test_backends.py"],
)

if not torch.cuda.is_available():
    print(f"NOT RUN: torch {torch.__version__} finds no GPU here. Nothing was tested on CUDA.")
    sys.exit(0)
statuses = [subprocess.run([sys.executable, *words]).returncode for words in COMMANDS]
sys.exit(max(statuses))
