"""Compare the race analysis with a brute-force oracle on random programs; print JSON.

The oracle runs each program in every legal order and, a second time, takes the transitive closure
of its declared order; both live beside the tests. For example:
``python benchmarks/race_oracle.py --programs 10000``. Exit status 1 when a pair was missed or
falsely reported.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from accel_streams.races import Analyser, Record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "races"))

judge = importlib.import_module("brute_force").judge
random_program = importlib.import_module("race_programs").random_program


def features_of(records: list[Record]) -> set[str]:
    """Return what a program has, of what the analysis treats in a way of its own."""
    kinds = Counter(record[0] for record in records)
    launches = [record for record in records if record[0] == "launch"]
    found = {
        "two host threads": len({record[2] for record in launches}) > 1,
        "two devices": len({record[3][0] for record in launches}) > 1,
        "hand-overs": kinds["acquire"] > 0,
        "host synchronisation": any(kind.startswith("sync_") for kind in kinds),
        "events recorded again": kinds["drop"] > 0,
        "strided views": any(len(access) == 5 for launch in launches for access in launch[5]),
        "collectives": any(launch[4].startswith("fccl:") for launch in launches),
        "frees": kinds["free"] > 0,
        "frees after record_stream": kinds["free"] > 0 and kinds["record_stream"] > 0,
        "memory handed out again": kinds["reuse"] > 0,
        **{
            f"{number} streams": number == len({launch[3] for launch in launches})
            for number in range(1, 6)
        },
    }
    return {name for name, there in found.items() if there}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="example: python benchmarks/race_oracle.py --programs 10000 --seed 1",
    )
    parser.add_argument("--programs", type=int, default=10_000, help="how many to try")
    parser.add_argument("--operations", type=int, default=12, help="at most so many launches each")
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    arguments = parser.parse_args(argv)
    missed: list[int] = []
    wrong_kinds: list[int] = []
    false_alarms: list[int] = []
    racing = ordered = free_of_races = records_seen = 0
    features: Counter[str] = Counter()
    start = time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        records = random_program(random.Random(seed), operations=arguments.operations)
        analyser = Analyser()
        analyser.feed(records)
        judgement = judge(records, analyser.races())
        records_seen += len(records)
        features.update(features_of(records))
        racing += len(judgement.racing)
        ordered += judgement.ordered_conflicts
        free_of_races += not judgement.racing
        if judgement.missed:
            missed.append(seed)
        if judgement.wrong_kinds:
            wrong_kinds.append(seed)
        if judgement.false_alarms:
            false_alarms.append(seed)
        if sys.stderr.isatty() and seed % 200 == 0:
            print(f"\r{seed - arguments.seed} programs", end="", file=sys.stderr)
    result = {
        "schema": 1,
        "programs": arguments.programs,
        "first_seed": arguments.seed,
        "records": records_seen,
        "programs_with": dict(sorted(features.items())),
        "racing_pairs": racing,
        "ordered_conflicting_pairs": ordered,
        "programs_free_of_races": free_of_races,
        "seeds_with_a_missed_pair": missed,
        "seeds_with_a_false_alarm": false_alarms,
        "seeds_with_a_wrong_kind": wrong_kinds,
        "seconds": round(time.perf_counter() - start, 1),
    }
    json.dump(result, sys.stdout, indent=2)
    print()
    return 1 if missed or false_alarms or wrong_kinds else 0


if __name__ == "__main__":
    sys.exit(main())
