"""Eager stage programs compute what graphs and plain torch compute, and run what no graph can hold."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import STEPS, Case, assert_equals_reference, planned, worst_excess
from torch import Tensor, nn
from traced_stages import Part

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.options import Engine
from contraflow.executor.basics.training import Training
from contraflow.executor.place.memory import StorageTracker, unique_bytes
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.executor.stage.eager import EagerProgram
from contraflow.executor.stage.engines import Building, EngineNotice, build_program
from contraflow.executor.stage.program import named_buffers, named_parameters
from contraflow.executor.stage.tracing import StageLayers, TraceError
from contraflow.executor.state.replica import Blueprint, StageReplica
from contraflow.models import build_layer, resolve

MODELS = {"gpt-tiny-dropout": 4, "resnet-tiny": 2, "lstm-tiny": 4, "mlp-tiny": 1}
"""Where the stage begins that is looked at: it reaches to the end."""

pytestmark = pytest.mark.filterwarnings("ignore::contraflow.executor.stage.engines.EngineNotice")


# ---------------------------------------------------------------- equal to graphs and plain torch


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["B", "I+W", "R", "away"])
def test_both_engines_compute_the_same(name: str, way: str) -> None:
    """Loss, gradients and statistics, also where the stash was taken apart and put together in between."""
    stage = Part.of(name, MODELS[name])
    results = []
    for program in (stage.program, stage.eager()):
        buffers, sums, scale = stage.buffers(), stage.zeros(), torch.tensor(0.25)
        output, stash = program.forward(stage.parameters(), buffers, stage.x, stage.target, seed=5)
        if way == "R":
            stash = program.remake(stage.parameters(), buffers, stage.x, stage.target, seed=5)
        if way == "away":
            pieces, rest = program.stash_layout.pack(stash)
            assert sum(piece.nbytes for piece in pieces) == program.stash_bytes
            stash = rest.unpack([piece.clone() for piece in pieces])
        if way == "I+W":
            grad, weight_stash = program.backward_input(stash, stage.parameters(), scale)
            program.backward_weight(weight_stash, sums)
        else:
            grad = program.backward(stash, stage.parameters(), scale, sums)
        results.append({"output": output, "input": grad, **sums, **{f"buffer {k}": t for k, t in buffers.items()}})
    for key, want in results[0].items():
        torch.testing.assert_close(results[1][key], want, rtol=1e-5, atol=1e-7, msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_both_engines_keep_the_same_bytes(name: str) -> None:
    """What is known before, what one forward leaves, and what I leaves for W."""
    stage = Part.of(name, MODELS[name])
    graph, eager = stage.program, stage.eager()
    assert (eager.stash_bytes, eager.accumulator_names) == (graph.stash_bytes, graph.accumulator_names)
    assert eager.weight_stash_bytes <= 1.02 * graph.weight_stash_bytes
    assert (eager.has_random, eager.can_remake, eager.saves_input) == (
        graph.has_random,
        graph.can_remake,
        graph.saves_input,
    )
    for program in (graph, eager):
        buffers = stage.buffers()
        _, stash = program.forward(stage.parameters(), buffers, stage.x, stage.target)
        known = [*stage.parameters().values(), *buffers.values()]
        assert unique_bytes([*known, *stash.tensors]) - unique_bytes(known) == program.stash_bytes == stash.nbytes


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("halves", [False, True], ids=["B", "I+W"])
def test_an_eager_backward_frees_its_stash_on_the_way(name: str, halves: bool) -> None:
    """Nothing is left but the input's gradient; the peak is the graph's."""
    stage, peaks = Part.of(name, MODELS[name]), []
    for program in (stage.program, stage.eager()):
        buffers, sums, scale = stage.buffers(), stage.zeros(), torch.tensor(1.0)
        known = [*stage.parameters().values(), *buffers.values(), *sums.values(), stage.x, stage.target, scale]
        with StorageTracker(known) as tracker:
            stash = program.forward(stage.parameters(), buffers, stage.x, stage.target)[1]
            tracker.reset_peak()
            if halves:
                grad, weight_stash = program.backward_input(stash, stage.parameters(), scale)
                assert weight_stash.nbytes == program.weight_stash_bytes
                program.backward_weight(weight_stash, sums)
            else:
                grad = program.backward(stash, stage.parameters(), scale, sums)
            peaks.append(tracker.peak_bytes)
            assert grad is not None
            assert tracker.current_bytes == grad.nbytes
        with pytest.raises(ValueError, match=r"stage.*: the stash was consumed already"):
            program.backward(stash, stage.parameters(), scale, sums)
        if halves:
            with pytest.raises(ValueError, match=r"stage.*: the weight stash was consumed already"):
                program.backward_weight(weight_stash, sums)
    assert peaks[1] <= 1.03 * peaks[0]


def test_recurrent_layers_keep_no_weights_between_forwards() -> None:
    """Those of a version that has been replaced go with its stash, not with the next forward."""
    module, x = nn.LSTM(4, 4), torch.randn(3, 2, 4)
    program = EagerProgram(StageLayers((Outputs(module),), (0,), None, True, "stage"), x, None)
    own = {f"0.inner.{name}": tensor.detach().clone() for name, tensor in module.named_parameters()}
    stash = program.forward(own, {}, x)[1]
    assert {weight.data_ptr() for weight in module._flat_weights} == {p.data_ptr() for p in module.parameters()}
    sums = {name: torch.zeros_like(tensor) for name, tensor in own.items()}
    assert program.backward(stash, own, torch.ones(3, 2, 4), sums) is not None


class Outputs(nn.Module):
    """The first of what a module returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)[0]
        return found


class Wired(nn.Module):
    """A layer put together from named parts: weights used twice, normalised, sliced, frozen, on side paths."""

    def __init__(self, parts: list[str]) -> None:
        super().__init__()
        self.parts = parts
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.gain, self.frozen = nn.Parameter(torch.ones(4)), nn.Linear(4, 4).requires_grad_(False)
        self.norm, self.stack = nn.LayerNorm(4), nn.Parameter(torch.randn(3, 4, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = getattr(self, f"_{part}")(x)
        return x

    def _linear(self, x: Tensor) -> Tensor:
        return self.a(x).tanh()

    def _both(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.b(x)) * self.a(x) + x

    def _normed(self, x: Tensor) -> Tensor:
        weight = self.b.weight / self.b.weight.norm(dim=1, keepdim=True)
        return self.norm(x @ weight) * self.gain

    def _chunks(self, x: Tensor) -> Tensor:
        first, second = (x @ self.stack[0]).chunk(2, -1)
        return torch.cat([second.exp() * 0.1, first @ self.stack[1, :2, :2]], -1)

    def _frozen(self, x: Tensor) -> Tensor:
        return self.frozen(x).relu_() + self.gain.sum()

    def _aside(self, x: Tensor) -> Tensor:
        return x + (self.stack[2] @ self.a.weight).mean() * self.norm.bias


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    chain=st.lists(
        st.lists(st.sampled_from(["linear", "both", "normed", "chunks", "frozen", "aside"]), max_size=4),
        min_size=1,
        max_size=3,
    ),
    first=st.integers(0, 1),
)
def test_any_wiring_of_parameters_comes_apart_rightly(chain: list[list[str]], first: int) -> None:
    """B, I and W, and R equal plain autograd whatever path parameters take to the output."""
    torch.manual_seed(0)
    modules, ids = tuple(Wired(parts) for parts in chain), tuple(range(first, first + len(chain)))
    x = torch.randn(3, 4)
    program = EagerProgram(StageLayers(modules, ids, None, first > 0, "stage"), x, None)
    program.self_check(modules, x)


# ---------------------------------------------------------------- what no graph can hold, trained


def _run(case: Case, training: Training | None = None, engine: Engine = "auto", **options: object) -> RunResult:
    options = {"dtype": case.dtype, "transport": "threads", "return_state": True, "training": training, **options}
    plan = planned(case, engine=engine)
    result = execute(plan, STEPS, case.model, engine=engine, **options)  # type: ignore[arg-type]
    assert_equals_reference(case, result, training)
    assert max(worst_excess(result).values()) <= 1
    return result


BRANCHING = Case("1f1b", "untraceable:branching", 2, 4)
CUSTOM = Case("chimera", "untraceable:custom", 2, 4, "adam")


@pytest.mark.parametrize(
    "case",
    [
        BRANCHING,
        CUSTOM,
        Case("1f1b", "untraceable:branching", 2, 4, halves=True),
        Case("1f1b", "untraceable:branching", 2, 4, stash="recompute"),
        Case("1f1b", "untraceable:custom", 2, 4, "adam", stash="offload"),
        Case("gpipe", "untraceable:custom", 2, 4, "adam", stash="ship", halves=True),
        Case("1f1b", "untraceable:hiding", 2, 4, halves=True),
        Case("1f1b", "untraceable:counting", 2, 4),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_untraceable_models_train_as_in_one_process(case: Case) -> None:
    """Data-dependent paths, custom functions, Python state: losses, tensors, and no peak above the planned one."""
    with pytest.warns(EngineNotice, match="stage [01]: eager engine, because ") as told:
        _run(case)
    notices = [str(warning.message) for warning in told if str(warning.message).startswith("stage")]
    assert len(notices) == len(set(notices)) <= 2
    assert all("\n" not in notice for notice in notices)


def test_python_state_goes_on_through_micro_batches_of_either_size() -> None:
    """The last micro-batch of a step has one sample of two; it counts as any other."""
    with pytest.warns(EngineNotice):
        _run(Case("1f1b", "untraceable:counting", 2, 4), Training(mini_batch=7))


@pytest.mark.parametrize("model", ["gpt-tiny-dropout", "resnet-tiny"])
def test_evaluation_leaves_eager_training_as_it_is(model: str) -> None:
    """Held-out losses are those of evaluation mode, and the layers stay in training mode."""
    _run(Case("1f1b", model, 2, 4), Training(evaluate_every=2), engine="eager", self_check=False)


@pytest.mark.slow
def test_processes_forward_their_notices() -> None:
    """Spawned ranks train the same, and the parent tells why they are slower, once a stage."""
    plan = planned(CUSTOM)
    with pytest.warns(EngineNotice) as told:
        result = execute(plan, STEPS, CUSTOM.model, dtype=CUSTOM.dtype, return_state=True)
    assert_equals_reference(CUSTOM, result)
    assert sorted(str(warning.message).partition(":")[0] for warning in told) == ["stage 0", "stage 1"]


@pytest.mark.parametrize(
    "case",
    [
        Case("1f1b", "resnet-tiny", 2, 4, halves=True),
        Case("chimera", "resnet-tiny", 2, 4, stash="odd recompute"),
        Case("gpipe", "gpt-tiny-dropout", 2, 4, stash="ship"),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_any_model_may_be_run_eagerly(case: Case) -> None:
    """With engine="eager": no notice, and the plan's memory is enough."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", EngineNotice)
        _run(case, engine="eager")


@pytest.mark.parametrize("engine", ["graph", "eager"])
@pytest.mark.parametrize(
    "case",
    [
        Case("1f1b", "lstm-tiny", 2, 4, stash="offload"),
        Case("chimera", "lstm-tiny", 2, 4, halves=True),
        Case("interleaved", "lstm-tiny", 2, 4, stash="odd recompute"),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_an_lstm_trains_as_in_one_process(case: Case, engine: str) -> None:
    """On graphs, and eagerly."""
    _run(case, engine=engine)


# ---------------------------------------------------------------- limits, told in one line


def test_a_larger_stash_than_planned_names_the_stage_and_both_numbers() -> None:
    """The path that the profile saw leaves less than the longer one."""
    module = build_layer(resolve("untraceable:growing").layers[2], 0, 2)
    stage = StageLayers((module,), (2,), None, True, "stage 3")
    program, x = EagerProgram(stage, -torch.ones(2, 16), None), torch.ones(2, 16)
    parameters = {key: t.detach() for key, t in named_parameters(stage.modules, stage.layer_ids).items()}
    with pytest.raises(ValueError, match=rf"^stage 3: .* a stash of \d+ bytes, the plan has {program.stash_bytes}$"):
        program.forward(parameters, {}, x)
    roomy = EagerProgram(stage, -torch.ones(2, 16), None, stash_limit=1 << 20)
    stash = roomy.forward(parameters, {}, x)[1]
    assert roomy.stash_bytes < stash.nbytes <= 1 << 20
    with pytest.raises(ValueError, match=r"^stage 3: a stash of \d+ tensors, \d+ bytes, .* cannot leave its device$"):
        roomy.stash_layout.pack(stash)


def test_a_run_ends_where_a_micro_batch_outgrows_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names rank, stage, operation and micro-batch, too."""
    original = Blueprint.build

    def tight(self: Blueprint, *rest: Any) -> StageReplica:
        replica = original(self, *rest)
        assert isinstance(replica.program, EagerProgram)
        replica.program.stash_limit = 100
        return replica

    monkeypatch.setattr(Blueprint, "build", tight)
    with pytest.raises(
        ExecutionError, match=r"^rank \d, stage (\d), op \1F0, micro-batch 0.* bytes, the plan has 100$"
    ):
        execute(planned(BRANCHING), STEPS, BRANCHING.model, transport="threads")


def test_hidden_tensors_are_counted_and_keep_the_stash_at_home() -> None:
    """A mask in ctx is part of the stash's bytes, but cannot be moved."""
    module = build_layer(resolve("untraceable:hiding").layers[2], 0, 2)
    x = torch.randn(5, 16)
    program = EagerProgram(StageLayers((module,), (2,), None, True, "stage 1"), x, None)
    assert program.hidden_bytes == 5 * 16
    with pytest.raises(ValueError, match=r"^stage 1: a layer keeps 80 bytes outside save_for_backward"):
        program.stash_layout.pack(program.forward(dict(_parameters(module)), dict(_buffers(module)), x)[1])


def _parameters(module: nn.Module) -> dict[str, Tensor]:
    return {key: tensor.detach() for key, tensor in named_parameters([module], [2]).items()}


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return named_buffers([module], [2])


def test_python_state_wants_one_device_and_order() -> None:
    """Replicas would each count by themselves, and a recomputation twice."""
    for case, reason in (
        (Case("chimera", "untraceable:counting", 2, 4), "Python state"),
        (Case("1f1b", "untraceable:counting", 2, 4, stash="recompute"), "cannot be recomputed"),
    ):
        with pytest.raises(RunError, match=f"^stage [01]: .*{reason}"):
            execute(planned(case), 1, case.model, transport="threads")


def test_a_stage_that_neither_engine_runs_gives_both_reasons() -> None:
    """In one line that names it."""
    module = build_layer(resolve("untraceable:nonsense").layers[2], 0, 2)
    layers = StageLayers((module,), (2,), None, True, "stage 1")
    with pytest.raises(TraceError, match=r"^stage 1: neither engine can run it\. graph: .+; eager: .*in place"):
        build_program(layers, torch.randn(3, 16), None, Building())


def test_an_unknown_engine_is_refused() -> None:
    """Before anything starts."""
    with pytest.raises(RunError, match="unknown engine 'steam'; known: auto, graph, eager"):
        execute(planned(BRANCHING), 1, BRANCHING.model, engine="steam")  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=r"stage \d cannot be traced"):
        execute(planned(BRANCHING), 1, BRANCHING.model, transport="threads", engine="graph")


def test_profiles_are_of_the_engine_that_is_asked_for(tmp_path: Path) -> None:
    """Autograd makes no part of a stash again; a preset runs nothing, so there is nothing to choose."""
    for engine, partly in (("auto", True), ("eager", False)):
        out = tmp_path / f"{engine}.json"
        found = CliRunner().invoke(cli, ["profile", "gpt-tiny", "--load", "1", "--engine", engine, "-o", str(out)])
        assert found.exit_code == 0, found.output
        assert any(layer.get("selective_bytes") for layer in json.loads(out.read_text())["layers"]) == partly
    refused = CliRunner().invoke(cli, ["profile", "gpt-tiny", "--engine", "eager", "--device", "A100-40GB"])
    assert refused.exit_code == 2
    assert "--engine eager is for measuring here, not for the preset A100-40GB" in refused.output


@pytest.mark.slow
def test_commands_say_in_one_line_what_runs_eagerly(tmp_path: Path) -> None:
    """On stderr; the result goes to stdout as ever."""
    output = str(tmp_path / "model.json")
    result = CliRunner().invoke(cli, ["profile", "untraceable:counting", "-o", output])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "eager engine" in line]
    assert len(lines) == 1
    assert lines[0].startswith("contraflow: layer layer1: eager engine, because ")
