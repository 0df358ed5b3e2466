"""Measured times folded back into layer costs: known factors are recovered, real forecasts get better."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import faulty
import pytest
from click.testing import CliRunner
from instances import named
from traces import simulated_run

from contraflow.__main__ import cli
from contraflow.executor.run.launch import execute
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Plan, Problem
from contraflow.planner.plan_file import save_plan
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.overhead import Overhead
from contraflow.planner.problem.workload import Workload
from contraflow.planner.runs.calibration import calibrate, measured
from contraflow.planner.runs.comparison import compare_run
from contraflow.planner.runs.trace import RunTraceError
from contraflow.planner.runs.trace_file import save_trace
from contraflow.planner.schedules import build
from contraflow.planner.simulate import evaluate

LAYERS = 6
MODEL = ModelGraph.chain(
    [Layer(f"layer{k}", 1e-3 * (k + 1), 2e-3, 1e-3 * (LAYERS - k), stash_bytes=8) for k in range(LAYERS)]
)


def scaled(model: ModelGraph, factors: Sequence[float]) -> ModelGraph:
    """The model with layer k's times multiplied by factors[k], its backward by half as much again."""
    return replace(
        model,
        layers=tuple(
            replace(
                x,
                forward_s=f * x.forward_s,
                backward_input_s=1.5 * f * x.backward_input_s,
                backward_weight_s=1.5 * f * x.backward_weight_s,
            )
            for x, f in zip(model.layers, factors, strict=True)
        ),
    )


def plan_of(
    cuts: Sequence[int], schedule: str = "1f1b", cluster: Cluster | None = None, model: ModelGraph = MODEL
) -> Plan:
    """A named schedule whose stages end before these layers."""
    edges = [0, *cuts, len(model.layers)]
    names = [layer.name for layer in model.layers]
    stages = tuple(tuple(names[a:b]) for a, b in zip(edges, edges[1:], strict=False))
    layout = build(schedule, len(stages), 4)
    problem = Problem(model, cluster or Cluster.uniform(len(stages)), Workload(4))
    return assemble(Candidate(problem, stages, layout.pipelines), layout.orders, schedule)


def assert_same_costs(found: ModelGraph, truth: ModelGraph) -> None:
    """All times within round-off; everything else equal."""
    for mine, wanted in zip(found.layers, truth.layers, strict=True):
        for part in ("forward_s", "backward_input_s", "backward_weight_s"):
            assert getattr(mine, part) == pytest.approx(getattr(wanted, part), rel=1e-9), (mine.name, part)
    assert found.fingerprint == truth.fingerprint
    assert found.edges == truth.edges


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "chimera"])
def test_known_factors_of_stages_are_recovered_exactly(schedule: str) -> None:
    """One run: every layer of a stage by the stage's factor, backward apart from forward; so is the step."""
    plan = plan_of([2], schedule)
    truth = scaled(MODEL, [1.25, 1.25, 3.0, 3.0, 3.0, 3.0])
    run = simulated_run(plan, truth)
    found = calibrate(MODEL, [run])
    assert_same_costs(found, truth)
    assert evaluate(plan, found).step_s == pytest.approx(run.step_s, rel=1e-9)


def test_runs_of_several_cuts_tell_the_layers_of_a_stage_apart() -> None:
    """Five cuts and the whole determine six layers: each gets its own factor."""
    truth = scaled(MODEL, [0.5, 2.0, 1.0, 3.0, 0.25, 1.5])
    runs = [simulated_run(plan_of([cut], "zb-h1"), truth) for cut in range(1, LAYERS)]
    assert_same_costs(calibrate(MODEL, runs), truth)


def test_times_are_at_speed_one() -> None:
    """Costs in a model are those of a device of speed 1, whatever the run's devices."""
    cluster = Cluster.from_dict(
        {"nodes": [{"devices": 1, "device": "fast"}, {"devices": 1, "device": "slow"}], "network": {},
         "devices": {"fast": {"memory": 10**9, "speed": 4.0}, "slow": {"memory": 10**9, "speed": 0.5}}}
    )  # fmt: skip
    truth = scaled(MODEL, [2.0] * LAYERS)
    assert_same_costs(calibrate(MODEL, [simulated_run(plan_of([3], cluster=cluster), truth)]), truth)


def test_what_surrounds_an_op_counts_unless_told_otherwise() -> None:
    """A device is taken for that time too; without it, the ops alone."""
    plan, truth = plan_of([3]), scaled(MODEL, [2.0] * LAYERS)
    run = simulated_run(plan, truth, overhead_s=1e-3)
    assert_same_costs(calibrate(MODEL, [run]), truth)
    lean = [m.seconds for m in measured(MODEL, [run], overhead=False)]
    assert [m.seconds - 1e-3 for m in measured(MODEL, [run])] == pytest.approx(lean)


def test_what_the_cluster_counts_already_is_not_counted_again() -> None:
    """Of a plan with overheads, layers get what is left of an op's time and of what surrounds it."""
    truth, cluster = scaled(MODEL, [2.0] * LAYERS), replace(Cluster.uniform(2), overhead=Overhead(2e-3, 1e-3))
    run = simulated_run(plan_of([3], cluster=cluster), truth, overhead_s=1e-3)
    assert_same_costs(calibrate(MODEL, [run]), truth)
    older = replace(run, overhead=Overhead())  # its trace says nothing of them
    forward = sum(x.forward_s for x in calibrate(MODEL, [older]).layers)
    assert forward == pytest.approx(sum(x.forward_s for x in truth.layers) + 2 * 3e-3)


def test_runs_that_contradict_one_another_are_averaged_and_no_cost_is_negative() -> None:
    """One run says that the first five layers take longer than another says of all six."""
    slow, fast = scaled(MODEL, [4.0] * LAYERS), scaled(MODEL, [0.5] * LAYERS)
    runs = [simulated_run(plan_of([5]), slow), simulated_run(plan_of([1]), fast)]
    found = calibrate(MODEL, runs)
    times = [x for layer in found.layers for x in (layer.forward_s, layer.backward_input_s, layer.backward_weight_s)]
    assert min(times) >= 0
    assert sum(x.forward_s for x in fast.layers) < sum(x.forward_s for x in found.layers)
    assert sum(x.forward_s for x in found.layers) < sum(x.forward_s for x in slow.layers)


def test_a_stage_said_to_cost_nothing_is_shared_out_evenly() -> None:
    """And the weight half of a backward that has no halves stays 0."""
    free = ModelGraph.chain([Layer("a", separable=False), Layer("b", separable=False), Layer("c", 1e-3, 1e-3)])
    truth = replace(
        free, layers=(*(replace(x, forward_s=1e-3, backward_input_s=2e-3) for x in free.layers[:2]), free.layers[2])
    )
    assert_same_costs(calibrate(free, [simulated_run(plan_of([2], model=free), truth)]), truth)


def test_another_model_is_refused() -> None:
    """The fingerprint is of names, sizes and edges."""
    other = ModelGraph.chain([replace(layer, parameter_bytes=4) for layer in MODEL.layers])
    with pytest.raises(RunTraceError, match=r"another model: 'model' with fingerprint \w+, not 'model' with"):
        calibrate(other, [simulated_run(plan_of([3]), MODEL)])
    larger = replace(MODEL, micro_batch_size=8)
    with pytest.raises(RunTraceError, match="1 samples a micro-batch, the model has 8"):
        calibrate(larger, [simulated_run(plan_of([3]), MODEL)])


def test_a_real_runs_forecast_gets_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model says a second an op; the machine does it in well under a millisecond."""
    monkeypatch.delenv("FAULT_AT", raising=False)
    plan = faulty.planned(model=scaled(faulty.GRAPH, [1e3, 1e3]))
    run = execute(plan, 6, model="faulty:model", transport="threads", self_check=False).trace
    before = evaluate(plan).step_s
    after = evaluate(plan, calibrate(plan.problem.model, [run])).step_s
    assert abs(after - run.step_s) < 0.1 * abs(before - run.step_s)


# ---------------------------------------------------------------- forecast and measurement


def test_the_causes_add_up_to_the_difference() -> None:
    """Slower operations and time between them, each with its own share of the step."""
    plan, truth = plan_of([3]), scaled(MODEL, [2.0] * LAYERS)
    found = compare_run(plan, simulated_run(plan, truth, overhead_s=1e-3))
    causes = {cause.what: cause.seconds for cause in found.causes}
    assert sum(causes.values()) == pytest.approx(found.step_s - found.forecast_step_s)
    assert causes["operations"] > 0
    assert causes["time between operations"] > 0
    assert causes["messages and waiting"] == pytest.approx(0, abs=1e-12)
    assert "operations explain most" in found.remark
    row = next(row for row in found.ops if (row.kind, row.stage) == (Kind.F.name, 1))
    assert row.measured_s == pytest.approx(2 * row.forecast_s - 1e-3)


def test_a_run_as_forecast_says_so() -> None:
    """Nothing to explain."""
    plan = plan_of([3])
    assert compare_run(plan, simulated_run(plan, MODEL)).remark == "the step is within 2 % of its forecast"


# ---------------------------------------------------------------- the commands


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """model.json, plan.json, another plan of another model, and a run at twice the cost."""
    plan = plan_of([3])
    MODEL.save(tmp_path / "model.json")
    save_plan(plan, tmp_path / "plan.json")
    save_plan(named("1f1b", 2, 4), tmp_path / "other.json")
    save_trace(simulated_run(plan, scaled(MODEL, [2.0] * LAYERS)), tmp_path / "run.json")
    return tmp_path


def command(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(cli, [str(x) for x in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_calibrate_writes_a_model_and_says_what_changes(folder: Path) -> None:
    """A table of the stages and the step on stderr; the model is as good as simulated."""
    code, _, stderr = command(
        "calibrate", folder / "model.json", folder / "run.json", "--plan", folder / "plan.json", "-o", folder / "o.json"
    )
    assert code == 0
    assert "2.000" in stderr
    assert "step: " in stderr
    assert_same_costs(ModelGraph.load(folder / "o.json"), scaled(MODEL, [2.0] * LAYERS))
    code, stdout, _ = command("calibrate", folder / "model.json", folder / "run.json")
    assert json.loads(stdout) == json.loads((folder / "o.json").read_text())
    code, stdout, _ = command("calibrate", folder / "model.json", folder / "run.json", "--json")
    ratios = {row["kind"]: row["ratio"] for row in json.loads(stdout)["stages"]}
    assert ratios == {"F": pytest.approx(2.0), "B": pytest.approx(3.0)}


def test_compare_measured_explains(folder: Path) -> None:
    """A table, or the same as JSON."""
    code, stdout, _ = command("compare", "--measured", folder / "run.json", folder / "plan.json")
    assert code == 0
    assert "operations explain most" in stdout
    code, stdout, _ = command("compare", "--measured", folder / "run.json", folder / "plan.json", "--json")
    content = json.loads(stdout)
    assert {"forecast_step_s", "step_s", "causes", "ops", "devices", "remark"} == set(content)


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "--measured", "run.json", "other.json"),
        ("calibrate", "model.json", "run.json", "--plan", "other.json"),
    ],
)
def test_a_run_of_another_plan_is_refused(
    folder: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2."""
    monkeypatch.chdir(folder)
    code, stdout, stderr = command(*arguments)
    assert (code, stdout) == (2, "")
    assert stderr.count("\n") == 1
    assert "run is of another" in stderr


def test_compare_without_a_run_still_needs_its_options(folder: Path) -> None:
    """As before, naming the first that is missing."""
    code, _, stderr = command("compare", folder / "model.json", "--cluster", folder / "cluster.toml")
    assert code == 2
    assert "give one of --micro-batches and --samples" in stderr
