"""What the sweeps over clusters plan: one model on many machines, a plan of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
Machine = tuple[int, int]
"""Devices, and bytes of memory of each."""


def machines(devices: Iterable[int], memories: Iterable[int]) -> list[Machine]:
    """Every number of devices with every memory."""
    return [(count, memory) for count in devices for memory in memories]


def planned(model: ModelGraph, devices: int, memory: int) -> Result:
    """The plan of one machine: the same in every process, since effort is limited, not time."""
    cluster = Cluster.uniform(devices, memory, Link(25e9, 1e-5))
    return plan(model, cluster, Workload(8), SearchSpace("1f1b"), workers=1, deterministic_limit=0.1)


def tell(results: Mapping[Machine, Result]) -> None:
    """Prints a line a machine."""
    for (count, memory), result in results.items():
        step = "no plan" if result.seconds is None else f"{1e3 * result.seconds:.2f} ms"
        print(f"{count} devices of {memory // MIB} MiB: {result.status}, {step}")
