"""Models that are no chains train, under any plan, as they do in one process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import graph_models
import pytest
import torch
from instances import cut_evenly, machine
from runs import STEPS, assert_as_planned, in_threads, linked, profile, rewritten, run_jobs_together, sized, stashed
from torch import Tensor, nn

from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.options import Engine
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.reference import ReferenceRun, train_reference
from contraflow.executor.run.job import Job
from contraflow.executor.run.launch import execute, prepare
from contraflow.executor.stage import StageLayers, TraceError
from contraflow.models import LayeredModel, LayerSpec, resolve
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate, messages
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.problem.stage_costs import StageCosts
from contraflow.planner.problem.weight_policy import FLUSH
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.schedules import build
from contraflow.planner.search.driver import plan as search

MICRO_BATCHES = 4
SAMPLES = 3


class Case(NamedTuple):
    """As of `runs`; the model is a function of graph_models."""

    model: str
    schedule: str
    stash: str = "keep"
    halves: bool = False
    engine: Engine = "auto"
    devices: int = 2


@cache
def model_of(name: str) -> LayeredModel:
    """One object a name: what it has traced is known."""
    made: LayeredModel = getattr(graph_models, name)()
    return made


@cache
def graph_of(name: str) -> ModelGraph:
    """Sizes measured, times given."""
    return sized(model_of(name), SAMPLES)


def cluster_of(case: Case) -> Cluster:
    """Links that take time where stashes move."""
    return Cluster.uniform(case.devices) if case.stash in ("keep", "recompute") else linked(case.devices)


def planned(case: Case) -> Plan:
    """Layers dealt out evenly, in the model's order."""
    graph, layout = graph_of(case.model), build(case.schedule, case.devices, MICRO_BATCHES)
    problem = Problem(graph, cluster_of(case), Workload(MICRO_BATCHES, "momentum"))
    whole = Candidate(problem, cut_evenly(graph, layout.stages), layout.pipelines, (), FLUSH)
    candidate = stashed(whole, case.stash)
    return assemble(candidate, [rewritten(order, candidate, case.halves) for order in layout.orders], case.schedule)


@cache
def truth(name: str, training: Training | None = None) -> ReferenceRun:
    """One process."""
    return train_reference(model_of(name), MICRO_BATCHES, SAMPLES, "momentum", STEPS, training=training)


def job(case: Case, plan: Plan | None = None) -> Job:
    """With 1F1B its programs are held against plain torch first."""
    given, check = plan or planned(case), case.schedule == "1f1b"
    return prepare(
        given, STEPS, model=model_of(case.model), engine=case.engine, self_check=check, return_state=True
    )  # fmt: skip


TWO = [
    Case("unet", "1f1b"),
    Case("towers", "chimera", engine="eager"),
    Case("translator", "1f1b", "ship"),
]
MORE = [
    Case("unet", "interleaved", "recompute"),
    Case("towers", "1f1b", "recompute", halves=True),
    Case("translator", "chimera", "recompute"),
    Case("unet", "chimera"),
    Case("unet", "zb-v", engine="eager"),
    Case("towers", "interleaved"),
    Case("towers", "1f1b", "offload"),
    Case("translator", "interleaved", halves=True),
    Case("translator", "zb-v", engine="eager"),
]
FOUR = [Case(name, kind, devices=4) for name in ("unet", "towers", "translator") for kind in ("1f1b", "chimera")]


@pytest.mark.long
@pytest.mark.parametrize(
    "cases",
    [TWO, *(pytest.param(cases, marks=pytest.mark.slow) for cases in (MORE, FOUR))],
    ids=["two", "more", "four"],
)
def test_processes_train_what_one_process_trains(cases: list[Case], tmp_path: Path) -> None:
    """Losses and parameters on gloo processes, and no device above its planned peak."""
    jobs = [job(case) for case in cases]
    for case, result in zip(cases, run_jobs_together(jobs, tmp_path), strict=True):
        assert_as_planned(result, truth(case.model))


def searched(name: str, space: SearchSpace, memory: float) -> Plan:
    """The best plan for devices with so much of what everything on one device takes."""
    graph = graph_of(name)
    whole = search(graph, Cluster.uniform(1), Workload(MICRO_BATCHES, "momentum"), workers=1).plan
    assert whole is not None
    assert whole.forecast is not None
    limit = int(memory * max(whole.forecast.peak_bytes))
    workload = Workload(MICRO_BATCHES, "momentum")
    found = search(graph, machine(2, memory=limit), workload, space, 300, workers=1, deterministic_limit=0.1).plan
    assert found is not None
    return found


@pytest.mark.long
def test_searched_plans_with_recomputation_train_the_same(tmp_path: Path) -> None:
    """On devices too small to keep all stashes."""
    space = SearchSpace(offload=False, separate_backward=False)
    plan = searched("unet", space, 0.59)
    assert any("recompute" in row for row in plan.stash)
    (result,) = run_jobs_together([job(Case("unet", "search"), plan)], tmp_path)
    assert_as_planned(result, truth("unet"))


@pytest.mark.long
def test_held_out_losses_and_smaller_micro_batches() -> None:
    """Evaluation sends the same tensors; a last micro-batch of fewer samples has its own programs."""
    training = Training(evaluate_every=2, evaluate_steps=1, mini_batch=MICRO_BATCHES * SAMPLES - 1)
    plan = planned(Case("translator", "interleaved", "recompute"))
    result = in_threads(plan, training, model=model_of("translator"))
    assert_as_planned(result, truth("translator", training))


@pytest.mark.long
def test_a_run_goes_on_from_another_plans_checkpoint(tmp_path: Path) -> None:
    """Checkpoints are by layers: the second half runs under other stages, in two directions."""
    options = {"model": model_of("translator"), "transport": "threads", "return_state": True}
    execute(planned(Case("translator", "1f1b")), 3, checkpoint=tmp_path, **options)
    rest = execute(planned(Case("translator", "chimera")), STEPS - 3, checkpoint=tmp_path, resume=True, **options)
    expected = truth("translator")
    assert rest.losses == pytest.approx(expected.losses[3:], abs=1e-5)


def test_a_skip_goes_from_its_producer_to_its_consumers_alone() -> None:
    """Four stages of a U-Net: what the first one gives goes past the others."""
    plan = planned(Case("unet", "1f1b", devices=4))
    costs = StageCosts.of(plan.problem.model, plan.stages)
    assert {(e.producer, e.consumer) for e in costs.edges} == {(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)}
    sent = [op for op in plan.orders[0] if op.kind is Kind.SEND_F and op.micro_batch == 0]
    assert sorted(op.peer for op in sent) == [1, 2, 3]
    assert not check(plan)


def test_an_edge_of_several_tensors_is_one_message_of_all_their_bytes() -> None:
    """The encoder's stage sends its output and the padding; the padding is counted once for both decoder blocks."""
    graph = graph_of("translator")
    stages = (("read", "encoder0", "encoder1", "say"), ("decoder0", "decoder1", "scores"))
    (edge,) = StageCosts.of(graph, stages).edges
    size = {layer.name: layer.output_bytes for layer in graph.layers}
    padding = next(o.bytes for o in graph.layers[0].outputs if o.name == "read.padding")
    assert edge.bytes == size["encoder1"] + size["say"] + padding
    problem = Problem(graph, Cluster.uniform(2), Workload(1))
    layout = build("gpipe", 2, 1)
    plan = assemble(Candidate(problem, stages, layout.pipelines, (("keep",) * 2,), FLUSH), layout.orders, "gpipe")
    forward = [m for m in messages(plan, StageCosts.of(graph, stages)) if m.send == Op(Kind.SEND_F, 0, 0, 1)]
    assert [m.bytes for m in forward] == [edge.bytes]


def test_model_json_keeps_names_bytes_and_gradients_of_tensors() -> None:
    """And a chain's has none of that."""
    graph = graph_of("translator")
    assert ModelGraph.from_dict(graph.to_dict()) == graph
    assert [(o.name, o.gradient) for o in graph.layers[0].outputs] == [("read.x", True), ("read.padding", False)]
    assert [o.name for o in graph.carried["read", "decoder1"]] == ["read.padding"]
    chain = profile(LayeredModel("chain", (LayerSpec("a", _linear), LayerSpec("b", _linear)), _mean, _Numbers()))
    assert chain["edges"] == [["a", "b"]]
    assert all("outputs" not in layer for layer in chain["layers"])


def _linear() -> nn.Module:
    return nn.Linear(4, 4)


class _Summed(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y)


def _mean(x: Tensor, _: Tensor) -> Tensor:
    return x.mean()


class _Numbers:
    name = "numbers"

    def batch(self, seed: int, step: int, micro_batch: int, size: int) -> tuple[Tensor, Tensor]:
        """(size, 4) and nothing to hit."""
        return torch.rand(size, 4), torch.zeros(size)


def _wired(*layers: LayerSpec, data: object = None) -> LayeredModel:
    return LayeredModel("wired", layers, _mean, data or _Numbers())


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([LayerSpec("a", _linear), LayerSpec("b", _linear, inputs="c")], "layer 'b' takes 'c', which no layer before"),
        ([LayerSpec("a", _linear), LayerSpec("b", _linear, inputs="input")], "'a': no layer takes what it gives"),
        (
            [LayerSpec("a", _linear, outputs=("x", "y")), LayerSpec("b", _linear)],
            "layer 'b' says nothing of its inputs",
        ),
        ([LayerSpec("a", _linear, inputs=("input", "input.x"))], "one tensor or have names, not both"),
    ],
)
def test_wrong_wiring_is_named(layers: list[LayerSpec], said: str) -> None:
    """Where the model is made."""
    with pytest.raises(ValueError, match=said):
        _wired(*layers)


def test_what_another_layer_takes_may_not_change_in_place() -> None:
    """One process would give the other layer the changed tensor; another stage has the old one."""
    layers = [
        LayerSpec("a", _linear),
        LayerSpec("b", _Summed, inputs=("a", "input")),
        LayerSpec("c", _Summed, inputs=("b", "a")),
    ]
    model = _wired(*layers)
    modules = [spec.build() for spec in layers]
    stage = StageLayers(modules, range(3), None, False, "stage 0", part=model.wiring.part(range(3)))
    with pytest.raises(TraceError, match="stage 0: layer 1 changes in place what another layer takes"):
        stage.run({}, torch.rand(2, 4), None, lambda *_: None)


def test_a_plan_of_other_edges_is_refused() -> None:
    """One line says which."""
    plan = planned(Case("unet", "1f1b"))
    graph = plan.problem.model
    fewer = replace(graph, edges=tuple(edge for edge in graph.edges if edge != ("down1", "up1")))
    other = _one_stage_of(fewer)
    with pytest.raises(RunError, match="layer 'up1' takes what 'down1' gives in the model only"):
        execute(other, 1, model=model_of("unet"), transport="threads")


def _one_stage_of(graph: ModelGraph) -> Plan:
    layout = build("gpipe", 1, 2)
    problem = Problem(graph, Cluster.uniform(1), Workload(2, "momentum"))
    stages = (tuple(layer.name for layer in graph.layers),)
    return assemble(Candidate(problem, stages, layout.pipelines, (("keep",),), FLUSH), layout.orders, "gpipe")


def _listed() -> list[tuple[object, ...]]:
    """A function of a user's: a list whose entries say what they take and return."""
    return [
        ("both", _Halves(), "input", ("left", "right")),
        ("a", nn.Linear(2, 3), "both.left"),
        ("sum", _Beside(), ["a", "both.right"]),
    ]


class _Halves(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        left, right = x.chunk(2, 1)
        return {"right": right, "left": left}


class _Beside(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], 1)


def test_a_list_of_modules_says_what_they_take() -> None:
    """Names behind name and module; outputs may come as a mapping."""
    model = resolve(f"{__name__}:_listed")
    assert [model.wiring.takes[k] for k in range(3)] == [((-1, 0),), ((0, 0),), ((1, 0), (0, 1))]
    wired = replace(model, loss=_mean, data=_Numbers())
    plan = assemble_evenly(sized(wired, layers="parts"))
    expected = train_reference(wired, 2, 2, "momentum", 2)
    result = execute(plan, 2, model=wired, transport="threads", return_state=True)
    assert result.losses == expected.losses


def assemble_evenly(graph: ModelGraph) -> Plan:
    """On two devices."""
    layout = build("1f1b", 2, 2)
    problem = Problem(graph, Cluster.uniform(2), Workload(2, "momentum"))
    whole = Candidate(problem, cut_evenly(graph, 2), layout.pipelines, (("keep",) * 2,), FLUSH)
    return assemble(whole, layout.orders, "1f1b")
