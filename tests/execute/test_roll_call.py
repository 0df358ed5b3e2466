"""Ranks that were started one by one train together only if all of them mean the same run."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from disagreeing import Outcome, run_ranks
from runs import Case, dealt_out, planned

from contraflow.__main__ import cli
from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.run.model_code import layer_digests, source_digests
from contraflow.executor.run.roll_call import Presence, call_roll
from contraflow.models import resolve
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan
from contraflow.planner.plan_file import save_plan
from contraflow.planner.schedules import build

BASE = Case("1f1b", "mlp-tiny", 2, 4)
OWN_MODEL = """
from torch import nn
def build():{comment}
    middle = [nn.Linear({width}, {width}) for _ in range({more})]
    first = nn.Sequential(nn.Linear(64, {width}), nn.{kind}())
    return [(f"layer{{k}}", layer) for k, layer in enumerate([first, *middle, nn.Linear({width}, 10)])]
build.data = "digits"
"""
SAME: dict[str, object] = {"comment": "", "width": 16, "more": 1, "kind": "ReLU"}


@cache
def _other_plans() -> dict[str, Plan]:
    """The base's plan, and others that a rank might have been given."""
    plan = planned(BASE)
    candidate = dealt_out(BASE)
    slow = replace(plan.problem.model, layers=tuple(replace(x, forward_s=1.0) for x in plan.problem.model.layers))
    slower = replace(candidate, problem=replace(plan.problem, model=slow))
    return {
        "base": plan,
        "gpipe": planned(Case("gpipe", "mlp-tiny", 2, 4)),
        "chimera": planned(Case("chimera", "mlp-tiny", 2, 4)),
        "sgd": planned(Case("1f1b", "mlp-tiny", 2, 4, "sgd")),
        "more micro-batches": planned(Case("1f1b", "mlp-tiny", 2, 6)),
        "three devices": planned(Case("1f1b", "mlp-tiny", 3, 4)),
        "recompute": planned(Case("1f1b", "mlp-tiny", 2, 4, stash="recompute")),
        "slower": assemble(slower, build("1f1b", 2, 4).orders, "1f1b"),
    }


def _plans(folder: Path) -> dict[str, str]:
    """The same as files."""
    for name, other in _other_plans().items():
        save_plan(other, folder / f"{name}.json")
    return {name: str(folder / f"{name}.json") for name in _other_plans()}


PLANS = {
    "another schedule": ("gpipe", r"schedule 1f1b and gpipe; plan \w+ and \w+"),
    "groups that only one has": ("chimera", "schedule 1f1b and chimera"),
    "another optimizer": ("sgd", "plan .*optimizer momentum and sgd"),
    "another number of micro-batches": ("more micro-batches", "micro batches 4 and 6"),
    "another number of devices": ("three devices", "rank 1: the plan is for 3 devices, but WORLD_SIZE is 2"),
    "another stash policy": ("recompute", "plan .* and "),
    "other costs, so other waits": ("slower", "costs in the plan .* and "),
}
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 9}, "seed 0 and 9"),
    "learning rate": ({"lr": 0.5}, "learning rate 0.02 and 0.5"),
    "momentum": ({"training": Training(momentum=0.5)}, "momentum 0.9 and 0.5"),
    "learning-rate schedule": ({"training": Training(schedule="cosine")}, "schedule constant and cosine"),
    "clipping": ({"training": Training(clip_norm=1.0)}, "clip norm none and 1.0"),
    "loss scale": ({"training": Training(loss_scale="dynamic")}, "loss scale 1.0 and dynamic"),
    "evaluation": ({"training": Training(evaluate_every=1)}, "evaluate every 0 and 1"),
    "samples a step": ({"training": Training(mini_batch=7)}, "samples a step none and 7"),
    "steps": ({"steps": 3}, "steps 2 and 3"),
    "dtype": ({"dtype": torch.float64}, "dtype float32 and float64"),
    "engine": ({"engine": "eager"}, "engine auto and eager"),
    "data set": ({"data": "digits-images"}, "rank 1: layer .*|.*data digits and digits-images"),
    "checkpoint folder": ({"checkpoint": "elsewhere"}, "checkpoint folder none and elsewhere"),
    "resume": ({"checkpoint": "elsewhere", "resume": True}, "rank 1: there is no checkpoint to resume from in elsew"),
    "unknown option": ({"engine": "steam"}, "rank 1: unknown engine 'steam'"),
}
CODE: dict[str, tuple[dict[str, object], str]] = {
    "another activation": ({"kind": "GELU"}, r"layer 'layer0' \w+ and \w+"),
    "other shapes": ({"width": 24}, "rank 1: layer 'layer0': .*shapes"),
    "another number of layers": ({"more": 2}, "rank 1: layer 'layer2': .*|rank 1: .*layer3"),
    "what the layers do not show": ({"comment": "  # changed"}, r"code of own_3 \w+ and \w+"),
    "the same": ({}, ""),
}


def _refused(outcomes: list[Outcome], says: str) -> None:
    first, second = outcomes
    assert first == second, outcomes
    assert first.kind in ("RunError", "ExecutionError")
    assert "\n" not in first.text
    assert re.search(says, first.text), first.text


FAST = ("seed", "clipping", "groups that only one has", "another number of devices", "resume")
ALL = {name: ({"plan": plan}, says) for name, (plan, says) in PLANS.items()} | OPTIONS


@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ALL])
def test_ranks_that_disagree_are_refused_on_every_rank(name: str, tmp_path: Path) -> None:
    """Other plans, other options: one line on both ranks, with what differs and both values, and nobody waits."""
    plans, (other, says) = _plans(tmp_path), ALL[name]
    base: dict[str, Any] = {"plan": plans["base"], "steps": 2}
    changed = {**base, **other, "plan": plans[other.get("plan", "base")]}
    _refused(run_ranks([base, changed], tmp_path), says)


def test_other_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same shapes too; on the same code the ranks train."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for number, (other, _) in enumerate(CODE.values()):
        for folder, values in zip(folders, (SAME, {**SAME, **other}), strict=True):
            folder.mkdir(exist_ok=True)
            (folder / f"own_{number}.py").write_text(OWN_MODEL.format(**values))
    monkeypatch.syspath_prepend(str(folders[0]))
    save_plan(planned(BASE._replace(model="own_0:build")), tmp_path / "plan.json")
    for number, (_, says) in enumerate(CODE.values()):
        every: dict[str, Any] = {"plan": str(tmp_path / "plan.json"), "model": f"own_{number}:build", "steps": 1}
        outcomes = run_ranks([{**every, "path": str(folder)} for folder in folders], tmp_path / f"case{number}")
        if says:
            _refused(outcomes, says)
        else:
            assert [outcome.text for outcome in outcomes] == ["", ""]


def _presence(**must: object) -> Presence:
    return Presence({"seed": 0, **must})


def test_a_refusal_names_few_differences_and_counts_the_others() -> None:
    """It stays one line of moderate length."""
    other = _presence(**{f"option {k}": k for k in range(9)})
    with pytest.raises(RunError) as caught:
        call_roll(other, lambda mine: [_presence(), _presence(), mine], lambda text: None)
    assert str(caught.value) == (
        "ranks 0 and 2 disagree: option 0 none and 0; option 1 none and 1; option 2 none and 2 (and 6 more)"
    )


def test_a_failure_of_any_kind_is_everybodys() -> None:
    """Bad input before failures; what all ranks say is said without a rank."""
    bad, failed = Presence.unable(RunError("no such data")), Presence.unable(MemoryError("too\nlarge"))
    with pytest.raises(RunError, match=r"^rank 2: no such data$"):
        call_roll(failed, lambda mine: [_presence(), mine, bad], lambda text: None)
    with pytest.raises(ExecutionError, match=r"^rank 1: MemoryError: too$"):
        call_roll(failed, lambda mine: [_presence(), mine], lambda text: None)
    with pytest.raises(RunError, match=r"^no such data$"):
        call_roll(bad, lambda mine: [mine, bad], lambda text: None)


def test_other_versions_of_python_are_told_and_accepted() -> None:
    """They change nothing but the rounding, if that; another torch is refused."""
    told: list[str] = []
    others = [replace(_presence(), may={"python": "3.11.7"}), replace(_presence(), may={"python": "3.13.1"})]
    call_roll(others[0], lambda _: others, told.append)
    assert told == ["ranks 0 and 1 have different versions: python 3.11.7 and 3.13.1"]
    with pytest.raises(RunError, match=r"torch 2\.8\.0 and 2\.9\.0"):
        call_roll(_presence(), lambda _: [_presence(torch="2.8.0"), _presence(torch="2.9.0")], told.append)


def test_code_that_only_one_rank_has_loaded_is_nobodys_business() -> None:
    """A rank that writes logs may import more than the others."""
    sources = [{"code of model": "1"}, {"code of model": "1", "code of logs": "2"}]
    call_roll(_presence(), lambda _: [replace(_presence(), sources=x) for x in sources], pytest.fail)


def test_layers_are_told_apart_by_what_they_are() -> None:
    """Options, classes and shapes count; values do not, nor where objects lie in memory."""
    model = resolve("mlp-tiny")
    assert layer_digests(model) == layer_digests(model)
    assert len(set(layer_digests(resolve("gpt-tiny")).values())) < len(resolve("gpt-tiny").layers)
    assert layer_digests(resolve("gpt-tiny"))["head"] != layer_digests(resolve("gpt-mini"))["head"]


def test_sources_are_the_users_and_ours() -> None:
    """Neither Python's nor those of installed packages."""
    found = source_digests()
    assert {"disagreeing", "contraflow.executor.run.rank"} <= found.keys()
    assert not {name for name in found if name.split(".")[0] in {"torch", "numpy", "_pytest", "json"}}


def test_threads_do_not_join_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process of a job would train by itself and write the same files."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = CliRunner().invoke(cli, ["execute", _plans(tmp_path)["base"], "--transport", "threads"])
    assert found.exit_code == 2
    assert "WORLD_SIZE" in found.output
