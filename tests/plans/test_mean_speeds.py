"""Several presets in one cluster: estimated each, planned at one mean speed a kind, and said so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from contraflow.__main__ import cli
from contraflow.planner.basics.errors import InputError, ModelError
from contraflow.planner.plan_file import load_plan
from contraflow.planner.problem import Cluster, Layer, ModelGraph, at_speeds, compared, speed_notes
from contraflow.planner.problem.presets import KindSpeed
from contraflow.planner.simulate import evaluate

TWO = {"nodes": [{"devices": 1, "device": "A100-80GB"}, {"devices": 2, "device": "H100-80GB"}]}


def layers(*seconds: float) -> list[Layer]:
    return [Layer(f"l{k}", s, s, s) for k, s in enumerate(seconds)]


def test_the_mean_is_over_all_layers_and_its_ends_are_single_ones() -> None:
    """3 s and 9 s here, 1 s and 6 s there: 12 / 7, from 1.5 to 3; a layer that takes nothing says nothing."""
    assert compared("x", layers(3, 9), layers(1, 6)) == KindSpeed("x", pytest.approx(12 / 7), 1.5, 3)
    assert compared("x", layers(0, 4), layers(0, 2)) == KindSpeed("x", 2, 2, 2)
    assert compared("x", layers(0), layers(0)) == KindSpeed("x", 1, 1, 1)


def test_presets_get_their_speed_and_others_keep_theirs() -> None:
    """A [devices] entry is what the user says; the model's own device has speed 1."""
    model = ModelGraph.chain(layers(1, 2), device="A100-80GB", speeds=(KindSpeed("H100-80GB", 2.5, 2.0, 3.0),))
    cluster = at_speeds(Cluster.from_dict(TWO), model)
    assert [device.kind.speed for device in cluster.devices] == [1.0, 2.5, 2.5]
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    assert at_speeds(cluster, model) == cluster
    own = Cluster.from_dict(TWO | {"devices": {"H100-80GB": {"speed": 7.0}}})
    assert at_speeds(own, model) == own
    assert speed_notes(own, model) == []
    [note] = speed_notes(Cluster.from_dict(TWO), model)
    assert note.startswith("H100-80GB: planned at 2.5 times the speed of A100-80GB, the mean over all layers; single")


def test_speeds_survive_their_file() -> None:
    """Old files have none."""
    model = ModelGraph.chain(layers(1), device="A100-80GB", speeds=(KindSpeed("H100-80GB", 2.5, 2.0, 3.0),))
    content = model.to_dict()
    assert ModelGraph.from_dict(json.loads(json.dumps(content))) == model
    del content["speeds"]
    assert ModelGraph.from_dict(content).speeds == ()


@pytest.mark.parametrize(
    ("speeds", "message"),
    [
        ({"x": {"mean": 2, "least": 3, "most": 4}}, "speeds.x: mean must be from least to most, got 2 of 3 to 4"),
        ({"x": {"mean": 0, "least": 0, "most": 0}}, "speeds.x: least must be above 0"),
        ({"x": {"mean": 2}}, "speeds.x: least"),
        ({"x": 2}, "speeds.x"),
        ([], "speeds"),
    ],
)
def test_bad_speeds_are_refused_in_one_line(speeds: object, message: str) -> None:
    with pytest.raises(ModelError, match=message.replace(".", r"\.")) as raised:
        ModelGraph.from_dict(ModelGraph.chain(layers(1)).to_dict() | {"speeds": speeds})
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_two_presets_from_profile_to_plan(tmp_path: Path) -> None:
    """The command estimates both; the plan is checked by evaluating it, and holds the speeds itself."""
    model, cluster, plan = (tmp_path / name for name in ("model.json", "cluster.toml", "plan.json"))
    cluster.write_text('[[nodes]]\ndevices = 1\ndevice = "A100-80GB"\n[[nodes]]\ndevices = 1\ndevice = "H100-80GB"\n')
    given = ["profile", "gpt-tiny", "--micro-batch-size", "64", "--precision", "bf16", "-o", str(model)]
    made = CliRunner().invoke(cli, [*given, "--device", "A100-80GB,H100-80GB"])
    assert made.exit_code == 0, made.output
    graph = ModelGraph.load(model)
    [speed] = graph.speeds
    assert (graph.device, speed.name) == ("A100-80GB", "H100-80GB")
    assert 1.0 <= speed.least <= speed.mean <= speed.most < 4
    options = ["--cluster", str(cluster), "--micro-batches", "4", "--precision", "mixed", "--time-limit", "2"]
    done = CliRunner().invoke(cli, ["plan", str(model), *options, "--workers", "1", "-o", str(plan)])
    assert done.exit_code == 0, done.output
    assert "the mean over all layers" in done.stderr
    found = load_plan(plan)
    assert found.forecast is not None
    assert [device.kind.speed for device in found.problem.cluster.devices] == [1.0, speed.mean]
    assert evaluate(found).step_s == found.forecast.step_s


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("A100-80GB,A100-80GB", "--device A100-80GB,A100-80GB: a preset is named twice"),
        ("A100-80GB,cuda", "--device cuda: unknown; measure on cpu or cuda, or take a preset"),
        ("A100-80GB,", "--device : unknown"),
        ("V100-16GB,A100-80GB", "V100-16GB has no bf16"),
    ],
)
def test_devices_that_cannot_be_are_refused(device: str, message: str) -> None:
    from contraflow.executor.cli.profile import Asked, estimate

    with pytest.raises(InputError, match=message):
        estimate("mlp-tiny", Asked(device=device, precision="bf16"))
