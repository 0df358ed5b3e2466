"""Sound files of every kind, small, for whoever makes them wrong."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from instances import named, steady, uniform
from pictures import two_device_plan
from random_plans import plans_of, random_candidate, tied
from traces import simulated_run

from contraflow.planner.check import check
from contraflow.planner.plan import Plan
from contraflow.planner.plan_file import plan_to_dict
from contraflow.planner.runs.trace_file import trace_to_dict

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = """
[[nodes]]
count = 2
devices = 2
device = "toy"
link = {bandwidth = "300GB/s", latency = "3us", reduce_bandwidth = "100GB/s"}
host_memory = "512GiB"
host_link = {bandwidth = "25GB/s", latency = "10us", shared_by = 2}
[network]
bandwidth = "25GB/s"
latency = "10us"
[overhead]
op = "200us"
message = 1e-4
[devices.toy]
memory = "16GiB"
speed = 1.5
memory_bandwidth = "2TB/s"
flops = 1e12
"""
PLACEMENT: dict[str, Any] = {
    "maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 1e9,
    "nodes": [
        {"id": k, "name": f"n{k}", "fpgaLatency": 1.5, "cpuLatency": 3.0, "size": 64.0, "isBackwardNode": k > 3,
         "colorClass": k % 4, "supportedOnFpga": 1}
        for k in range(8)
    ],
    "edges": [{"sourceId": k, "destId": k + 1, "cost": 0.25, "size": 8.0} for k in range(7)],
}  # fmt: skip
PIPER: dict[str, Any] = {
    "maxDevices": 4, "maxMemoryPerDevice": 1e9, "bandwidth": 1e9, "mbsInBatch": 8,
    "nodes": [
        {"id": k, "name": f"n{k}", "TMPCs": {"1": [
            {"id": name, "timePerSample": 1e-3 * (1 + extra), "parameterSize": 64.0, "memoryUsageA": 32.0,
             "memoryUsageB": 128.0, "syncTimeFw": {"0": 0.0}, "syncTimeBw": {}}
            for name, extra in (("vanilla", 0), ("activation recomp", 0.3))
        ]}}
        for k in range(4)
    ],
    "edges": [{"sourceId": k, "destId": k + 1, "communicationCost": 16.0} for k in range(3)],
}  # fmt: skip
TORCH_CSV = "0F0,0F1,0SEND_F1,,(0B0;0F2)OVERLAP_F_B,0B1,0B2,0REDUCE_GRAD\n1F0,1B0,1F1,1I1,1F2,1W1,1B2\n"
PROFILE = """node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=64.0, parameter_size=0.000
node2 -- Conv2d(3, 64) -- forward_compute_time=1.5, backward_compute_time=3.0, activation_size=[64.0; 8.0], parameter_size=8.0
node3 -- Linear(8, 8) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=16.0, parameter_size=4.0
\tnode1 -- node2
\tnode2 -- node3
"""  # noqa: E501


@cache
def plans() -> tuple[Plan, ...]:
    """Plans of all kinds: keep, recompute, offload, ship, two devices a stage, ties, halves; without a flush."""
    found = {(): two_device_plan(), ("named",): named("chimera", 4, 4), ("zb",): named("zb-h1", 2, 4)}
    for seed in range(60):
        candidate = random_candidate(seed, apart=seed % 3 == 2)
        for plan in plans_of(tied(candidate, seed) if seed % 2 else candidate, seed, 1, split=seed % 4 == 1):
            policies = {policy.split(">")[0] for row in plan.stash for policy in row}
            apart = any(p.forward != p.backward for p in plan.pipelines)
            key = (*sorted(policies), apart, bool(plan.problem.model.shared), len(plan.pipelines) > 1)
            if sum(map(len, plan.orders)) <= 200 and not check(plan):
                found.setdefault(key, plan)
    for name in ("pipedream", "pipedream-2bw", "spectrain", "pipefb"):
        found[name,] = (
            steady(name, 2, 4, 2 if name == "pipedream-2bw" else None) if name != "pipefb" else named(name, 2, 4)
        )
    return tuple(found.values())


@cache
def plan_files() -> tuple[dict[str, Any], ...]:
    """Their plan.json."""
    return tuple(json.loads(json.dumps(plan_to_dict(plan))) for plan in plans())


@cache
def traced() -> tuple[tuple[Plan, dict[str, Any]], ...]:
    """Some of them with a run.json."""
    return tuple((plan, json.loads(json.dumps(trace_to_dict(simulated_run(plan))))) for plan in plans()[::4])


@cache
def models() -> tuple[dict[str, Any], ...]:
    """model.json of several plans, a chain that can be split, and the example."""
    example = json.loads((ROOT / "examples" / "toy-model.json").read_text())
    return (
        example,
        uniform(6, output_bytes=3, parameter_bytes=5).to_dict(),
        *(file["problem"]["model"] for file in plan_files()[::3]),
    )


def clusters() -> tuple[str, ...]:
    """cluster.toml with everything in it, and the examples."""
    return (CLUSTER, *(path.read_text() for path in sorted((ROOT / "examples").glob("*.toml"))))
