"""Measure what the ordering costs and what it gives back, beside what one would run otherwise.

Every variant of a setting lives in the same processes, and they take turns: A B C A B C ... A ratio
is taken pair by pair within a round, so that what changes from minute to minute on a machine hits
both of its sides.
"""

from accel_streams.bench._run import Group, Options, run
from accel_streams.bench._settings import VARIANTS, Setting
from accel_streams.bench._stats import Ratio, ratio

__all__ = ["VARIANTS", "Group", "Options", "Ratio", "Setting", "ratio", "run"]
