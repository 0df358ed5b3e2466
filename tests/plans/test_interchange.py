"""Plans for other runtimes and back: torch's CSV says the orders, Megatron's flags the cut."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import named, uniform
from random_plans import plans_of, random_candidate

from contraflow.planner import (
    Cluster,
    InterchangeError,
    Layer,
    ModelGraph,
    SearchSpace,
    Workload,
    check,
    plan,
    plan_layout,
    read_torch_csv,
    to_megatron,
    to_torch_csv,
)
from contraflow.planner.graph import KEEP, Candidate
from contraflow.planner.interchange import torch_orders
from contraflow.planner.lower import assemble
from contraflow.planner.plan import Pipeline, Plan, Problem
from contraflow.planner.schedules import build


def chain(blocks: int, **sizes: int) -> ModelGraph:
    """Embedding, decoder blocks of an attention and an MLP, head."""
    names = ["embedding", *(f"block{k}.{half}" for k in range(blocks) for half in ("attention", "mlp")), "head"]
    return ModelGraph.chain([Layer(name, 1.0, 1.0, 1.0, **sizes) for name in names])


def cut_by_blocks(name: str, devices: int, batches: int, **workload: object) -> Plan:
    """Four decoder layers; every stage takes whole ones."""
    model = chain(4)
    names = [layer.name for layer in model.layers]
    layers = [tuple(names[a:b]) for a, b in ((0, 3), (3, 5), (5, 7), (7, 10))]
    asked = Workload(batches, **workload)  # type: ignore[arg-type]
    found = plan_layout(model, Cluster.uniform(devices), asked, build(name, devices, batches), tuple(layers)).plan
    assert found is not None
    return found


# ------------------------------------------------------------------ torch's CSV


def test_the_csv_of_1f1b_is_that_of_torchs_documentation() -> None:
    """A row a rank, op texts as torch has them."""
    assert to_torch_csv(named("1f1b", 2, 3)).splitlines() == ["0F0,0F1,0B0,0F2,0B1,0B2", "1F0,1B0,1F1,1B1,1F2,1B2"]


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "interleaved-zb"])
def test_what_is_read_back_is_the_plan(name: str, tmp_path: Path) -> None:
    """Its orders are kept, lowering places the messages: the same step and peaks."""
    made = named(name, 4, 8, model=chain(4))
    (tmp_path / "orders.csv").write_text(to_torch_csv(made))
    problem = made.problem
    layout = read_torch_csv(tmp_path / "orders.csv")
    again = plan_layout(problem.model, problem.cluster, problem.workload, layout, made.stages).plan
    assert again is not None
    assert check(again) == []
    assert again.orders == made.orders
    assert again.forecast is not None
    assert made.forecast is not None
    assert (again.forecast.step_s, again.forecast.peak_bytes) == (made.forecast.step_s, made.forecast.peak_bytes)
    assert again.forecast.bound_s <= again.forecast.step_s


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_random_plans_are_expressed_whole_or_refused(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """What torch has no words for is named; all else comes back op by op."""
    for made in plans_of(random_candidate(seed), seed, 1, split=seed % 2 == 0):
        path = tmp_path_factory.mktemp("csv") / "orders.csv"
        edges = Candidate(made.problem, made.stages, made.pipelines).costs.edges
        simple = (
            len({p.forward for p in made.pipelines}) == 1
            and all(policy == KEEP for row in made.stash for policy in row)
            and all(made.orders)
            and all(consumer == producer + 1 for producer, consumer, _ in edges)
        )
        if simple:
            path.write_text(to_torch_csv(made))
            assert read_torch_csv(path).orders == torch_orders(made)
            continue
        reason = "cannot be expressed|one rank a stage|computes nothing|to the next, not from stage"
        with pytest.raises(InterchangeError, match=reason):
            to_torch_csv(made)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("chimera", "one rank a stage"),
        ("pipedream", "at the end of a step, not by 'stash'"),
    ],
)
def test_what_torch_cannot_run_is_named(schedule: str, reason: str) -> None:
    model = uniform(4, parameter_bytes=8)
    made = plan(model, Cluster.uniform(4), Workload(4), SearchSpace(schedule), 20, bound=False).plan
    assert made is not None
    with pytest.raises(InterchangeError, match=reason):
        to_torch_csv(made)


def test_torchs_own_files_are_read(tmp_path: Path) -> None:
    """With pauses, communication, sharded parameters and overlapping ops: lowering places its own."""
    path = tmp_path / "its.csv"
    path.write_text(
        "0UNSHARD,0F0,0SEND_F0,,0F1,0SEND_F1,0RECV_B0,(0B0;0F2)OVERLAP_F_B,0B1,0B2,0REDUCE_GRAD,0RESHARD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1F1,1I1,1F2,1W1,1B2\n"
    )
    layout = read_torch_csv(path)
    assert (layout.stages, len(layout.pipelines[0].micro_batches)) == (2, 3)
    found = plan_layout(chain(1), Cluster.uniform(2), Workload(3), layout)
    assert found.plan is not None
    assert check(found.plan) == []
    computed = [str(op) for op in found.plan.orders[1] if op.kind.name in "FBIW"]
    assert " ".join(computed) == "1F0 1B0 1F1 1I1 1F2 1W1 1B2"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0F0,0X0", "row 0, column 1: '0X0' is no action"),
        ("0F0,0F", "'0F' is no action"),
        ("0F0\n\n", "device 1 computes nothing"),
        ("0F0,0B0,0F0", "0F0 is there 2 times"),
        ("0F0,0I0", "micro-batch 0: must have F with B, or F with I and W, has F, I"),
        ("0F0,0B0\n0F1,0B1", "stage 0 is on devices 0 and 1"),
        ("1F0,1B0", "stage 0 is on no device"),
        ("0F999999999", "micro-batches"),
        ("", "device 0 computes nothing"),
    ],
)
def test_wrong_files_are_one_line(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(InterchangeError, match=re.escape(error)):
        read_torch_csv(path)


def test_orders_that_do_not_fit_say_what_lacks() -> None:
    """GPipe holds all stashes: an answer without a plan, with the bytes missing."""
    model = uniform(2, stash_bytes=10)
    found = plan_layout(model, Cluster.uniform(2, memory_bytes=35), Workload(4), build("gpipe", 2, 4))
    assert (found.status, found.plan) == ("unknown", None)
    assert {lack.over_bytes for lack in found.violations} == {5}


# ------------------------------------------------------------------ Megatron's flags


def layout_of(made: Plan) -> str:
    match = re.search(r'--pipeline-model-parallel-layout "(.*)"', to_megatron(made))
    assert match is not None
    return match[1]


def spelled_out(layout: str) -> list[str]:
    """Megatron's reading of a layout: repetitions multiplied, a string a stage."""
    layout = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
    return re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), layout).split("|")


def test_a_layout_says_the_cut() -> None:
    """Embedding, decoder layers and loss; equal stages are written once."""
    made = cut_by_blocks("1f1b", 4, 8)
    assert layout_of(made) == "Et|(t|)*2tL"
    assert spelled_out(layout_of(made)) == ["Et", "t", "t", "tL"]
    assert "--num-layers 4\n" in to_megatron(made)


def test_what_is_lost_is_said() -> None:
    """Split backwards and the order; and what Megatron's own order will take."""
    made = cut_by_blocks("zb-h1", 4, 8)
    lines = [line for line in to_megatron(made).splitlines() if line.startswith("#")]
    assert any("split backwards" in line for line in lines)
    own = cut_by_blocks("1f1b", 4, 8)
    assert own.forecast is not None
    assert any(f"Megatron's order {own.forecast.step_s:g} s" in line for line in lines), lines


def test_interleaved_stages_are_listed_in_the_order_of_the_forward() -> None:
    made = cut_by_blocks("interleaved", 2, 4)
    text = to_megatron(made)
    assert "--pipeline-model-parallel-size 2\n" in text
    assert "runs interleaved-2" in text
    assert len(spelled_out(layout_of(made))) == 4


@pytest.mark.parametrize(("schedule", "reason"), [("zb-v", "stage 2 is on device 1"), ("chimera", "share devices")])
def test_placements_that_megatron_has_not_are_refused(schedule: str, reason: str) -> None:
    with pytest.raises(InterchangeError, match=reason):
        to_megatron(named(schedule, 2 if schedule == "zb-v" else 4, 8, model=chain(4)))


def test_a_block_that_is_cut_is_refused() -> None:
    with pytest.raises(InterchangeError, match=r"'block1' is cut before stage 1.*profile --layers block"):
        to_megatron(named("1f1b", 2, 4, model=chain(3)))


def test_replicas_are_data_parallel_groups() -> None:
    """Two groups of two, half the micro-batches each: one layout, and a step as long as each group's."""
    model, workload = chain(4), Workload(8)
    layout = build("1f1b", 2, 4)
    routes = tuple(Pipeline((2 * g, 2 * g + 1), (2 * g, 2 * g + 1), tuple(range(4 * g, 4 * g + 4))) for g in range(2))
    orders = [
        [op._replace(micro_batch=op.micro_batch + 4 * g) for op in layout.orders[r]] for g in (0, 1) for r in (0, 1)
    ]
    names = tuple(layer.name for layer in model.layers)
    problem = Problem(model, Cluster.uniform(4), workload)
    made = assemble(Candidate(problem, (names[:5], names[5:]), routes), orders)
    text = to_megatron(made)
    assert layout_of(made) == "Et*2|t*2L"
    assert {"--pipeline-model-parallel-size 2", "--global-batch-size 8"} < set(text.splitlines())
    assert made.forecast is not None
    assert (
        f"a step of the plan {made.forecast.step_s:g} s, of this cut in Megatron's order {made.forecast.step_s:g} s"
        in text
    )
    with pytest.raises(InterchangeError, match="one rank a stage"):
        to_torch_csv(made)
