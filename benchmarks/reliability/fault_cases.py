"""The cases of `faults.py`: what fails, where, when, in which kind of run, and what may come of it."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import victim

from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.plan_file import save_plan
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build

PLANS = {
    "1f1b-2": ("1f1b", 2, 4), "1f1b-3": ("1f1b", 3, 4), "gpipe-2": ("gpipe", 2, 3), "chimera-2": ("chimera", 2, 4),
    "zb-h1-2": ("zb-h1", 2, 4), "interleaved-3": ("interleaved", 3, 6), "dualpipe-2": ("dualpipe", 2, 4),
}  # fmt: skip
"""Schedule, devices, micro-batches by name."""
STEPS = 12
FORWARDS = 60
"""Calls of the layers of a rank in a run, at least."""
LOSSES = 30
"""The same of the loss."""


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        launch: "own", "threads", "torchrun" or "restart" (torchrun that may restart once).
        target: who gets the signal or fails: "rank" (number `victim`), "parent" (also torchrun), "" (the machine).
        where: of a rank: "import", "build", "forward", "loss", "data" at call `at`; or "" `after_s` seconds.
        codes: exit codes that are right. blames: what the one line must say.
        quiet: nothing needs to be said, or the user's terminal is gone.
    """

    launch: str
    plan: str
    fault: str
    target: str = ""
    victim: int = 0
    where: str = ""
    at: int = 1
    after_s: float = 0.0
    codes: tuple[int, ...] = (1,)
    blames: str = ""
    quiet: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def names(self, line: str) -> bool:
        """Whether the line says what happened."""
        return re.search(self.blames, line) is not None

    def __str__(self) -> str:
        who = f"rank {self.victim}" if self.target == "rank" else self.target or "machine"
        when = f"{self.where} {self.at}" if self.where else f"after {self.after_s:.1f} s"
        return f"{self.launch} {self.plan}, {self.fault} to {who}, {when}"


def save_plans(folder: Path) -> None:
    """All plans, as NAME.json."""
    for name, (schedule, devices, micro_batches) in PLANS.items():
        save_plan(_planned(schedule, devices, micro_batches), folder / f"{name}.json")


def _planned(schedule: str, devices: int, micro_batches: int) -> Plan:
    """Layers dealt out evenly; costs out of the air, sizes generous."""
    sizes = {"stash_bytes": 1 << 16, "weight_stash_bytes": 1 << 16, "workspace_bytes": 1 << 16}
    names = victim.names()
    layers = []
    for name in names:
        outputs = victim.CLASSES if name == names[-1] else victim.WIDTH
        held = 4 * (victim.WIDTH * outputs + outputs)
        first = {"input_bytes": 2 * 4 * victim.WIDTH} if name == names[0] else {}
        out = {} if name == names[-1] else {"output_bytes": 2 * 4 * outputs}
        layers.append(Layer(name, 1e-3, 1e-3, 1e-3, parameter_bytes=held, **sizes, **first, **out))
    graph = ModelGraph.chain(layers, "victim:model", micro_batch_size=2)
    layout = build(schedule, devices, micro_batches)
    cuts = [round(s * len(names) / layout.stages) for s in range(layout.stages + 1)]
    stages = tuple(tuple(names[a:b]) for a, b in zip(cuts, cuts[1:], strict=False))
    problem = Problem(graph, Cluster.uniform(devices), Workload(micro_batches))
    return assemble(Candidate(problem, stages, layout.pipelines), layout.orders, schedule)


def draw(random_: random.Random) -> Case:
    """A case by chance."""
    plan = random_.choice(list(PLANS))
    launch = random_.choices(("own", "threads", "torchrun", "restart"), (6, 1, 3, 2))[0]
    kind = random_.choices(("signal", "parent", "user", "machine"), (6, 3, 3, 2))[0]
    if launch == "threads" and kind == "signal":
        kind = "user"
    if launch == "restart" and kind != "user":
        kind = "signal"
    return {"signal": _signal, "parent": _parent, "user": _user, "machine": _machine}[kind](random_, launch, plan)


def _place(random_: random.Random, where: str) -> int:
    most = {"import": 1, "build": 1, "data": 12, "loss": LOSSES}.get(where, FORWARDS)
    return random_.randint(1, most)


def _signal(random_: random.Random, launch: str, plan: str) -> Case:
    """To a rank: at a random op, or at a random time from its very beginning."""
    number = random_.choice(("SIGKILL", "SIGSTOP", "SIGSTOP", "SIGTERM", "SIGINT"))
    devices = PLANS[plan][1]
    rank = random_.randrange(devices)
    own = launch == "own"
    timed = random_.random() < 0.4 and own
    where = "" if timed else random_.choice(("import", "build", "forward", "forward", "forward"))
    codes: tuple[int, ...] = (0,) if launch == "restart" else (1,)
    if own and number == "SIGINT":
        codes = (0, 1) if timed else (0,)  # the parent decides
    if number == "SIGTERM":
        codes = (*codes, 143)
    if timed:
        codes = (0, *codes)  # it may come when all is over
    after_s = random_.uniform(0, 12) if timed else 0.0
    at = _place(random_, where) if where else 1
    blames = rf"\brank {rank}\b|terminated|interrupted"
    return Case(launch, plan, number, "rank", rank, where, at, after_s, codes, blames)


def _parent(random_: random.Random, launch: str, plan: str) -> Case:
    """To the process that has started the ranks, at a random time."""
    number = random_.choice(("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT"))
    if launch == "threads" and number == "SIGSTOP":
        number = "SIGTERM"
    torchrun = launch == "torchrun"
    codes = {"SIGKILL": (-9,), "SIGSTOP": (0, 1), "SIGTERM": (143, -15, 0), "SIGINT": (130, 0)}[number]
    if torchrun:
        codes = (*codes, 1, 143, 130)
    says = {"SIGSTOP": "stopped", "SIGTERM": "terminated", "SIGINT": "interrupted"}.get(number, "")
    after_s = random_.uniform(0, 14)
    return Case(launch, plan, number, "parent", 0, "", 1, after_s, codes, says, quiet=torchrun or number == "SIGKILL")


def _user(random_: random.Random, launch: str, plan: str) -> Case:
    """An exception, or an exit, in the user's model, loss or data."""
    where = random_.choice(("import", "build", "forward", "forward", "loss", "data"))
    rank = random_.randrange(PLANS[plan][1])
    if where in ("loss", "data"):
        rank = _last(plan) if where == "loss" else rank
    how = "raise" if launch == "threads" or where == "import" else random_.choice(("raise", "raise", "exit"))
    codes = (0,) if launch == "restart" else (1, 2)
    blames = r"out of luck" if how == "raise" else rf"\brank {rank}\b"
    return Case(launch, plan, how, "rank", rank, where, _place(random_, where), 0.0, codes, blames)


def _last(plan: str) -> int:
    """A rank that computes losses."""
    schedule, devices, _ = PLANS[plan]
    return 0 if schedule in ("chimera", "dualpipe") else devices - 1


def _machine(random_: random.Random, launch: str, plan: str) -> Case:
    """No room, or no terminal."""
    what = random_.choice(
        ("disk full: trace", "disk full: checkpoint", "no shared memory", "no temporary files", "no reader")
    )
    says = {"disk full: trace": "No space left", "disk full: checkpoint": "No space left"}.get(what, "")
    codes = (1, 2) if says else (0, 1) if what == "no reader" else (0,)
    quiet = launch in ("torchrun", "restart") or what == "no reader"  # a broken pipe is silent, as of any command
    return Case(launch, plan, what, "", 0, "", 1, 0.0, codes, says, quiet=quiet)
