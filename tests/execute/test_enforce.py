"""`execute --enforce`: a run ends before an op that has no room, or right after one that took more than was planned."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from async_plans import unflushed
from click.testing import CliRunner
from own_models import chain, ops, plan_of, two_stages, with_layers, without_stashes
from runs import Case, planned, sized, worst_excess
from torch import nn

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.run import launch
from contraflow.executor.run.launch import execute
from contraflow.executor.step.enforcement import Limit, MemoryExceeded
from contraflow.executor.step.host_ledger import HostLedger
from contraflow.models.protocol import LayeredModel
from contraflow.planner.forecast.op_memory import bytes_taken, most_host_bytes
from contraflow.planner.graph import Candidate, StageCosts, static_bytes
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Pipeline, Plan
from contraflow.planner.plan_file import save_plan
from contraflow.planner.problem.cluster import Cluster, DeviceType, Link, NodeGroup
from contraflow.planner.problem.layer import WORKSPACES
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.simulate import simulate

TOLD = re.compile(
    r"rank (?P<rank>\d), stage \d, op (?P<op>\S+), micro-batch \d, step (?P<step>\d+): MemoryExceeded: "
    r"(?P<what>.*?) (?P<held>\d+) bytes(?: at the host of node \d)?, (?P<most>\d+) (?:were planned|may be)"
)


def told(error: ExecutionError) -> dict[str, str]:
    """What the line says that an enforced run ends with."""
    found = TOLD.fullmatch(str(error))
    assert found is not None, error
    return found.groupdict()


SOUND = [
    Case("1f1b", "mlp-tiny", 2, 4),
    Case("gpipe", "mlp-tiny", 2, 4, "adam", "recompute"),
    Case("zb-h1", "mlp-tiny", 3, 5),
    Case("chimera", "mlp-tiny", 2, 4, stash="ship"),
    Case("gpipe", "mlp-tiny", 2, 4, stash="offload"),
    Case("1f1b", "mlp-tiny", 2, 4, stash="odd offload", halves=True),
]


@pytest.mark.parametrize("case", SOUND, ids=lambda case: f"{case.schedule}-{case.stash}")
def test_sound_plans_run_to_the_end(case: Case) -> None:
    """With the losses that they have without."""
    plan = planned(case)
    free, kept = (
        execute(plan, 4, transport="threads", self_check=False, dtype=case.dtype, enforce=enforce)
        for enforce in (False, True)
    )
    assert kept.losses == free.losses
    assert kept.trace.tracked_steps == free.trace.tracked_steps == (0, 1)
    assert max(worst_excess(kept).values()) <= 1


@pytest.mark.parametrize("case", [unflushed("stash", 2), unflushed("2bw", 2, 2), unflushed("spectrain", 2)], ids=str)
@pytest.mark.parametrize("updates", [4, 15])
def test_sound_plans_without_a_flush(case: Case, updates: int) -> None:
    """Runs that are shorter and longer than was planned."""
    plan = planned(case)
    free, kept = (
        execute(plan, updates, transport="threads", self_check=False, dtype=case.dtype, enforce=enforce)
        for enforce in (False, True)
    )
    assert kept.losses == free.losses


def test_a_stash_larger_than_declared() -> None:
    """The run ends right after the op that held it, in the first step."""
    model, plan = two_stages()
    lean = with_layers(plan, without_stashes)
    steps: list[int] = []
    with pytest.raises(ExecutionError) as caught:
        execute(lean, 3, model, transport="threads", enforce=True, on_step=lambda step, *_: steps.append(step))
    assert not steps
    pattern = (
        r"rank (\d), stage \1, op \1[FB](\d), micro-batch \2, step 0: MemoryExceeded: held (\d+) bytes, (\d+) were"
    )
    rank, _, held, most = map(int, re.match(pattern, str(caught.value)).groups())  # type: ignore[union-attr]
    assert held > most == lean.forecast.peak_bytes[rank]  # type: ignore[union-attr]


@dataclass(frozen=True)
class Leaking:
    """Samples of which a copy is kept from a step on."""

    name: str = "leaking"
    begin: int = 0
    kept: list[torch.Tensor] = field(default_factory=list)

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Dataset`."""
        inputs = torch.ones(size, 16)
        if step >= self.begin:
            self.kept.append(inputs * 2)
        return inputs, torch.zeros(size, dtype=torch.long)


@pytest.mark.parametrize("begin", [2, 5])
def test_a_leak_ends_the_run_where_it_passes(begin: int) -> None:
    """Long after the steps in which memory is followed anyway; an op that has no room is not run."""
    model, plan = two_stages()
    data, steps = Leaking(begin=begin), list[int]()
    with pytest.raises(ExecutionError) as caught:
        execute(
            plan, 40, model, data, transport="threads", enforce=True, self_check=False,
            on_step=lambda step, *_: steps.append(step),
        )  # fmt: skip
    line = told(caught.value)
    step, held, most = (int(line[name]) for name in ("step", "held", "most"))
    assert begin <= step == len(steps) <= begin + 4
    assert most < held <= most + 4 * 16 * 4 * 2
    assert len(execute(plan, 40, model, Leaking(begin=begin), transport="threads", self_check=False).losses) == 40


def test_an_op_without_room_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that was edited by hand: as a file it is refused, and what cannot be refused stops before the op."""
    model, plan = two_stages()
    assert plan.forecast is not None
    costs = plan.problem.model.layers[0]
    static = sum(static_bytes(plan, StageCosts.of(plan.problem.model, plan.stages))[0].values())
    room = (static + costs.stash_bytes // 2, plan.forecast.peak_bytes[1])
    devices = tuple(replace(d, peak_bytes=most) for d, most in zip(plan.forecast.devices, room, strict=True))
    edited = plan.with_forecast(replace(plan.forecast, devices=devices))
    with pytest.raises(RunError, match=r"the plan fails its check: .*peak_bytes says"):
        execute(edited, 1, model, transport="threads", enforce=True)
    monkeypatch.setattr(launch, "require_executable", lambda *_: None)
    with pytest.raises(ExecutionError) as caught:
        execute(edited, 1, model, transport="threads", enforce=True, self_check=False)
    line = told(caught.value)
    assert (line["rank"], line["step"], int(line["most"])) == ("0", "0", room[0])
    assert re.fullmatch(r"not run: \d+ bytes held and \d+ declared are", line["what"])
    held, declared = map(int, re.findall(r"\d+", line["what"]))
    assert held <= room[0] < held + declared == int(line["held"])


def test_what_a_forward_needs_is_asked_of_those_with_its_stash_policy() -> None:
    """One that leaves a stash says nothing of one that leaves none: that is no more than it declares, at the most."""
    model = chain([partial(nn.Linear, 16, 16)] * 3, 16)
    pipelines = (Pipeline((0, 1), (0, 1), (0,)), Pipeline((0, 1), (0, 1), (1,)))
    lists = [ops("0F0 0F1 0B0 0R1 0B1"), ops("1F0 1F1 1B0 1B1")]
    plan = plan_of(sized(model, 4), pipelines, lists, stash=(("keep", "keep"), ("recompute", "keep")))
    limit, places = Limit(plan, 0), [k for k, op in enumerate(plan.orders[0]) if op.kind is Kind.F]
    limit.follow(plan)
    limit.admit(places[0], 0)
    limit.started(0)
    limit.hold(limit.planned_bytes)
    limit.ran(places[0])
    kept, dropped = (bytes_taken(plan, 0)[place] for place in places)
    assert dropped.kept < dropped.bytes
    limit.admit(places[1], limit.planned_bytes - dropped.kept)
    limit.started(limit.planned_bytes - dropped.kept)
    limit.admit(places[0], 0)
    with pytest.raises(MemoryExceeded, match=r"^not run: "):
        limit.started(limit.planned_bytes - kept.bytes + 1)


# ---------------------------------------------------------------- the host


ROOMY: dict[str, Any] = dict.fromkeys(WORKSPACES)
"""All ops of a layer take its `workspace_bytes`."""


def offloading(host_bytes: int | None = None) -> tuple[LayeredModel, Plan]:
    """Two devices of one node whose plan declares half of what its stashes take at the host, and much workspace."""
    model, plan = two_stages(64)
    kind = DeviceType("custom", PRESETS["cpu"].memory_bytes)
    link = Link(1e9, 20e-6)
    cluster = Cluster((NodeGroup(1, 2, kind, link, host_memory_bytes=host_bytes, host_link=link),))
    layers = tuple(
        replace(
            layer,
            stash_bytes=layer.stash_bytes // 2,
            selective_bytes=0,
            **ROOMY,
            workspace_bytes=layer.workspace_bytes + 40_000,
        )
        for layer in plan.problem.model.layers
    )
    problem = replace(plan.problem, model=replace(plan.problem.model, layers=layers), cluster=cluster)
    lists = [[op for op in order if op.kind in (Kind.F, Kind.B)] for order in plan.orders]
    return model, assemble(Candidate(problem, plan.stages, plan.pipelines, (("offload",) * 2,)), lists)


@pytest.mark.parametrize("limited", [False, True], ids=["as planned", "limited"])
def test_stashes_at_the_host(limited: bool) -> None:
    """More of them than the lists can have there, or than the node has room for, end the run."""
    model, plan = offloading()
    room = simulate(plan).host_memory[0].peak_bytes
    if limited:
        _, plan = offloading(room)
    most = room if limited else sum(most_host_bytes(plan, rank) for rank in (0, 1))
    assert execute(plan, 2, model, transport="threads", self_check=False).losses
    with pytest.raises(ExecutionError) as caught:
        execute(plan, 2, model, transport="threads", self_check=False, enforce=True)
    line = told(caught.value)
    assert "host" in str(caught.value)
    assert (line["step"], int(line["most"])) == ("0", most)
    assert int(line["held"]) > most


def test_ranks_of_a_node_count_together() -> None:
    """What one holds is not there for the other; what is freed is."""
    _, plan = offloading(None)
    kept = simulate(plan).host_memory[0].peak_bytes
    _, plan = offloading(kept)
    memory = mmap.mmap(-1, 16)
    first, second = (HostLedger(plan, rank, memory) for rank in (0, 1))
    for ledger in (first, second):
        ledger.follow(plan)
        assert ledger.limit_bytes == kept
    tensors = [torch.empty(kept // 2 + k, dtype=torch.uint8) for k in range(2)]
    first.track(tensors[0])
    first.hold()
    second.track(tensors[1])
    with pytest.raises(MemoryExceeded, match=f"the host of node 0 held {kept + 1} bytes, {kept} may be"):
        second.hold()
    tensors.clear()
    second.hold()
    place = next(k for k, op in enumerate(plan.orders[1]) if op.kind is Kind.OFFLOAD)
    second.admit(place)
    full = torch.empty(kept, dtype=torch.uint8)
    first.track(full)
    with pytest.raises(MemoryExceeded, match=r"not run: .* bytes at the host of node 0"):
        second.admit(place)


@pytest.mark.slow
@pytest.mark.parametrize("limited", [False, True], ids=["device", "host"])
def test_on_processes(limited: bool, tmp_path: Path) -> None:
    """One line, exit code 1, and nobody is left."""
    plan = planned(Case("gpipe", "mlp-tiny", 2, 4, stash="offload" if limited else "keep"))
    more = 100_000 if limited else 0
    third = {"selective_bytes": 0, "workspace_bytes": more, **ROOMY}
    lean = with_layers(plan, lambda layer: replace(layer, stash_bytes=layer.stash_bytes // 3, **third))
    save_plan(lean, tmp_path / "plan.json")
    for enforce in ([], ["--enforce"]):
        result = CliRunner().invoke(cli, ["execute", str(tmp_path / "plan.json"), "--steps", "3", *enforce])
        line = result.stderr.strip().splitlines()[-1]
        assert result.exit_code == (1 if enforce or not limited else 0), result.stderr
        assert ("MemoryExceeded" in line) == bool(enforce)
    assert told(ExecutionError(line.removeprefix("contraflow: ")))["step"] == "0"
