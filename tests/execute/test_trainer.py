"""Loops of one's own: step by step the numbers are those of `execute` and of a plain loop of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import own_loops
import pytest
import torch
from instances import named
from runs import sized
from torch import nn

from contraflow.executor import Trainer
from contraflow.executor.basics import RunError, RunOptions, Training
from contraflow.executor.run.launch import execute
from contraflow.models import build_layer, cross_entropy, resolve
from contraflow.planner.plan import Plan
from contraflow.planner.plan_file import save_plan
from contraflow.planner.problem.workload import Workload


def plan_of(schedule: str, optimizer: str = "sgd", sharded: bool = False) -> Plan:
    """Layers dealt out evenly over two devices; four micro-batches of four."""
    model = sized(resolve(own_loops.MODEL), 4)
    return named(schedule, 2, 4, model=model, workload=Workload(4, optimizer, sharded=sharded))


def plain(make: Any, schedule: Any = None) -> list[float]:
    """Losses of the plain loop of torch over the same batches."""
    model = resolve(own_loops.MODEL)
    layers = nn.Sequential(*(build_layer(spec, 0, k) for k, spec in enumerate(model.layers)))
    optimizer = make(layers.parameters())
    scheduler = None if schedule is None else schedule(optimizer)
    losses = []
    for inputs, targets in own_loops.batches():
        loss = cross_entropy(layers(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("schedule", "samples"), [("1f1b", 16), ("chimera", 16), ("gpipe", 15)])
def test_steps_asked_for_are_those_of_a_run(schedule: str, samples: int, tmp_path: Path) -> None:
    """Losses and parameters, bit for bit; also where the last micro-batch has less. All ranks know them."""
    training = Training(clip_norm=0.5)
    plan = plan_of(schedule)
    left = own_loops.on_ranks(
        plan, own_loops.plain, tmp_path, samples=samples, options=RunOptions(seed=3, training=training)
    )
    data = [pair for batch in own_loops.batches(samples) for pair in zip(*batch, strict=True)]
    of_run = Training(clip_norm=0.5, mini_batch=None if samples == 16 else samples)
    ours = execute(
        plan, 6, model=own_loops.MODEL, data=data, seed=3, training=of_run, transport="threads", return_state=True,
        metrics=tmp_path / "run.jsonl",
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == list(ours.losses)
    assert [line["grad_norm"] for line in lines] == list(ours.grad_norms)
    assert all(line["samples"] == samples for line in lines)
    assert [rank["losses"] for rank in left] == [list(ours.losses)] * 2
    assert ours.state is not None
    assert ours.state.keys() == left[0]["state"].keys()
    assert left[1]["state"] == {}
    assert all(torch.equal(left[0]["state"][key], value) for key, value in ours.state.items())


def test_metrics_that_cannot_be_written_end_a_run_before_it_trains(tmp_path: Path) -> None:
    """In a line that names the file."""
    seen: list[int] = []
    with pytest.raises(RunError, match=r"^cannot write metrics: .*No such file or directory: .*/nowhere/run.jsonl'$"):
        execute(
            plan_of("1f1b"), 1, model=own_loops.MODEL, transport="threads", metrics=tmp_path / "nowhere" / "run.jsonl",
            on_step=lambda step, *_: seen.append(step),
        )  # fmt: skip
    assert seen == []


ENDING = """
import os
import own_loops
from contraflow.executor import Trainer
from contraflow.planner import load_plan

trainer = Trainer(load_plan("plan.json"), own_loops.MODEL)
for batch in own_loops.batches():
    if trainer.steps == 3 and os.environ["RANK"] == "1" and HOW != "well":
        os._exit(3) if HOW == "dies" else int("nothing")
    loss = trainer.step(batch)
print(f"rank {os.environ['RANK']}: {trainer.steps} steps")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("well", "rank 0: 6 steps\n"),
        ("raises", "ValueError: invalid literal for int() with base 10: 'nothing'"),
        ("dies", "contraflow: rank 1 has ended without a result"),
    ],
)
def test_a_script_under_torchrun_ends_as_a_run_does(how: str, says: str, tmp_path: Path) -> None:
    """Well also where nobody closes the trainer; otherwise on all ranks, with the cause."""
    save_plan(plan_of("1f1b"), tmp_path / "plan.json")
    (tmp_path / "loop.py").write_text(f"HOW = {how!r}\n{ENDING}")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "loop.py"]
    path = os.pathsep.join([str(Path(own_loops.__file__).parent), *sys.path])
    given = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(start, capture_output=True, text=True, timeout=240, env=given, cwd=tmp_path)
    assert (found.returncode == 0) is (how == "well"), found.stderr
    assert says in found.stdout + found.stderr
    lines = found.stderr.count("contraflow: rank 1 has ended without a result")
    assert found.stderr.count("contraflow:") == lines, found.stderr
    assert lines in {"well": (0,), "raises": (0, 1), "dies": (1,)}[how]  # torchrun may end the other before it says so


def test_a_scheduler_of_torch_moves_all_stages(tmp_path: Path) -> None:
    """Rate and momentum of every step, as in the plain loop."""
    left = own_loops.on_ranks(plan_of("1f1b", optimizer="momentum"), own_loops.scheduled, tmp_path)
    expected = plain(
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=10),
    )
    assert left[0] == pytest.approx(expected, rel=1e-5)


def test_a_callback_of_any_rank_stops_all(tmp_path: Path) -> None:
    """After the step in which it asks; evaluations leave no trace in the losses; a line of metrics a step."""
    left = own_loops.on_ranks(plan_of("1f1b"), own_loops.stopping, tmp_path, into=str(tmp_path), at=3)
    expected = plain(lambda p: torch.optim.SGD(p, lr=0.1))
    for rank in left:
        assert rank["losses"] == pytest.approx(expected[:4], rel=1e-5)
        assert rank["stopped"]
    assert left[0]["evaluations"] == left[1]["evaluations"]
    assert left[0]["evaluations"][2] == pytest.approx(expected[3], rel=1e-5)  # the fourth batch is the first again
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [line["loss"] for line in lines] == left[0]["losses"]
    assert all(line["lr"] == 0.1 and line["samples"] == 16 and line["seconds"] > 0 for line in lines)


@pytest.mark.parametrize(("first", "gathered"), [(None, False), ("chimera", True)])
def test_another_trainer_goes_on_from_a_state(first: str | None, gathered: bool, tmp_path: Path) -> None:
    """From every rank's own, bit for bit, or from a gathered one under another plan; the first goes on as well."""
    left = own_loops.on_ranks(
        plan_of("1f1b", optimizer="adamw"), own_loops.resumed, tmp_path,
        half=3, first=None if first is None else plan_of(first, optimizer="adamw"), gathered=gathered,
    )  # fmt: skip
    expected = plain(lambda p: torch.optim.AdamW(p, lr=0.01))
    before, after = left[0]
    assert after == pytest.approx(expected[3:], rel=1e-5)
    assert before == (after if first is None else pytest.approx(after, rel=1e-5))


@pytest.mark.long
def test_shared_optimizers_go_on_from_whole_states(tmp_path: Path) -> None:
    """Of which every replica takes its pieces."""
    whole, shared = plan_of("1f1b", optimizer="adamw"), plan_of("chimera", optimizer="adamw", sharded=True)
    left = own_loops.on_ranks(shared, own_loops.resumed, tmp_path / "a", half=3, first=whole, gathered=True)
    again = own_loops.on_ranks(whole, own_loops.resumed, tmp_path / "b", half=3, first=shared, gathered=True)
    expected = plain(lambda p: torch.optim.AdamW(p, lr=0.01))[3:]
    for before, after in (*left, *again):
        assert before == pytest.approx(expected, rel=1e-5)
        assert after == pytest.approx(expected, rel=1e-5)


WRONG = [
    ("tensor", "^a batch is a Tensor, not inputs and targets$"),
    ("none", "^a batch is a NoneType, not inputs and targets$"),
    ("samples", "^a batch has 7 samples, but the plan's 4 micro-batches of 4 take 13 to 16$"),
    ("shape", r"^layer 'in' does not take its input of shape \(4, 60\)"),
    ("rest", "^a batch has 15 samples, but those before had 16: leave the rest of an epoch out"),
    ("other shape", r"^a batch has targets of \(\) torch.int32 each, but those before had \(\) torch.int64$"),
    ("evaluate", r"^evaluate\(\) needs stages that are built for it: Trainer\(..., evaluates=True\)$"),
    ("state", r"^not what state_dict\(\) gave: model$"),
    ("other state", "^the state has no tensor parameters/"),
    ("optimizer", "^the plan is for the optimizer 'sgd', not Adagrad"),
    ("decay", "^weight_decay was 0 and is 0.1: only lr change"),
    ("ranks", r"^step 1: ranks 0 and 1 have different settings of the optimizer: \[0.1\] and \[0.2\]"),
    ("closed", "^the Trainer is closed$"),
]


@pytest.mark.parametrize(("what", "line"), WRONG)
def test_a_mistake_is_a_line(what: str, line: str, tmp_path: Path) -> None:
    """On the first rank, and of bad input on all."""
    left = own_loops.on_ranks(plan_of("1f1b"), own_loops.raising, tmp_path, what=what)
    assert isinstance(left[1], Exception), what
    with pytest.raises(RunError, match=line) as told:
        raise left[0]
    assert "\n" not in str(told.value)


OPTIMIZERS = [
    (torch.optim.AdamW, "adamw", None),
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "nesterov", None),
    (torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=0.2), "momentum", "is for the optimizer 'momentum'"),
    (lambda p: torch.optim.Adam(p, amsgrad=True), "adam", "^Adam with amsgrad is not what stages step with$"),
    (lambda p: torch.optim.RMSprop(p, centered=True), "rmsprop", "^RMSprop that is centered"),
    (3, "sgd", "^optimizer is a int"),
    (lambda p: 3, "sgd", "^optimizer makes a int"),
    ("adam", "sgd", "^the plan is for the optimizer 'sgd', not 'adam'$"),
]


@pytest.mark.parametrize(("given", "planned", "refused"), OPTIMIZERS)
def test_the_optimizer_is_one_whose_state_the_plan_counts(
    given: Any, planned: str, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are taken; what stages cannot do is refused in a line."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    plan = plan_of("1f1b", optimizer=planned)
    if refused is None:
        made = Trainer(plan, own_loops.MODEL, optimizer=given).optimizer.param_groups[0]
        own = given([torch.zeros(3, requires_grad=True)]).param_groups[0]
        assert all(made[name] == own[name] for name in ("lr", "weight_decay"))
        return
    with pytest.raises(RunError, match=refused):
        Trainer(plan, own_loops.MODEL, optimizer=given)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (RunOptions(enforce=True), "^a Trainer takes no enforce among its options"),
        (RunOptions(training=Training(evaluate_every=2)), "^a Trainer takes no evaluate_every"),
        (RunOptions(training=Training(schedule="cosine")), "^a cosine schedule must say how long it is: decay_steps$"),
    ],
)
def test_options_of_whole_runs_are_refused(options: RunOptions, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name."""
    with pytest.raises(RunError, match=r"^a Trainer is one of several ranks: torchrun --nproc-per-node 2 SCRIPT$"):
        Trainer(plan_of("1f1b"), own_loops.MODEL)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match=line):
        Trainer(plan_of("1f1b"), own_loops.MODEL, options=options)
