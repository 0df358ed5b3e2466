"""How long evaluating, checking and generating a plan takes, best of five, compile time left out.

python benchmarks/evaluate.py [--devices 32] [--micro-batches 512]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from contraflow.planner.check import check
from contraflow.planner.cluster import Cluster
from contraflow.planner.lower import assemble
from contraflow.planner.model_graph import Layer, ModelGraph
from contraflow.planner.operations import Candidate
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.schedules import build
from contraflow.planner.simulate import evaluate
from contraflow.planner.workload import Workload


def make(name: str, devices: int, micro_batches: int) -> Plan:
    """A uniform chain, one layer a device, under a named schedule."""
    layers = [
        Layer(f"l{k}", 1.0, 2.0, separable=False, stash_bytes=64, output_bytes=1, weight_stash_bytes=64)
        for k in range(devices)
    ]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(devices), Workload(micro_batches))
    layout = build(name, devices, micro_batches)
    stages = tuple((layer.name,) for layer in layers)
    return assemble(Candidate(problem, stages, layout.pipelines), layout.orders, name)


def best(call: Callable[[], object], rounds: int = 5) -> float:
    """Seconds of the fastest of some rounds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    """Prints one line a schedule."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--devices", type=int, default=32)
    arguments.add_argument("--micro-batches", type=int, default=512)
    given = arguments.parse_args()
    print(f"{'schedule':10s} {'ops':>8s} {'evaluate s':>11s} {'check s':>9s} {'generate s':>11s}")
    for name in ("1f1b", "gpipe", "chimera"):
        plan = make(name, given.devices, given.micro_batches)
        ops = sum(map(len, plan.orders))
        times = (
            best(lambda p=plan: evaluate(p)),  # type: ignore[misc]
            best(lambda p=plan: check(p), 1),  # type: ignore[misc]
            best(lambda n=name: make(n, given.devices, given.micro_batches), 2),  # type: ignore[misc]
        )
        print(f"{name:10s} {ops:8d} {times[0]:11.3f} {times[1]:9.2f} {times[2]:11.2f}")


if __name__ == "__main__":
    main()
