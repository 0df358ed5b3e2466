"""joblib over clusters: many plans at once, one a process, with the same answers as one after the other.

pip install "contraflow[examples]"
python examples/sweep_joblib.py --jobs 4
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from joblib import Parallel, delayed

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Result, SearchSpace, Workload, plan

MIB = 2**20
MODEL = ModelGraph.chain(
    [
        Layer(
            f"block{k}", 1e-3, 1e-3, 1e-3, stash_bytes=32 * MIB, weight_stash_bytes=16 * MIB, output_bytes=MIB,
            parameter_bytes=16 * MIB,
        )
        for k in range(8)
    ]
)  # fmt: skip


def planned(devices: int, memory: int) -> Result:
    """The plan of one cluster: the same in every process, since effort is limited, not time."""
    cluster = Cluster.uniform(devices, memory, Link(25e9, 1e-5))
    return plan(MODEL, cluster, Workload(8), SearchSpace("1f1b"), workers=1, deterministic_limit=0.1)


def sweep(devices: Iterable[int], memories: Iterable[int], jobs: int) -> dict[tuple[int, int], Result]:
    """Every number of devices with every memory, so many at a time."""
    asked = [(count, memory) for count in devices for memory in memories]
    return dict(zip(asked, Parallel(jobs)(delayed(planned)(*one) for one in asked), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    for (count, memory), result in sweep((2, 4, 8), (256 * MIB, 1024 * MIB), parser.parse_args().jobs).items():
        step = "no plan" if result.seconds is None else f"{1e3 * result.seconds:.2f} ms"
        print(f"{count} devices of {memory // MIB} MiB: {result.status}, {step}")
