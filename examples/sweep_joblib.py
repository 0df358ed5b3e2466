"""joblib over clusters: many plans at once, one a process, with the same answers as one after the other.

pip install "contraflow[examples]"
python examples/sweep_joblib.py --jobs 4
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from joblib import Parallel, delayed
from sweep_problem import MIB, MODEL, Machine, machines, planned, tell

from contraflow.planner import Result


def sweep(devices: Iterable[int], memories: Iterable[int], jobs: int) -> dict[Machine, Result]:
    """Every number of devices with every memory, so many at a time."""
    asked = machines(devices, memories)
    return dict(zip(asked, Parallel(jobs)(delayed(planned)(MODEL, *one) for one in asked), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    tell(sweep((2, 4, 8), (256 * MIB, 1024 * MIB), parser.parse_args().jobs))
