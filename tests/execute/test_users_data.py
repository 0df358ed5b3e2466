"""Runs on loaders and data sets of torch: whatever the plan, the numbers are those of a plain loop over them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import users_data
from instances import named
from runs import sized
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.models import build_layer, cross_entropy, resolve
from contraflow.planner.plan import Plan
from contraflow.planner.problem.workload import Workload

STEPS = 6


def plan_of(name: str, schedule: str, micro_batches: int = 4, size: int = 4) -> Plan:
    """Layers dealt out evenly over two devices."""
    model = sized(resolve(f"users_data:{name}"), size)
    return named(schedule, 2, micro_batches, model=model, workload=Workload(micro_batches, "sgd"))


def plain(loader: DataLoader[Any], steps: int, seed: int = 0) -> list[float]:
    """Losses of a plain torch loop in which a batch is a step."""
    model = resolve("users_data:in_order")
    layers = nn.Sequential(*(build_layer(spec, seed, k) for k, spec in enumerate(model.layers)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=Training().of_run("sgd", steps).lr)
    losses: list[float] = []
    while len(losses) < steps:
        for inputs, targets in loader:
            loss = cross_entropy(layers(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses[:steps]


@pytest.mark.parametrize(("schedule", "micro_batches", "size"), [("1f1b", 4, 4), ("chimera", 4, 4), ("gpipe", 8, 2)])
def test_a_run_is_a_plain_loop_over_the_loader(schedule: str, micro_batches: int, size: int) -> None:
    """However a step's 16 samples are divided; every third step ends an epoch of 48."""
    kept = TensorDataset(*(tensor[:48] for tensor in users_data.FIRST.tensors))
    plan = plan_of("in_order", schedule, micro_batches, size)
    result = execute(plan, STEPS, model="users_data:in_order", data=DataLoader(kept, 16), transport="threads", lr=0.1)
    expected = plain(DataLoader(kept, 16), STEPS)
    assert result.losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["in_order", "shuffled", "own_generator", "augmented", "streamed"])
def test_a_run_equals_training_in_one_process(name: str) -> None:
    """To the bit, over the ends of epochs, with held-out losses."""
    training = Training(evaluate_every=3)
    plan = plan_of(name, "1f1b")
    result = execute(
        plan, STEPS, model=f"users_data:{name}", transport="threads", seed=3, training=training, return_state=True
    )
    expected = train_reference(resolve(f"users_data:{name}"), 4, 4, "sgd", STEPS, seed=3, training=training)
    assert result.losses == expected.losses
    assert result.evaluations == pytest.approx(expected.evaluations, rel=1e-6)
    assert result.state is not None
    assert all(torch.equal(result.state[key], value) for key, value in expected.state.items())
    assert result.excesses == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_generator", "streamed"])
def test_processes_read_alike(name: str) -> None:
    """Every rank makes the loader for itself; smaller last micro-batches, and replicas."""
    training = Training(mini_batch=15)
    result = execute(plan_of(name, "chimera"), STEPS, model=f"users_data:{name}", training=training)
    expected = train_reference(resolve(f"users_data:{name}"), 4, 4, "sgd", STEPS, training=training)
    assert result.losses == pytest.approx(expected.losses, rel=1e-5)


WRONG = [
    (7, r"^the data of model 'users_data:in_order': a int is no data: give a name, a torch DataLoader"),
    (DataLoader(users_data.FIRST, 6), r"^the data of model .*: its batches of 6 samples are no multiple of .* 4$"),
    ([1, 2, 3, 4], r"^data set 'list of 4', step 0, micro-batch 0: a batch is a Tensor, not a tensor of inputs"),
    (iter([]), r"^the data of model .* can be read once only"),
    (
        TensorDataset(torch.zeros(8, 63), torch.zeros(8, dtype=torch.int64)),
        r"^layer 'in' does not take its input of shape \(4, 63\)",
    ),
    ([], r"^data set 'list of 0', step 0, micro-batch 0: it has ended \(EOFError: no sample\)"),
]


@pytest.mark.parametrize(("data", "line"), WRONG)
def test_bad_data_is_a_line_before_training(data: Any, line: str) -> None:
    """That names the data, and step and micro-batch where there are."""
    with pytest.raises(RunError, match=line) as told:
        execute(plan_of("in_order", "1f1b"), 2, model="users_data:in_order", data=data, transport="threads")
    assert "\n" not in str(told.value)
