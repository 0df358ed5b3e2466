"""Stage programs through torch's compiler: the same numbers, checked against eager torch before training."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from runs import STEPS, Case, assert_equals_reference, planned
from traced_stages import traced

from contraflow.executor.basics.errors import RunError
from contraflow.executor.measure import reach
from contraflow.executor.measure.profile import profile_model
from contraflow.executor.measure.reach import Reaches
from contraflow.executor.run.launch import execute
from contraflow.executor.stage import engines
from contraflow.executor.stage.compiled import CompiledPart
from contraflow.executor.state.compiling import compiled_stages
from contraflow.models import build_layer, resolve
from contraflow.models.data import load
from contraflow.planner import Plan, simulate

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("stash", ["keep", "offload"])
def test_compiled_programs_equal_single_process(stash: str) -> None:
    """A tiny GPT, with the self-check on the compiled programs; a stash that leaves comes apart as planned."""
    case = Case("1f1b", "gpt-tiny", 2, 4, stash=stash)
    result = execute(planned(case), STEPS, transport="threads", compiled=True, return_state=True)
    assert_equals_reference(case, result)


@needs_compiler
@pytest.mark.slow
def test_a_compiled_part_adds_in_place_and_empties_its_list() -> None:
    """Arguments die at their last use, as in programs that are not compiled; every layout in memory works."""

    def program(arguments: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x, y, total = arguments
        arguments.clear()
        total.add_(x @ y)
        return (x.t() + y,)

    part = CompiledPart(program, "a part")
    x, y, total = torch.randn(3, 3), torch.randn(3, 3), torch.zeros(3, 3)
    for first in (x, x.t()):
        before, given = total.clone(), [first, y, total]
        (result,) = part(given)
        assert given == []
        torch.testing.assert_close(result, first.t() + y)
        torch.testing.assert_close(total, before + first @ y)


def timed(seconds: float, **more: int) -> dict[str, Any]:
    """A layer's entry in model.json."""
    return {"forward_s": seconds, "backward_input_s": seconds, "backward_weight_s": seconds, "stash_bytes": 8, **more}


def test_a_layer_goes_through_the_compiler_where_that_is_faster() -> None:
    """By more than measurements differ; what compiled code allocates within is not seen, so bytes are the larger."""
    plain, faster = timed(1.0, workspace_bytes=5), timed(0.9, workspace_bytes=3)
    better = Reaches(()).better(plain, faster)
    assert better == {**faster, "workspace_bytes": 5, "compiled": True}
    assert Reaches(()).better(plain, timed(0.99, workspace_bytes=9)) == plain


def test_a_stage_is_compiled_where_most_of_its_seconds_are_such_layers() -> None:
    """Unless all or none are asked for."""
    plan = planned(Case("1f1b", "mlp-tiny", 2, 4))
    first = plan.stages[0][0]
    assert len(plan.stages) == 2
    assert compiled_stages(plan) == frozenset()
    assert compiled_stages(plan, True) == {0, 1}
    assert compiled_stages(marked(plan, {first})) == ({0} if plan.stages[0] == (first,) else frozenset())
    assert compiled_stages(marked(plan, set(plan.stages[1]))) == {1}
    assert compiled_stages(marked(plan, set(plan.stages[1])), False) == frozenset()


def marked(plan: Plan, names: set[str]) -> Plan:
    """The plan of a model in which these layers were faster compiled, and all layers take as long."""
    layers = [
        replace(x, forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, compiled=x.name in names)
        for x in plan.problem.model.layers
    ]
    model = replace(plan.problem.model, layers=tuple(layers))
    made = replace(plan, problem=replace(plan.problem, model=model))
    return made.with_forecast(simulate(made).forecast())


@needs_compiler
@pytest.mark.slow
def test_a_profile_says_what_is_compiled_and_the_plan_s_stages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it pays at any price, all layers: they keep their bytes, and a plan of them trains as one process does."""
    monkeypatch.setattr(reach, "PAYS", -1e9)
    case = Case("1f1b", "mlp-tiny", 2, 4)
    content = profile_model(resolve(case.model), 4, rounds=1, compiled=True)
    assert all(layer["compiled"] for layer in content["layers"])
    for layer, other in zip(content["layers"], profile_model(resolve(case.model), 4, rounds=1)["layers"], strict=True):
        assert layer["stash_bytes"] == other["stash_bytes"]
        assert layer["workspace_bytes"] >= other["workspace_bytes"]
    plan = marked(planned(case), {layer["name"] for layer in content["layers"]})
    made: list[str] = []
    monkeypatch.setattr(engines, "compile_program", lambda program: made.append(program.label))
    execute(plan, 1, transport="threads", compiled=False)
    assert not made
    execute(plan, 1, transport="threads")
    assert set(made) == {"stage 0", "stage 1"}
    monkeypatch.undo()
    assert_equals_reference(case, execute(plan, STEPS, transport="threads", return_state=True))


def test_random_layers_run_uncompiled_and_say_so() -> None:
    """The compiler's dropout would draw other numbers than every other plan's."""
    from contraflow.executor.stage.compiled import compile_program

    model = resolve("gpt-tiny-dropout")
    assert isinstance(model.data, str)
    x, _ = load(model.data).batch(0, 0, 0, 2)
    program = traced([build_layer(model.layers[0], 0, 0)], [0], x)
    assert program.has_random
    with pytest.warns(UserWarning, match="stage of layers 0 draws random numbers: it runs uncompiled"):
        assert not compile_program(program)


def test_no_compiler_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before training starts."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RunError, match=r"needs a C\+\+ compiler: no no-such-compiler found"):
        execute(planned(Case("1f1b", "mlp-tiny", 2, 4)), 1, transport="threads", compiled=True)
    plan = planned(Case("1f1b", "mlp-tiny", 2, 4))
    timed_so = marked(plan, {layer.name for layer in plan.problem.model.layers})
    with pytest.raises(RunError, match=r"timed compiled, and .* no no-such-compiler found .*; --no-compile runs them"):
        execute(timed_so, 1, transport="threads")
    with pytest.raises(RunError, match="no no-such-compiler found"):
        profile_model(resolve("mlp-tiny"), 4, compiled=True)
