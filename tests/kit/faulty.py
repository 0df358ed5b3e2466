"""A model whose last layer fails on demand, in the middle of a forward: what the fault tests run.

FAULT says how ("raise", "kill", "stop", "sleep"), FAULT_AT at which real call of the layer in its process; "build":
while the stage is built. FAULT_RANK: on that rank alone. FAULT_LISTEN: a file for the addresses at which the run
listens in that moment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.process import parent_process
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle

from contraflow.executor.watch.proc import children_of
from contraflow.models.loss import cross_entropy
from contraflow.models.protocol import LayeredModel, LayerSpec
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

FOREVER_S = 3600.0
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
calls = 0


@torch.library.custom_op("contraflow_tests::faulty", mutates_args=())
def faulty(x: Tensor) -> Tensor:
    """The identity, until it fails."""
    global calls
    calls += 1
    if str(calls) == os.environ.get("FAULT_AT") and concerned():
        if "FAULT_LISTEN" in os.environ:
            parent = os.getppid()
            Path(os.environ["FAULT_LISTEN"]).write_text("\n".join(listening([parent, *children_of(parent)])))
        _fail(os.environ["FAULT"])
    return x.clone()


def listening(processes: Sequence[int]) -> list[str]:
    """The addresses, as in /proc/net, of the listening TCP sockets that processes of this machine have."""
    own = set()
    for path in (path for pid in processes for path in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):
            own.add(str(path.readlink()))
    rows = [row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


def _fail(how: str) -> None:
    if how == "raise":
        raise ValueError("out of luck\nsecond line")
    if how in SIGNALS:
        os.kill(os.getpid(), SIGNALS[how])
    time.sleep(FOREVER_S)


@faulty.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


faulty.register_autograd(lambda _, gradient: gradient)


def concerned() -> bool:
    """Whether it is this rank that fails: threads have no ranks to tell."""
    rank = os.environ.get("FAULT_RANK")
    return rank is None or rank == str(dist.get_rank())


class Faulty(nn.Module):
    """A linear layer after the identity that fails."""

    def __init__(self) -> None:
        super().__init__()
        if os.environ.get("FAULT_AT") == "build" and parent_process() is not None:
            _fail(os.environ["FAULT"])
        self.linear = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 8) -> (batch, 10)."""
        found: Tensor = self.linear(faulty(x))
        return found


def model() -> LayeredModel:
    """Two layers: a good one and a bad one, whose linear layer a team divides."""
    divided: dict[str, ParallelStyle] = {"linear": ColwiseParallel(output_layouts=Replicate())}
    layers = (
        LayerSpec("good", partial(nn.Linear, 64, 8), parallel_plan={}),
        LayerSpec("bad", Faulty, parallel_plan=divided),
    )
    return LayeredModel("faulty:model", layers, cross_entropy, "digits")


_SIZES = {"stash_bytes": 4096, "weight_stash_bytes": 4096, "output_bytes": 64, "workspace_bytes": 4096}
GRAPH = ModelGraph.chain(
    [
        Layer("good", 1e-3, 2e-3, separable=False, parameter_bytes=4 * (64 * 8 + 8), input_bytes=512, **_SIZES),
        Layer("bad", 1e-3, 2e-3, separable=False, parameter_bytes=4 * (8 * 10 + 10), **_SIZES),
    ],
    "faulty:model",
    micro_batch_size=2,
)
"""The same for the planner, with costs out of the air."""


def planned(micro_batches: int = 4, model: ModelGraph = GRAPH) -> Plan:
    """1F1B on two devices: rank 1 runs the layer that fails."""
    layout = build("1f1b", 2, micro_batches)
    problem = Problem(model, Cluster.uniform(2), Workload(micro_batches))
    return assemble(Candidate(problem, (("good",), ("bad",)), layout.pipelines), layout.orders, "1f1b")


def of_one_team() -> Plan:
    """All on one device, a team of two ranks, each of which has half of the bad layer's linear one."""
    bad = replace(GRAPH.layers[1], parameter_bytes=GRAPH.layers[1].parameter_bytes // 2)
    graph = replace(GRAPH, layers=(GRAPH.layers[0], bad), ways=(("tensor", 2),))
    layout = build("1f1b", 1, 4)
    problem = Problem(graph, Cluster.uniform(2).teams(2), Workload(4))
    return assemble(Candidate(problem, (("good", "bad"),), layout.pipelines), layout.orders, "1f1b")
