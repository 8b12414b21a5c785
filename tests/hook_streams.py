"""On which streams DeepSpeed's gradient hooks run, by its release."""

from __future__ import annotations

from packaging.version import Version

from accel_streams.explore import version_of

__all__ = ["DEEPSPEED", "ON_ONE_STREAM"]

DEEPSPEED = Version(version_of("deepspeed") or "0")

# All on the stream of the initialisation, also with several ranks and the step under a stream of
# the user's: up to 0.16.5 the nodes are kept on purpose; 0.18.9, where the device has room for a
# second copy of the parameters, keeps them with the graph of that copy.
ON_ONE_STREAM = Version("0.16.6") > DEEPSPEED or Version("0.18.9") == DEEPSPEED
