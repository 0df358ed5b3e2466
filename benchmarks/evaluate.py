"""How long evaluating, checking and generating a plan takes: best of some rounds, compile time apart.

python benchmarks/evaluate.py [--devices 64] [--micro-batches 512] [--save]

Growth: the last column is the evaluation's time per op of a plan relative to one of half as many micro-batches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import tables

from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build
from contraflow.planner.simulate import evaluate

CASES = {
    "1f1b": ("1f1b", False, "keep"),
    "gpipe": ("gpipe", False, "keep"),
    "chimera": ("chimera", False, "keep"),
    "1f1b, F/I/W": ("1f1b", True, "keep"),
    "F/I/W, offload": ("1f1b", True, "offload"),
}


COLUMNS = ("case", "size", "ops", "evaluate s", "assemble s", "check s", "growth")


def split(orders: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """The orders with every B as its two halves."""
    halves = (Kind.I, Kind.W)
    return [
        [half for op in order for half in ([op._replace(kind=k) for k in halves] if op.kind == Kind.B else [op])]
        for order in orders
    ]


def make(case: str, devices: int, micro_batches: int) -> tuple[Candidate, Sequence[Sequence[Op]]]:
    """A uniform chain, one layer a device, and its compute orders."""
    schedule, halves, policy = CASES[case]
    layers = [
        Layer(f"l{k}", 1.0, 1.0, 1.0, stash_bytes=64, output_bytes=1, weight_stash_bytes=32) for k in range(devices)
    ]
    node = NodeGroup(1, devices, PRESETS["cpu"], host_link=Link(100.0), host_link_shared_by=2)
    problem = Problem(ModelGraph.chain(layers), Cluster((node,)), Workload(micro_batches))
    layout = build(schedule, devices, micro_batches)
    stages = tuple((layer.name,) for layer in layers)
    rows = tuple((policy,) * devices for _ in layout.pipelines)
    return Candidate(problem, stages, layout.pipelines, rows), split(layout.orders) if halves else layout.orders


def seconds(call: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest of some rounds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def measure(case: str, devices: int, micro_batches: int, rounds: int) -> tuple[Plan, float, float, float]:
    """A plan, and the seconds that evaluating, assembling and checking it take."""
    candidate, orders = make(case, devices, micro_batches)
    plan = assemble(candidate, orders, case)
    return (
        plan,
        seconds(lambda: evaluate(plan), rounds),
        seconds(lambda: assemble(candidate, orders), max(2, rounds // 2)),
        seconds(lambda: check(plan), max(1, rounds // 5)),
    )


def row(case: str, *cells: object) -> str:
    """One line of the table."""
    return f"{case:15s}" + "".join(f"{cell!s:>12}" for cell in cells)


def main() -> None:
    """Prints the first call of this process, then one line a case and size."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--devices", type=int, default=64)
    arguments.add_argument("--micro-batches", type=int, default=512)
    tables.savable(arguments)
    given = arguments.parse_args()
    made, rows = tables.origin(), list[list[str]]()
    print(row(*COLUMNS))
    for case in CASES:
        shape = f"{4}x{8}"
        plan, *times = measure(case, 4, 8, 50)
        rows.append([case, shape, str(sum(map(len, plan.orders))), *(f"{time:.5f}" for time in times), ""])
        print(row(*rows[-1]))
    candidate, orders = make("1f1b", given.devices, given.micro_batches // 2)
    first = seconds(lambda: assemble(candidate, orders), 1)
    print(f"first large plan of the process, loading the compiled kernel: {first:.2f} s")
    for case in CASES:
        per_op: list[float] = []
        for count in (given.micro_batches // 2, given.micro_batches):
            plan, *times = measure(case, given.devices, count, 5)
            ops = sum(map(len, plan.orders))
            per_op.append(times[0] / ops)
            growth = [f"{per_op[-1] / per_op[0]:.2f}"] if len(per_op) > 1 else []
            shape = f"{given.devices}x{count}"
            rows.append([case, shape, str(ops), *(f"{time:.3f}" for time in times), "".join(growth)])
            print(row(*rows[-1]))
    if given.save:
        tables.Table.made(made, list(COLUMNS), rows).save("evaluate")


if __name__ == "__main__":
    main()
