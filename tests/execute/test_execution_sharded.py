"""Replicas that share an optimizer train exactly as replicas that each have all of it, in less memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from instances import shared
from runs import (
    Case,
    assert_same,
    assert_trained_as,
    assert_within_plan,
    in_threads,
    linked,
    planned,
    profiled,
    run_plans_together,
    same_tensors,
    truth,
)
from spread import spread

from contraflow.executor.basics.checkpointing import Checkpointing
from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.run.checkpoint_files import INDEX, Index, complete
from contraflow.executor.state.parts import Piece, piece_of, put_together
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Plan
from contraflow.planner.problem.workload import OPTIMIZER_STATES, Workload
from contraflow.planner.search.named import own_orders

BOTH = [(optimizer, precision) for optimizer in OPTIMIZER_STATES for precision in ("fp32", "mixed")]


def wide(model: str, *widths: int, batches: int = 6, optimizer: str = "adam", policy: str = "keep") -> Plan:
    """Stages with replicas of their own."""
    workload, cluster = Workload(batches, optimizer), linked(sum(widths))
    return spread(profiled(model, torch.float32), widths, workload, cluster, policy=policy)


def assert_alike(plan: Plan, **options: object) -> None:
    """Losses and all that is trained, bit by bit; no device above its plan, whose optimizer state is smaller."""
    mine, theirs = in_threads(shared(plan), **options), in_threads(plan, **options)
    assert mine.losses == theirs.losses
    assert same_tensors(mine, theirs)
    assert_within_plan(mine)


@pytest.mark.parametrize(("optimizer", "precision"), BOTH)
def test_two_directions_train_bit_by_bit_as_with_whole_optimizers(optimizer: str, precision: str) -> None:
    case = Case("chimera", "gpt-tiny", 2, 4, optimizer, precision=precision)
    assert_alike(planned(case), dtype=case.dtype)


@pytest.mark.parametrize(
    "plan",
    [
        ("mlp-deep", (4, 2, 1), "keep"),
        ("gpt-tiny-tied", (2, 3), "recompute"),
        ("resnet-tiny", (3, 1), "keep"),
    ],
    ids=str,
)
def test_replicas_of_stages_train_bit_by_bit_as_with_whole_optimizers(plan: tuple[str, tuple[int, ...], str]) -> None:
    """Ties, statistics, and parts of three replicas, of which the last is padded."""
    model, widths, policy = plan
    assert_alike(wide(model, *widths, policy=policy))


@pytest.mark.parametrize("schedule", ["chimera-doubling", "gems"])
def test_two_stages_a_device_need_less_memory(schedule: str) -> None:
    plan = planned(Case(schedule, "gpt-tiny", 2, 4, "adam"))
    less = shared(plan)
    assert plan.forecast is not None
    assert less.forecast is not None
    assert all(a < b for a, b in zip(less.forecast.peak_bytes, plan.forecast.peak_bytes, strict=True))
    assert_alike(plan, dtype=torch.float64)


def test_devices_that_only_run_forwards_get_gathered_parameters() -> None:
    """Backwards on other devices than forwards, two replicas of every stage."""
    plan = planned(Case("chimera", "mlp-tiny", 4, 4, "adam"))
    back = tuple(replace(p, backward=(*p.backward[1:], p.backward[0])) for p in plan.pipelines)
    candidate = Candidate(plan.problem, plan.stages, back)
    home = {(p, s): d for p, pipeline in enumerate(back) for s, d in enumerate(pipeline.backward)}
    path = {m: p for p, pipeline in enumerate(back) for m in pipeline.micro_batches}
    orders = [[op for op in order if op.kind is Kind.F] for order in own_orders(plan)]
    ends = sorted((m, -s) for m in path for s in range(len(plan.stages)))
    for m, s in ends:
        orders[home[path[m], -s]].append(next(op for o in plan.orders for op in o if op[:3] == (Kind.B, -s, m)))
    whole = assemble(candidate, orders, "apart")
    assert any(op.kind is Kind.SEND_P for order in whole.orders for op in order)
    assert_alike(whole, dtype=torch.float64)


@pytest.mark.parametrize(
    "training", [Training(clip_norm=0.05), Training(on_nan="skip", loss_scale="dynamic")], ids=["clip", "scale"]
)
def test_what_needs_all_gradients(training: Training) -> None:
    """To round-off: norms are summed in another order."""
    case = Case("chimera", "mlp-tiny", 2, 4, "momentum")
    result = in_threads(shared(planned(case)), training)
    assert_trained_as(result, truth(case.model, 4, "momentum", torch.float32, training))
    assert_within_plan(result)


@pytest.mark.slow
def test_processes_equal_whole_optimizers_and_one_process(tmp_path: Path) -> None:
    """gloo: two replicas bit by bit, whatever the optimizer; more to round-off."""
    dtype = torch.float32
    plans = [planned(Case("chimera", "gpt-tiny", 2, 4, optimizer)) for optimizer in OPTIMIZER_STATES]
    problems = [replace(p.problem, model=profiled("gpt-tiny", dtype)) for p in plans]
    plans = [
        assemble(Candidate(problem, p.stages, p.pipelines, p.stash), own_orders(p), "chimera")
        for problem, p in zip(problems, plans, strict=True)
    ]
    mixed = planned(Case("chimera", "gpt-tiny", 2, 4, "adamw", precision="mixed"))
    plans, kinds = [*plans, mixed], [dtype] * len(plans) + [torch.bfloat16]
    found = run_plans_together([*plans, *map(shared, plans)], tmp_path, [*kinds, *kinds])
    for plan, mine, theirs in zip(plans, found[len(plans) :], found, strict=False):
        assert mine.losses == theirs.losses, plan.problem.workload
        assert same_tensors(mine, theirs), plan.problem.workload
        assert_within_plan(mine)


@pytest.mark.long
def test_three_processes_equal_one(tmp_path: Path) -> None:
    plan = wide("mlp-deep", 3, 1, optimizer="momentum")
    (result,) = run_plans_together([shared(plan)], tmp_path)
    assert_trained_as(result, truth("mlp-deep", 6, "momentum", torch.float32))
    assert_within_plan(result)


# ---------------------------------------------------------------- checkpoints


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_checkpoints_are_gone_on_from_across_it(tmp_path: Path, precision: str) -> None:
    """Shared, whole, shared again; and with other numbers of replicas."""
    case = Case("chimera", "gpt-tiny", 2, 4, "adamw", precision=precision)
    whole = planned(case)
    other = planned(case._replace(schedule="1f1b"))
    expected = in_threads(whole, steps=4, dtype=case.dtype)
    folder = str(tmp_path)
    for step, plan in enumerate((shared(whole), whole, shared(whole), shared(whole))):
        saving = Checkpointing(folder, every=1, keep=9, resume=step > 0)
        result = in_threads(plan, steps=1, dtype=case.dtype, checkpoint=saving)
        assert result.losses == expected.losses[step : step + 1]
    assert same_tensors(result, expected)
    one = in_threads(other, steps=1, dtype=case.dtype, checkpoint=Checkpointing(folder, resume=True))
    more = in_threads(whole, steps=5, dtype=case.dtype)
    assert one.losses == pytest.approx(more.losses[4:], rel=1e-5)


def test_checkpoints_between_numbers_of_replicas(tmp_path: Path) -> None:
    plans = [wide("mlp-deep", *widths) for widths in ((3, 1), (2, 2), (1, 3), (2, 1))]
    for step, plan in enumerate(plans):
        saving = Checkpointing(str(tmp_path), resume=step > 0)
        result = in_threads(shared(plan), steps=1, checkpoint=saving)
    expected = in_threads(plans[0], steps=4)
    assert result.state is not None
    assert expected.state is not None
    for name, tensor in expected.state.items():
        assert_same(name, result.state[name], tensor)


def test_pieces_that_are_missing_or_of_another_shape_are_named(tmp_path: Path) -> None:
    plan = shared(planned(Case("chimera", "mlp-tiny", 2, 4, "adam")))
    in_threads(plan, steps=1, dtype=torch.float64, checkpoint=Checkpointing(str(tmp_path)))
    path = complete(tmp_path)[-1] / INDEX
    index = Index.from_text(path.read_bytes())
    key = next(key for key in index.tensors if piece_of(key)[1] is not None)
    name, piece = piece_of(key)
    assert piece is not None
    for tensors, text in (
        ({k: v for k, v in index.tensors.items() if k != key}, "elements of|not in the checkpoint"),
        ({k.replace(key, f"{name}{piece._replace(shape=(9, 9))}"): v for k, v in index.tensors.items()}, "in this run"),
        ({**index.tensors, f"{name}x#0:3@3": index.tensors[key]}, "only in the checkpoint"),
    ):
        path.write_text(replace(index, tensors=tensors).to_text())
        with pytest.raises(RunError, match=text) as error:
            in_threads(plan, steps=1, dtype=torch.float64, checkpoint=Checkpointing(str(tmp_path), resume=True))
        assert "\n" not in str(error.value)
    assert json.loads(path.read_text())


def test_pieces_say_what_they_are() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    for piece in (Piece(0, 5, (3, 4)), Piece(5, 12, (3, 4)), Piece(0, 1, ())):
        assert piece_of(f"parameters/l/a#b{piece}") == ("parameters/l/a#b", piece)
    assert piece_of("parameters/l/w#3") == ("parameters/l/w#3", None)
    parts = {f"w{Piece(0, 5, (3, 4))}": whole.reshape(-1)[:5], f"w{Piece(5, 12, (3, 4))}": whole.reshape(-1)[5:]}
    assert torch.equal(put_together(parts)["w"], whole)
