"""A model trains alike whether the two halves of its transformer blocks are planned as one layer or as two."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from instances import cut_evenly
from runs import SAMPLES, at_given_times, in_threads, profile, same_tensors
from torch import nn

from contraflow.executor.basics.checkpointing import Checkpointing
from contraflow.executor.basics.errors import RunError
from contraflow.executor.cli.profile import profile as command
from contraflow.executor.measure import analytic_profile
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.run.launch import execute, prepare
from contraflow.models import GRANULARITIES, Granularity, LayeredModel, LayerSpec, Tie, pieces, resolve
from contraflow.models.loss import cross_entropy
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem import Cluster, ModelGraph, Workload
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.schedules import build

MODELS = ("gpt-tiny-dropout", "gpt-tiny-tied", "bert-tiny", "llama-tiny")


@cache
def graph(name: str, layers: Granularity) -> ModelGraph:
    return at_given_times(ModelGraph.from_dict(profile(resolve(name), SAMPLES, layers=layers)))


def planned(model: ModelGraph, schedule: str = "1f1b", devices: int = 2) -> Plan:
    layout = build(schedule, devices, 4)
    problem = Problem(model, Cluster.uniform(devices), Workload(4, "momentum"))
    candidate = Candidate(problem, cut_evenly(model, layout.stages), layout.pipelines, (), "flush")
    keep = tuple(("keep",) * layout.stages for _ in layout.pipelines)
    return assemble(replace(candidate, stash=keep), [list(order) for order in layout.orders], schedule)


def names(model: ModelGraph) -> list[str]:
    return [layer.name for layer in model.layers]


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_blocks_and_their_halves_train_alike(name: str) -> None:
    """Losses and every tensor by its name, bit by bit, in two schedules; neither run is above its plan's memory."""
    halves, whole = (graph(name, layers) for layers in ("parts", "block"))
    assert names(whole) == ["embedding", *(f"block{k}" for k in range(4)), "head"]
    assert len(names(halves)) == 10
    # embedding, two and a half blocks | one and a half, head; and two blocks on each side
    cases = [planned(halves), planned(halves, "chimera"), planned(whole), planned(whole, "chimera")]
    runs = [in_threads(plan, steps=3) for plan in cases]
    for run in runs[1:]:
        assert run.losses == pytest.approx(runs[0].losses, abs=1e-6)
    assert runs[0].state is not None
    assert "parameters/block0.attention/attention.out.weight" in runs[0].state or "llama" in name
    assert all(run.state is not None and run.state.keys() == runs[0].state.keys() for run in runs)
    for run in runs:
        assert all(mine <= most for mine, most in zip(run.peak_bytes, run.forecast_peak_bytes, strict=True))


def test_one_stage_of_either_is_one_program() -> None:
    """On one device the two are the same computation."""
    runs = [in_threads(planned(graph("gpt-tiny-dropout", layers), "1f1b", 1), steps=3) for layers in ("parts", "block")]
    assert runs[0].losses == runs[1].losses
    assert same_tensors(*runs)


@pytest.mark.parametrize(("first", "then"), [("parts", "block"), ("block", "parts")])
def test_a_checkpoint_of_one_goes_on_with_the_other(first: Granularity, then: Granularity, tmp_path: Path) -> None:
    """Also with tied parameters; the whole is what one run of six steps gives."""
    plans = [planned(graph("gpt-tiny-tied", layers)) for layers in (first, then)]
    saving = Checkpointing(str(tmp_path), 3)
    in_threads(plans[0], steps=3, checkpoint=saving)
    rest = in_threads(plans[1], steps=3, checkpoint=replace(saving, resume=True))
    whole = in_threads(plans[1], steps=6)
    assert rest.losses == pytest.approx(whole.losses[3:], abs=1e-6)


@pytest.mark.parametrize("name", ["gpt-tiny", "bert-tiny", "llama-tiny"])
def test_a_blocks_sizes_are_its_halves(name: str) -> None:
    """Parameters and times add up; a plan saved before blocks had halves has the same shapes, so it still runs."""
    model = resolve(name)
    halves, whole = (
        analytic_profile(model, 2, PRESETS["A100-80GB"], efficiency=0.5, layers=layers)["layers"]
        for layers in ("parts", "block")
    )
    for key in ("parameter_bytes", "forward_s"):
        assert whole[1][key] == pytest.approx(halves[1][key] + halves[2][key], rel=0.02)
    assert whole[1]["parameter_shapes"] == halves[1]["parameter_shapes"] + halves[2]["parameter_shapes"]
    assert whole[1]["stash_bytes"] <= halves[1]["stash_bytes"] + halves[2]["stash_bytes"]


def test_a_plan_of_blocks_with_other_layers_is_refused_in_a_line() -> None:
    """The first layer that is not the model's is named."""
    plan = planned(graph("gpt-tiny-dropout", "block"))
    with pytest.raises(RunError, match="the plan's layer 'embedding' is 'layer0' in model 'mlp-tiny'"):
        prepare(plan, model="mlp-tiny")
    with pytest.raises(RunError, match="layer 'embedding': the model's parameter shapes are"):
        prepare(plan, model="gpt-mini")


def model_of(*layers: tuple[str, str | None], ties: tuple[Tie, ...] = ()) -> LayeredModel:
    made = tuple(LayerSpec(name, partial(nn.Linear, 64, 64), block) for name, block in layers)
    return LayeredModel("mine", made, cross_entropy, "digits", ties)


def test_layers_of_a_block_follow_one_another() -> None:
    """A block that is interrupted or has a layer's name is refused; two blocks side by side are two."""
    with pytest.raises(ValueError, match="the layers of block 'x' do not follow one another"):
        model_of(("a", "x"), ("b", None), ("c", "x"))
    with pytest.raises(ValueError, match="has a layer and a block named 'x'"):
        model_of(("x", "x"))
    model = model_of(("a", "x"), ("b", "x"), ("c", "y"), ("d", None))
    assert [(piece.name, len(piece.ids)) for piece in pieces(model, "block")] == [("x", 2), ("y", 1), ("d", 1)]
    with pytest.raises(ValueError, match="layers must be one of parts, block, got 'half'"):
        pieces(model, "half")  # type: ignore[arg-type]


def test_parameters_tied_within_a_block_are_planned_as_its_parts() -> None:
    """A plan has ties between layers only."""
    tied = model_of(("a", "x"), ("b", "x"), ("c", None), ties=(Tie((("a", "weight"), ("b", "weight"))),))
    assert len(profile_model(tied, 1, rounds=1)["layers"]) == 3
    with pytest.raises(ValueError, match="a and b are tied and in one layer, 'x': plan its parts"):
        profile_model(tied, 1, rounds=1, layers="block")


def test_the_command_takes_either() -> None:
    """And refuses what is neither."""
    for layers, count in zip(GRANULARITIES, (10, 6), strict=True):
        given = ["gpt-tiny", "--device", "A100-80GB", "--layers", layers, "--json"]
        result = CliRunner().invoke(command, given)
        assert result.exit_code == 0, result.output
        assert len(ModelGraph.from_dict(json.loads(result.stdout)).layers) == count
    assert CliRunner().invoke(command, ["gpt-tiny", "--layers", "half"]).exit_code == 2


def test_runs_of_both_are_of_one_model() -> None:
    """Their identity has the fingerprint of the model's own layers."""
    plans = [planned(graph("gpt-tiny", layers)) for layers in ("parts", "block")]
    prints = {prepare(plan).identity.model_fingerprint for plan in plans}
    assert len(prints) == 1
    assert prints == {plans[0].problem.model.fingerprint}
    assert execute(plans[1], 1, transport="threads", dtype=torch.float64).losses
