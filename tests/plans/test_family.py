"""Families: members at points, sizes between two that were measured, and planning over all points together."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from contraflow.__main__ import cli
from contraflow.planner import (
    Choice,
    Cluster,
    Effort,
    InputError,
    Layer,
    Link,
    ModelFamily,
    ModelGraph,
    SearchSpace,
    Workload,
    check,
    load_plan,
    plan,
    plan_family,
    save_plan,
)
from contraflow.planner.basics import ClusterError, ModelError
from contraflow.planner.problem import Point

QUICK = Effort(time_limit=6, workers=1)
CLUSTER = Cluster.uniform(4, 1 << 30, Link(1e9))


def member(team: int = 1, size: int = 1, efficiency: float = 1.0, name: str = "l") -> ModelGraph:
    """Four equal layers; a team divides their work and bytes, and takes longer by 1 / efficiency."""
    seconds = size / team / efficiency
    layers = [
        Layer(
            f"{name}{k}",
            seconds,
            seconds,
            seconds,
            stash_bytes=1001 * size // team,
            weight_stash_bytes=500 * size,
            output_bytes=100 * size,
            parameter_bytes=10_000 // team,
        )
        for k in range(4)
    ]
    ways = (("tensor", team),) if team > 1 else ()
    return ModelGraph.chain(layers, micro_batch_size=size, ways=ways)


FAMILY = ModelFamily((member(), member(2, 1, 0.9), member(1, 4), member(2, 4, 0.95)))


def test_a_family_survives_its_file_and_a_model_is_one_of_one(tmp_path: Path) -> None:
    """What is written is what is read."""
    FAMILY.save(tmp_path / "family.json")
    assert ModelFamily.load(tmp_path / "family.json") == FAMILY
    member().save(tmp_path / "model.json")
    assert ModelFamily.load(tmp_path / "model.json").members == (member(),)
    assert FAMILY.ways == ((), (("tensor", 2),))
    assert FAMILY.sizes(()) == (1, 4)


def test_sizes_between_two_measured_ones_lie_on_a_line() -> None:
    """Seconds exactly, bytes rounded up; nothing beyond what was measured."""
    two = FAMILY.point(Point((("tensor", 2),), 2))
    low, high = (FAMILY.point(Point((("tensor", 2),), size)).layers[0] for size in (1, 4))
    assert two.micro_batch_size == 2
    assert two.layers[0].forward_s == pytest.approx((2 * low.forward_s + high.forward_s) / 3)
    assert two.layers[0].stash_bytes == -(-(2 * low.stash_bytes + high.stash_bytes) // 3)
    assert two.layers[0].parameter_bytes == 5000
    assert not FAMILY.measured(Point((), 2))
    assert FAMILY.measured(Point((), 4))
    for size in (5, 8):
        with pytest.raises(ModelError, match=f"1, 4.*{size} is not between"):
            FAMILY.point(Point((), size))
    experts = ModelFamily(tuple(replace(member(2, size), ways=(("expert", 2),)) for size in (2, 4)))
    with pytest.raises(ModelError, match="3 do not divide among the 2 ranks of a team that divides experts"):
        experts.point(Point((("expert", 2),), 3))
    whole = replace(member(1, 4), layers=tuple(replace(x, separable=False) for x in member(1, 4).layers))
    mixed = ModelFamily((member(), whole)).point(Point((), 2)).layers[0]
    assert (mixed.separable, mixed.backward_s) == (False, pytest.approx(4.0))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (member(1, 2, name="m"), r"members\[0\].*\[1\].*'l0' and 'm0'"),
        (ModelGraph.chain(member().layers[:3], micro_batch_size=2), "4 and 3 layers: 'l3'"),
        (replace(member(1, 2), edges=member().edges[1:]), "'l0' -> 'l1'"),
        (member(), "already"),
        (replace(member(), ways=(("tensor", 1),)), "already"),
    ],
)
def test_members_that_differ_are_refused(other: ModelGraph, named: str) -> None:
    """Both members and the layer in one line."""
    with pytest.raises(ModelError, match=named) as refused:
        ModelFamily((member(), other))
    assert "\n" not in str(refused.value)


def priced(seconds: float) -> dict[str, object]:
    """A member's document whose first layer's forward takes so long."""
    content = member().to_dict()
    content["layers"][0]["forward_s"] = seconds
    return content


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"members": []}, "members"),
        ({"members": [member().to_dict()], "colour": 1}, "colour"),
        ({"version": 2, "members": [member().to_dict()]}, "version"),
        ({"members": [member().to_dict() | {"ways": {"pipe": 2}}]}, r"members\[0\].*pipe"),
        ({"members": [member().to_dict() | {"micro_batch_size": 0}]}, r"members\[0\].*micro_batch_size.*0"),
        ({"members": [priced(math.nan)]}, r"members\[0\]: layer 'l0': forward_s.*nan"),
        ({"members": [member().to_dict(), priced(-1)]}, r"members\[1\]: layer 'l0': forward_s.*-1"),
        ({}, "members"),
    ],
)
def test_bad_family_files_are_refused(content: dict[str, object], named: str) -> None:
    """The key is named."""
    with pytest.raises(ModelError, match=named):
        ModelFamily.from_dict({"format": "contraflow/family", "version": 1} | content)


def test_the_joint_answer_is_no_worse_than_any_point_and_its_bound_holds_for_all(tmp_path: Path) -> None:
    """Every point searched alone is the oracle: its plan is no better, its bound no lower than the joint bound."""
    found = plan_family(FAMILY, CLUSTER, Workload(1), Choice(16, (1, 2), (1, 2, 4)), effort=QUICK)
    assert found.plan is not None
    assert found.seconds is not None
    assert not check(found.plan)
    assert len(found.points) == 6
    for one in found.points:
        model, cluster = FAMILY.point(one.point), CLUSTER.teams(one.point.team)
        alone = plan(model, cluster, Workload(one.micro_batches), time_limit=3, workers=1)
        assert alone.seconds is not None
        assert found.seconds <= alone.seconds * (1 + 1e-9)
        assert found.bound_s <= alone.seconds * (1 + 1e-9)
        assert one.interpolated == (one.point.micro_batch_size == 2)
    assert [one.outcome for one in found.points].count("chosen") == 1
    assert found.plan.provenance.points.count("interpolated") == 2
    assert "6 points" in found.plan.provenance.space
    save_plan(found.plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == found.plan


def test_one_point_is_plan_of_it() -> None:
    """Nothing is added but what is said of the point."""
    found = plan_family(FAMILY, CLUSTER, Workload(1), Choice(8, (1,), (1,)), effort=QUICK)
    alone = plan(member(), CLUSTER, Workload(8), time_limit=6, workers=1)
    assert (found.status, found.seconds, found.bound_s) == (alone.status, alone.seconds, alone.bound_s)


def test_points_that_do_not_fit_are_left_out_and_nothing_fits_only_where_none_does() -> None:
    """Memory for two ranks' shares of the parameters, not for one rank's of all."""
    tight = Cluster.uniform(2, 1 << 30, Link(1e9))
    limit = Workload(1, memory_limit_bytes=28_000)
    found = plan_family(FAMILY, tight, limit, Choice(8), effort=QUICK)
    outcomes = {one.point.team: one.outcome for one in found.points}
    assert found.plan is None or outcomes[found.plan.problem.cluster.team] in ("chosen", "searched")
    nothing = plan_family(FAMILY, tight, Workload(1, memory_limit_bytes=100), Choice(8), effort=QUICK)
    assert (nothing.status, nothing.plan) == ("infeasible", None)
    assert nothing.violations


@pytest.mark.parametrize(
    ("choice", "kind", "named"),
    [
        (Choice(16, (3,)), ClusterError, "4 devices.*teams of 3"),
        (Choice(16, (4,)), ModelError, "not profiled for teams of 4; known: 1, 2"),
        (Choice(16, None, (8,)), ModelError, "8 is not between"),
        (Choice(16, None, (3,)), InputError, "16 samples do not divide into micro-batches of 3"),
        (Choice(0), InputError, "samples"),
    ],
)
def test_bad_choices_are_refused_in_one_line(choice: Choice, kind: type[InputError], named: str) -> None:
    """What was asked, and what there is."""
    with pytest.raises(kind, match=named) as refused:
        plan_family(FAMILY, CLUSTER, Workload(1), choice, effort=QUICK)
    assert "\n" not in str(refused.value)


def test_sizes_are_not_compared_without_a_flush() -> None:
    """An update of other samples is another training."""
    with pytest.raises(InputError, match="give one"):
        plan_family(FAMILY, CLUSTER, Workload(1), Choice(16), SearchSpace(asynchronous=("2bw",)), QUICK)


def test_members_are_those_of_the_clusters_kind() -> None:
    """A family of several kinds of devices plans for the cluster's."""
    kinds = ModelFamily((replace(member(), device="custom"), replace(member(2), device="other")))
    assert kinds.on(CLUSTER).members == (replace(member(), device="custom"),)
    with pytest.raises(ModelError, match="one kind"):
        ModelFamily((replace(member(), device="a"), replace(member(2), device="b"))).on(CLUSTER)
    assert json.dumps(kinds.to_dict())


def contraflow(*arguments: object) -> Result:
    """A command, run here."""
    return CliRunner().invoke(cli, [*map(str, arguments)])


def test_the_command_chooses_teams_and_micro_batch_size_and_says_what_came_of_each(tmp_path: Path) -> None:
    """In words, for machines, and in `show` of the plan."""
    FAMILY.save(tmp_path / "family.json")
    write_cluster(tmp_path / "cluster.toml")
    asked = ["plan", tmp_path / "family.json", "--cluster", tmp_path / "cluster.toml", "--time-limit", 3]
    some = ["--samples", 8, "--micro-batch-size", "1,2", "-o", tmp_path / "plan.json"]
    said = json.loads(contraflow(*asked, *some, "--json").stdout)
    assert {(one["team"], one["micro_batch_size"]) for one in said["points"]} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert said["samples"] == 8
    assert said["samples_per_s"] == pytest.approx(8 / said["step_s"])
    shown = json.loads(contraflow("show", tmp_path / "plan.json", "--json").stdout)
    assert (shown["team"], shown["samples_per_s"]) == (said["team"], said["samples_per_s"])
    text = contraflow(*asked, *some).stdout
    assert "points:" in text
    assert "(interpolated)" in text
    assert "8 samples in micro-batches of" in text
    compared = contraflow("compare", *asked[1:], "--samples", 8, "--micro-batch-size", 2, "--team", 2)
    assert compared.exit_code == 0, compared.output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--micro-batches", 8], "which size"),
        ([], "give one of --micro-batches and --samples"),
        (["--samples", 8, "--micro-batches", 8], "give one of"),
        (["--samples", 8, "--team", 3], "teams of 3"),
        (["--samples", 8, "--micro-batch-size", 8], "8 is not between them"),
        (["--samples", 9, "--micro-batch-size", 2], "9 samples do not divide"),
        (["--samples", 8, "--micro-batch-size", "1,x"], "whole numbers"),
    ],
)
def test_bad_flags_are_refused_in_one_line(tmp_path: Path, arguments: list[object], named: str) -> None:
    """Exit code 2, no plan."""
    FAMILY.save(tmp_path / "family.json")
    write_cluster(tmp_path / "cluster.toml")
    asked = ["plan", tmp_path / "family.json", "--cluster", tmp_path / "cluster.toml", "-o", tmp_path / "plan.json"]
    result = contraflow(*asked, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in " ".join(result.stderr.split())
    assert not (tmp_path / "plan.json").exists()


def write_cluster(path: Path) -> None:
    """Four devices in a node."""
    path.write_text('[[nodes]]\ndevices = 4\ndevice = "toy"\n[devices.toy]\nmemory = "1GiB"\n')
