"""Ray over clusters: many plans at once, on this machine or on whatever cluster Ray has.

pip install "contraflow[examples]" ray
python examples/sweep_ray.py --cpus 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import ray

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


@ray.remote(num_cpus=1)  # type: ignore[untyped-decorator,unused-ignore]
def planned(model: ModelGraph, devices: int, memory: int) -> Result:
    """The plan of one cluster, in a process of Ray's: the same in each, since effort is limited, not time."""
    cluster = Cluster.uniform(devices, memory, Link(25e9, 1e-5))
    return plan(model, cluster, Workload(8), SearchSpace("1f1b"), workers=1, deterministic_limit=0.1)


def sweep(devices: Iterable[int], memories: Iterable[int]) -> dict[tuple[int, int], Result]:
    """Every number of devices with every memory, as many at a time as Ray has processors; the model is sent once."""
    asked = [(count, memory) for count in devices for memory in memories]
    model = ray.put(MODEL)
    return dict(zip(asked, ray.get([planned.remote(model, *one) for one in asked]), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpus", type=int, default=2)
    ray.init(num_cpus=parser.parse_args().cpus, include_dashboard=False, log_to_driver=False)
    for (count, memory), result in sweep((2, 4, 8), (256 * MIB, 1024 * MIB)).items():
        step = "no plan" if result.seconds is None else f"{1e3 * result.seconds:.2f} ms"
        print(f"{count} devices of {memory // MIB} MiB: {result.status}, {step}")
