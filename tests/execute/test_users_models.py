"""Whatever a user's model and data draw, and in whatever order: every rank trains what plain torch trains."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import users_models
from instances import by_orders, named
from runs import sized
from torch import nn
from users_models import (
    ByTheClock,
    Drawn,
    Ever,
    FromDefaults,
    Normal,
    OwnTargets,
    Turning,
    Two,
    Unregistered,
    chain,
    tied,
)

from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.executor.stage.engines import EngineNotice
from contraflow.executor.step.course import Course
from contraflow.executor.step.interpreter import Interpreter
from contraflow.executor.step.step_state import StepRecord
from contraflow.models import LayeredModel, resolve
from contraflow.models.protocol import build_layer
from contraflow.planner.check import check
from contraflow.planner.plan import Kind, Op, Pipeline, Plan
from contraflow.planner.problem.workload import Workload

MICRO_BATCHES = 4


def plan_of(model: LayeredModel, schedule: str, devices: int = 2, optimizer: str = "momentum") -> Plan:
    """Layers dealt out evenly."""
    return named(schedule, devices, MICRO_BATCHES, model=sized(model), workload=Workload(MICRO_BATCHES, optimizer))


def apart(model: LayeredModel, optimizer: str = "sgd") -> Plan:
    """Device 0 trains both layers; device 1 runs the second one's forwards."""
    first = [Op(Kind.F, 0, 0), Op(Kind.F, 0, 1), *(Op(Kind.B, s, m) for m in (0, 1) for s in (1, 0))]
    lists = [first, [Op(Kind.F, 1, 0), Op(Kind.F, 1, 1)]]
    return by_orders(sized(model), [Pipeline((0, 1), (0, 0), (0, 1))], lists, Workload(2, optimizer))


def assert_trains(
    model: LayeredModel, result: RunResult, micro_batches: int, optimizer: str, steps: int, seed: int = 0
) -> None:
    """Losses and tensors as plain torch's."""
    expected = train_reference(model, micro_batches, 2, optimizer, steps, seed=seed)
    assert result.losses == pytest.approx(expected.losses, abs=1e-5)
    assert result.state is not None
    for name, value in expected.state.items():
        torch.testing.assert_close(result.state[name], value, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tied_and_other_parameters_of_one_shape_reach_a_forward_device(optimizer: str) -> None:
    """They are paired by name, and sent once the tied one has been updated, by another stage's STEP."""
    model = chain(Two, Two, ties=(tied,))
    result = execute(apart(model, optimizer), 4, model=model, transport="threads", return_state=True)
    assert_trains(model, result, 2, optimizer, 4)


def test_new_parameters_before_all_their_steps_are_refused() -> None:
    """A tied parameter is updated by the lowest stage that its device trains."""
    plan = apart(chain(Two, Two, ties=(tied,)))
    steps = [k for k, op in enumerate(plan.orders[0]) if op.kind is Kind.STEP]
    (sent,) = [k for k, op in enumerate(plan.orders[0]) if op.kind is Kind.SEND_P]
    order: Sequence[Op] = plan.orders[0]
    assert [order[k].stage for k in steps] == [1, 0]
    assert sent > steps[1]
    early = [*order[: steps[0] + 1], order[sent], *order[steps[0] + 1 : sent], *order[sent + 1 :]]

    assert any(
        "0STEP" in str(v) and "SEND_P" in str(v) for v in check(replace(plan, orders=(tuple(early), plan.orders[1])))
    )


@pytest.mark.parametrize("name", ["drawn", "modules"])
@pytest.mark.parametrize("schedule", ["gpipe", "chimera"])
def test_numbers_from_any_generator_follow_from_the_seed(name: str, schedule: str) -> None:
    """numpy's, Python's and torch's, in the model's function and its layers and in the data: bit for bit, each time."""
    model = resolve(f"users_models:{name}")
    plan = plan_of(model, schedule)
    results = [
        execute(plan, 3, model=f"users_models:{name}", transport="threads", return_state=True, seed=3) for _ in range(3)
    ]
    for other in results[1:]:
        assert other.losses == results[0].losses
        assert other.state is not None
        assert results[0].state is not None
        assert all(torch.equal(other.state[key], value) for key, value in results[0].state.items())
    assert_trains(model, results[0], MICRO_BATCHES, "momentum", 3, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drawn", "modules"])
def test_processes_and_threads_start_alike(name: str) -> None:
    """To the bit."""
    plan = plan_of(resolve(f"users_models:{name}"), "chimera")
    threads, processes = (
        execute(plan, 3, model=f"users_models:{name}", transport=transport, return_state=True)
        for transport in ("threads", "processes")
    )
    assert threads.losses == processes.losses
    assert threads.state is not None
    assert processes.state is not None
    assert all(torch.equal(processes.state[key], value) for key, value in threads.state.items())


def test_a_caller_s_random_state_is_left_alone() -> None:
    """Building layers and asking for data draws nothing from it."""

    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    def seeds() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seeds()
    expected = draws()
    seeds()
    build_layer(resolve("users_models:drawn").layers[0], 0, 0)
    assert draws() == expected
    assert users_models.Drawn is Drawn
    assert Normal().batch(0, 0, 0, 1)[0].shape == (1, users_models.WIDTH)


def test_holders_of_a_stage_start_from_one_copy() -> None:
    """Initial values by the clock: every holder gets the lowest rank's, and the user is told."""
    model = chain(ByTheClock, ByTheClock, ByTheClock)
    with pytest.warns(EngineNotice, match=r"stage 0: the initial .* of ranks 0 and 1 differ.* rank 0's") as told:
        result = execute(plan_of(model, "chimera"), 3, model=model, transport="threads", return_state=True)
    assert len([w for w in told if "initial" in str(w.message)]) == 2
    assert len(set(result.losses)) == 3


def test_values_that_cannot_be_sent_are_refused() -> None:
    """A tensor that is neither parameter nor buffer is part of a layer's code."""
    model = chain(Unregistered, Unregistered)
    with pytest.raises(RunError, match=r"^layer 'a': ranks 0 and 1 have other values in shift, .*register it"):
        execute(plan_of(model, "chimera"), 1, model=model, transport="threads")


def test_data_that_is_never_the_same_is_refused() -> None:
    """On one rank by itself, and between a rank's inputs and another one's targets."""
    model = chain(Drawn, Drawn, data=Ever())
    with pytest.raises(RunError, match=r"^data set 'ever-new' gives rank 0 other inputs when it asks again"):
        execute(plan_of(model, "gpipe"), 1, model=model, transport="threads")
    model = chain(Drawn, Drawn, data=OwnTargets())
    with pytest.raises(RunError, match=r"^data set 'own-targets' gives ranks 0 and 1 different targets"):
        execute(plan_of(model, "gpipe"), 1, model=model, transport="threads")


@pytest.mark.parametrize("what", ["parameters/b/weight", "buffers/b/scale", "optimizer/momentum_buffer/b/weight"])
def test_holders_that_come_apart_end_the_run(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first step, and before every checkpoint."""
    group, layer, name = what.rsplit("/", 2)
    run = Interpreter.run

    def spoiled(self: Interpreter, course: Course, first: int) -> Iterator[StepRecord]:
        yield from run(self, course, first)
        held = self._worker.replicas[1].weights.named_state(("a", "b"))[f"{group}/{layer}/{name}"]
        if self._worker.transport.rank == 1:
            held.view(-1)[3] += 1e-6

    monkeypatch.setattr(Interpreter, "run", spoiled)
    model = chain(Drawn, Drawn)
    with pytest.raises(ExecutionError, match=f"^ranks 0 and 1 have different {what} after step 1"):
        execute(plan_of(model, "chimera"), 3, model=model, transport="threads")


def test_parameters_registered_in_any_order_are_paired_by_name() -> None:
    """Two replicas whose modules list their parameters in opposite orders train as one."""
    model = chain(Turning, Turning, Turning)
    Turning.turn = False
    result = execute(plan_of(model, "chimera"), 3, model=model, transport="threads", return_state=True)
    assert_trains(model, result, MICRO_BATCHES, "momentum", 3)


@pytest.mark.parametrize("schedule", ["1f1b", "chimera"])
def test_a_model_s_function_is_called_once_for_all_ranks_of_a_process(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for its shapes; the run is plain torch's bit for bit where gradients are summed in its order."""
    calls, function = [], users_models.modules

    def counted() -> list[nn.Module]:
        calls.append(1)
        return function()

    monkeypatch.setattr(counted, "loss", users_models.loss, raising=False)
    monkeypatch.setattr(counted, "data", FromDefaults(), raising=False)
    plan = plan_of(resolve("users_models:modules"), schedule, optimizer="sgd")
    monkeypatch.setattr(users_models, "modules", counted)
    result = execute(plan, 3, model="users_models:modules", transport="threads", return_state=True, seed=3)
    assert len(calls) == 1
    expected = train_reference(resolve("users_models:modules"), MICRO_BATCHES, 2, "sgd", 3, seed=3)
    assert len(calls) == 2
    assert_trains(resolve("users_models:modules"), result, MICRO_BATCHES, "sgd", 3, seed=3)
    if schedule == "1f1b":
        assert result.losses == expected.losses
