"""Analytic profiles of mixtures of experts, alone and divided among teams: FLOPs, bytes and messages by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from contraflow.__main__ import cli
from contraflow.executor.measure.analytic import analytic_profile
from contraflow.models import resolve
from contraflow.models.mixtral import MixtralConfig, mixtral
from contraflow.planner import Link, ModelFamily, load_plan
from contraflow.planner.basics.errors import InputError
from contraflow.planner.problem.presets import PRESETS, DeviceType

COUNTING = DeviceType("counting", 1, memory_bandwidth=math.inf, fp32_flops=1.0)
"""A device on which a FLOP takes a second and memory nothing."""
WAITING = replace(COUNTING, fp32_flops=math.inf)
"""One that waits for nothing but messages."""
SAMPLES, TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = 4, 32, 64, 176, 8, 2
CONFIG = MixtralConfig(2, WIDTH, 4, 2, HIDDEN, TOKENS, vocabulary=100)
LINK = Link(1e9, 1e-3)
TEAMS = (1, 2, 4)


@cache
def layers(device: DeviceType, team: int) -> dict[str, dict[str, Any]]:
    """By name, in float32; where FLOPs are counted, messages take no time."""
    link = LINK if device is WAITING else Link()
    made = analytic_profile(mixtral("mine", CONFIG), SAMPLES, device, efficiency=1.0, ways={"expert": team}, link=link)
    return {layer["name"]: layer for layer in made["layers"]}


@pytest.mark.parametrize("team", TEAMS)
def test_a_rank_computes_its_samples_and_two_of_eight_experts_for_every_token(team: int) -> None:
    """Forward of attention, router and three matrices of two experts; of 4 samples, 4 / t are a rank's.

    Its experts are 8 / t, and the tokens of all ranks that chose them are as many as its own tokens' choices.
    """
    found, tokens = layers(COUNTING, team), SAMPLES * TOKENS // team
    attention, mixture = found["block0.attention"], found["block0.mlp"]
    projections = 2 * tokens * (2 * WIDTH**2 + 2 * WIDTH**2 // 2)
    assert attention["forward_s"] == projections + 4 * tokens * TOKENS * WIDTH
    products = 2 * tokens * (EXPERTS * WIDTH + CHOSEN * 3 * WIDTH * HIDDEN)
    assert [mixture[f"{key}_s"] for key in ("forward", "backward_input", "backward_weight")] == pytest.approx(
        [products] * 3, rel=1e-9
    )
    logits = 2 * tokens * WIDTH * 100
    assert found["head"]["forward_s"] == logits


@pytest.mark.parametrize("team", TEAMS)
def test_experts_are_divided_and_all_else_is_whole(team: int) -> None:
    """Parameters; what flows, and what is kept of it, is that of a rank's samples."""
    found = layers(COUNTING, team)
    mixture = 4 * (3 * EXPERTS // team * WIDTH * HIDDEN + EXPERTS * WIDTH + WIDTH)
    assert found["block0.mlp"]["parameter_bytes"] == mixture
    assert found["block0.attention"]["parameter_bytes"] == 4 * (3 * WIDTH**2 + WIDTH)
    assert found["head"]["parameter_bytes"] == found["embedding"]["parameter_bytes"] + 4 * WIDTH == 4 * (101 * WIDTH)
    for name in ("embedding", "block0.attention", "block0.mlp"):
        assert found[name]["output_bytes"] == 4 * SAMPLES * TOKENS * WIDTH // team
    angles = 4 * 2 * TOKENS * WIDTH // 4 // 2  # cosines and sines of every position
    for name, alike in (("block0.attention", angles), ("block0.mlp", 8)):  # 8: where dropped tokens would be
        assert (found[name]["stash_bytes"] - alike) * team == layers(COUNTING, 1)[name]["stash_bytes"] - alike


@pytest.mark.parametrize("team", TEAMS)
def test_tokens_go_to_their_experts_and_back_in_both_passes(team: int) -> None:
    """Four all-to-alls a mixture: t - 1 rounds of the t-th part of all places of the rank's tokens.

    Gradients of what every rank has are summed in a ring: in a mixture the router's and the norm's.
    """
    found, rounds = layers(WAITING, team), team - 1
    places = 4 * CHOSEN * SAMPLES * TOKENS // team * WIDTH
    exchange_s = rounds * (places / team / 1e9 + 1e-3)

    def summed_s(*sizes: int) -> float:
        return sum(2 * rounds * (4 * size / team / 1e9 + 1e-3) for size in sizes)

    mixture = found["block0.mlp"]
    assert mixture["forward_s"] == pytest.approx(2 * exchange_s)
    assert mixture["backward_input_s"] == pytest.approx(2 * exchange_s)
    assert mixture["backward_weight_s"] == pytest.approx(summed_s(EXPERTS * WIDTH, WIDTH))
    attention = found["block0.attention"]
    assert attention["forward_s"] == attention["backward_input_s"] == 0
    square = WIDTH**2
    assert attention["backward_weight_s"] == pytest.approx(summed_s(square, square // 2, square // 2, square, WIDTH))
    assert found["head"]["forward_s"] == pytest.approx(summed_s(1))  # the loss


def test_a_tensor_parallel_mixture_halves_every_expert() -> None:
    """And sums what comes out of it once, as a Llama's MLP."""
    made = analytic_profile(mixtral("mine", CONFIG), SAMPLES, WAITING, efficiency=1.0, ways={"tensor": 2}, link=LINK)
    mixture = made["layers"][2]
    assert mixture["parameter_bytes"] == 4 * (3 * EXPERTS * WIDTH * HIDDEN // 2 + EXPERTS * WIDTH + WIDTH)
    assert mixture["forward_s"] == pytest.approx(2 * (4 * SAMPLES * TOKENS * WIDTH / 2 / 1e9 + 1e-3))


@pytest.mark.parametrize(
    ("name", "samples", "team", "message"),
    [
        ("mixtral-8x7b", 3, 3, "model 'mixtral-8x7b': 8 experts cannot be divided among a team of 3"),
        ("mixtral-8x7b", 2, 4, "model 'mixtral-8x7b': 2 samples of a micro-batch cannot be divided among a team of 4"),
        ("llama-7b", 2, 2, "model 'llama-7b' has no experts that a team of 2 could divide"),
    ],
)
def test_what_cannot_be_divided_names_model_and_numbers(name: str, samples: int, team: int, message: str) -> None:
    with pytest.raises(InputError) as raised:
        analytic_profile(resolve(name), samples, PRESETS["H100-80GB"], "bf16", ways={"expert": team}, link=LINK)
    assert str(raised.value) == message


# ---------------------------------------------------------------- on the command line


def run(*arguments: object) -> Result:
    """The command, run here."""
    return CliRunner().invoke(cli, list(map(str, arguments)))


CLUSTER = """[[nodes]]
devices = 4
device = "H100-80GB"
link = {bandwidth = "450GB/s", latency = "3us"}
"""


@pytest.mark.long
def test_a_family_of_expert_teams_is_planned_checked_and_not_executed(tmp_path: Path) -> None:
    """Sizes that a team does not divide are left out with a line; a plan of a team is refused in one."""
    family, plan = tmp_path / "family.json", tmp_path / "plan.json"
    preset = ["--device", "H100-80GB", "--efficiency", 0.5, "--link", "450GB/s,3us", "--layers", "block"]
    given = ["--team", "1,2", "--ways", "expert", "--micro-batch-size", "1,2", *preset]
    made = run("profile", "mixtral-tiny", *given, "-o", family)
    assert made.exit_code == 0, made.output
    assert made.stderr.splitlines()[0] == "left out: micro-batches of 1 on teams of 2, whose ranks have samples each"
    points = [(member.team, member.micro_batch_size) for member in ModelFamily.load(family).members]
    assert points == [(1, 1), (1, 2), (2, 2)]
    refused = run("profile", "mixtral-tiny", *given, "--team", 4, "-o", family)
    assert refused.exit_code == 2
    assert "model 'mixtral-tiny': 1 samples of a micro-batch cannot be divided among a team of 4" in refused.stderr
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    asked = ["--cluster", tmp_path / "cluster.toml", "--samples", 8, "--schedule", "1f1b"]
    made = run("plan", family, *asked, "--team", 2, "-o", plan)
    assert made.exit_code == 0, made.output
    assert load_plan(plan).problem.model.ways == (("expert", 2),)
    for command in ("check", "show"):
        assert run(command, plan).exit_code == 0
    refused = run("execute", plan, "--steps", 1)
    assert refused.exit_code == 2
    why = "a team that divides layers by expert 2 is not executed; tensor or sequence is"
    assert refused.stderr == f"contraflow: {why}\n"
