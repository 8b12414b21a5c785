"""Correct stream ordering for DeepSpeed's ZeRO on every accelerator."""
