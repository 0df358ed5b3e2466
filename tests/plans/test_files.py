"""Files of the problem: every mistake is one line that names what is wrong, with exit code 2, and touches nothing."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pictures import two_device_plan

from contraflow.__main__ import cli
from contraflow.planner.basics.errors import ClusterError, InputError, ModelError, PlanError, WorkloadError
from contraflow.planner.basics.units import parse_bandwidth, parse_bytes, parse_seconds
from contraflow.planner.plan_file import load_plan, op_from_text, plan_from_dict, plan_to_dict, save_plan
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import PRESETS
from contraflow.planner.problem.workload import Workload

LAYER = {"name": "a", "forward_s": 1.0, "backward_s": 2.0, "stash_bytes": 3}
MODEL: dict[str, Any] = {
    "format": "contraflow/model",
    "version": 1,
    "name": "m",
    "layers": [LAYER, LAYER | {"name": "b"}],
    "edges": [["a", "b"]],
}
CLUSTER = """
[[nodes]]
devices = 2
device = "toy"
link = {bandwidth = "2TB/s", latency = "3us"}
host_memory = "1TiB"
host_link = {bandwidth = "25GB/s", latency = "10us", shared_by = 2}
[devices.toy]
memory = "16GiB"
"""


def changed(path: list[Any], value: object) -> dict[str, Any]:
    """MODEL with one entry replaced."""
    content = copy.deepcopy(MODEL)
    place: Any = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


BAD_MODELS = {
    "unknown key at the top": (changed(["colour"], 1), "'colour'"),
    "unknown key of a layer": (changed(["layers", 1, "forwards"], 1), "layer 'b': unknown key 'forwards'"),
    "negative time": (changed(["layers", 1, "forward_s"], -1.0), "layer 'b': forward_s"),
    "NaN": (changed(["layers", 0, "forward_s"], math.nan), "layer 'a': forward_s"),
    "infinity": (changed(["layers", 1, "backward_s"], math.inf), "layer 'b': backward"),
    "fraction of a byte": (changed(["layers", 0, "stash_bytes"], 0.5), "layer 'a': stash_bytes"),
    "text for a number": (changed(["layers", 0, "stash_bytes"], "3"), "layer 'a': stash_bytes"),
    "bool for a number": (changed(["layers", 0, "stash_bytes"], True), "layer 'a': stash_bytes"),
    "cycle": (changed(["edges"], [["a", "b"], ["b", "a"]]), "cycle: 'a' -> 'b' -> 'a'"),
    "edge to itself": (changed(["edges"], [["a", "a"]]), "cycle: 'a' -> 'a'"),
    "dangling edge": (changed(["edges"], [["a", "nowhere"]]), "'nowhere'"),
    "edge of three": (changed(["edges"], [["a", "b", "c"]]), "['a', 'b', 'c']"),
    "duplicate layer": (changed(["layers", 1, "name"], "a"), "layer 'a' appears twice"),
    "layer without a name": (changed(["layers", 1], {"forward_s": 1}), "layers[1] has no name"),
    "layer that is a number": (changed(["layers", 1], 7), "layers[1]"),
    "no layers": (changed(["layers"], []), "no layers"),
    "both backwards": (changed(["layers", 0, "backward_input_s"], 1.0), "layer 'a': give backward_s or"),
    "shared with a stranger": (changed(["shared"], [{"layers": ["a", "zz"], "bytes": 1}]), "'zz'"),
    "other format": (changed(["format"], "contraflow/plan"), "contraflow/model"),
    "later version": (changed(["version"], 2), "version"),
    "micro-batch size 0": (changed(["micro_batch_size"], 0), "micro_batch_size"),
    "a list": ([], "object"),
}


@pytest.mark.parametrize(("content", "named"), BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_bad_model_files_are_refused_with_one_line_naming_the_fault(
    tmp_path: Path, content: object, named: str
) -> None:
    """`contraflow plan` on a broken model.json: exit code 2, one line, and the old plan.json is still there."""
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(ModelError):
        ModelGraph.load(tmp_path / "model.json")
    line = refused_plan(tmp_path)
    assert named in line


BAD_CLUSTERS = {
    "unknown device": (CLUSTER.replace('"toy"', '"A1000"'), "A1000"),
    "unknown key": (CLUSTER + "colour = 1", "'colour'"),
    "unknown table": ("[colour]\n" + CLUSTER, "'colour'"),
    "unit that is none": (CLUSTER.replace("2TB/s", "2Tbaud/s"), "nodes[0].link.bandwidth"),
    "bandwidth of zero": (CLUSTER.replace("2TB/s", "0GB/s"), "nodes[0].link.bandwidth"),
    "negative latency": (CLUSTER.replace('"3us"', "-1"), "nodes[0].link.latency"),
    "infinite latency": (CLUSTER.replace('"3us"', "inf"), "nodes[0].link.latency"),
    "NaN bandwidth": (CLUSTER.replace('"2TB/s"', "nan"), "nodes[0].link.bandwidth"),
    "device memory of zero": (CLUSTER.replace('"16GiB"', "0"), "devices.toy"),
    "speed of zero": (CLUSTER + "speed = 0", "devices.toy: speed"),
    "no devices": (CLUSTER.replace("devices = 2", "devices = 0"), "devices"),
    "no nodes": ("[devices.toy]\nmemory = 1\n", "[[nodes]]"),
    "not TOML": ("[[nodes", "TOML"),
    "negative overhead": (CLUSTER + "[overhead]\nop = -1", "overhead.op"),
    "overhead of something else": (CLUSTER + '[overhead]\nwait = "1us"', "'wait'"),
    "overhead without a table": ('overhead = "1us"\n' + CLUSTER, "overhead"),
}


@pytest.mark.parametrize(("text", "named"), BAD_CLUSTERS.values(), ids=BAD_CLUSTERS.keys())
def test_bad_cluster_files_are_refused_with_one_line_naming_the_fault(tmp_path: Path, text: str, named: str) -> None:
    """`contraflow plan` on a broken cluster.toml: exit code 2, one line."""
    (tmp_path / "cluster.toml").write_text(text)
    with pytest.raises(ClusterError):
        Cluster.load(tmp_path / "cluster.toml")
    assert named in refused_plan(tmp_path)


def refused_plan(folder: Path) -> str:
    """Runs `contraflow plan` in a folder, expects refusal, returns the line."""
    for name, text in (("model.json", json.dumps(MODEL)), ("cluster.toml", CLUSTER)):
        if not (folder / name).exists():
            (folder / name).write_text(text)
    (folder / "plan.json").write_text("the old plan")
    names = [str(folder / name) for name in ("model.json", "cluster.toml", "plan.json")]
    result = CliRunner().invoke(cli, ["plan", names[0], "--cluster", names[1], "--micro-batches", "4", "-o", names[2]])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert (folder / "plan.json").read_text() == "the old plan"
    assert {path.name for path in folder.iterdir()} == {"model.json", "cluster.toml", "plan.json"}
    return result.stderr


def test_models_and_clusters_survive_their_files(tmp_path: Path) -> None:
    """What is written is what is read."""
    model = ModelGraph.from_dict(MODEL)
    model.save(tmp_path / "model.json")
    assert ModelGraph.load(tmp_path / "model.json") == model
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    cluster = Cluster.load(tmp_path / "cluster.toml")
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    assert cluster.nodes[0].link == Link(2e12, 3e-6)
    assert cluster.nodes[0].host_memory_bytes == 1024**4


def test_units_are_those_of_the_field() -> None:
    """Binary and decimal prefixes, rates and times; bare numbers are bytes, bytes/s and seconds."""
    assert parse_bytes("16GiB", "x") == 16 * 1024**3
    assert [parse_bytes(f"1{u}", "x") for u in ("B", "KB", "MB", "GB", "TB")] == [1000**k for k in range(5)]
    assert [parse_bytes(f"1{u}", "x") for u in ("KiB", "MiB", "GiB", "TiB")] == [1024**k for k in range(1, 5)]
    assert parse_bandwidth("2TB/s", "x") == 2e12
    for text, rate in (("200Gb/s", 25e9), ("200Gbit/s", 25e9), ("25GB/s", 25e9), ("8b/s", 1), ("1.6 Tb/s", 200e9)):
        assert parse_bandwidth(text, "x") == rate
    with pytest.raises(InputError, match=r"x: unknown unit 'Gib/s' in '1Gib/s'; use B/s"):
        parse_bandwidth("1Gib/s", "x")
    assert [parse_seconds(f"5{u}", "x") for u in ("s", "ms", "us")] == pytest.approx([5.0, 5e-3, 5e-6])
    assert parse_bytes(0, "x") == 0
    assert parse_seconds("0us", "x") == 0


@pytest.mark.parametrize("value", ["", "GiB", "-1GiB", "1 GiB/s", "1Gib", "nan", "inf", None, True, [1], -1, math.nan])
def test_quantities_that_are_none_are_refused(value: object) -> None:
    """The message names the place."""
    with pytest.raises(InputError, match="the memory"):
        parse_bytes(value, "the memory")


def test_zero_is_allowed_except_for_bandwidth_speed_and_device_memory() -> None:
    """Layers without cost and links without latency are fine."""
    Layer("free")
    parse_seconds(0, "latency")
    for text in (CLUSTER.replace("3us", "0us"), CLUSTER.replace("1TiB", "0B")):
        Cluster.from_dict(__import__("tomllib").loads(text))
    with pytest.raises(InputError):
        parse_bandwidth(0, "bandwidth")


def test_workloads_that_make_no_sense_are_refused() -> None:
    """Micro-batches, optimizer, precision, limit."""
    bad: list[dict[str, Any]] = [
        {"micro_batches": 0},
        {"micro_batches": 1.5},
        {"micro_batches": True},
        {"micro_batches": 1, "optimizer": "lion"},
        {"micro_batches": 1, "precision": "fp8"},
        {"micro_batches": 1, "memory_limit_bytes": -1},
    ]
    for arguments in bad:
        with pytest.raises(WorkloadError):
            Workload(**arguments)


def test_presets_cover_the_devices_of_the_field() -> None:
    """Memory and peak of the presets, and the processor."""
    assert set(PRESETS) == {
        "P100-16GB", "V100-16GB", "V100-32GB", "V100-SXM-16GB", "V100-SXM-32GB", "A10-24GB", "A6000-48GB",
        "RTX-4090-24GB", "L40S-48GB", "A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB", "MI300X-192GB",
        "cpu",
    }  # fmt: skip
    for kind in PRESETS.values():
        peaks = kind.peaks()
        assert list(peaks.values()) == sorted(peaks.values()), kind.name
    assert PRESETS["A100-80GB"].memory_bytes == 80 * 1024**3


# ------------------------------------------------------------------------ plan.json


def edited(edit: str, value: object) -> dict[str, Any]:
    """The content of a plan with one entry, named "a.b.0", replaced; value None deletes it."""
    content = json.loads(json.dumps(plan_to_dict(two_device_plan())))
    place: Any = content
    *way, last = (int(key) if key.isdecimal() else key for key in edit.split("."))
    for key in way:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return content


def test_plans_survive_their_file(tmp_path: Path) -> None:
    """Everything, problem and forecast included; saving replaces atomically."""
    plan = two_device_plan()
    save_plan(plan, tmp_path / "plan.json")
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


EDITS = {
    "op dropped": ("orders.0.0", None),
    "op unknown": ("orders.0.0", "0X0"),
    "op not text": ("orders.0.0", 5),
    "op of no stage": ("orders.0.0", "9F0"),
    "op of no micro-batch": ("orders.0.0", "0F99"),
    "device out of range": ("pipelines.0.forward", [0, 7]),
    "device negative": ("pipelines.0.forward", [0, -1]),
    "pipeline too short": ("pipelines.0.forward", [0]),
    "micro-batch taken twice": ("pipelines.0.micro_batches", [0, 0, 1, 2]),
    "no pipelines": ("pipelines", []),
    "no stages": ("stages", []),
    "stage of strangers": ("stages.0", ["nobody"]),
    "stages exchanged": ("stages", [["b"], ["a"]]),
    "stash policy unknown": ("stash.0.0", "burn"),
    "stash row missing": ("stash", []),
    "weights unknown": ("weights", "magic"),
    "orders missing": ("orders", None),
    "a device's order missing": ("orders.1", None),
    "memory limit lowered": ("problem.workload.memory_limit_bytes", 1),
    "forecast embellished": ("forecast.step_s", 0.001),
    "forecast peak embellished": ("forecast.devices.0.peak_bytes", 1),
    "forecast infinite": ("forecast.step_s", math.inf),
    "forecast without devices": ("forecast.devices", []),
    "model changed": ("problem.model.layers.0.parameter_bytes", 77),
    "micro-batches changed": ("problem.workload.micro_batches", 5),
    "workload unknown key": ("problem.workload.colour", 5),
    "provenance unknown key": ("provenance.colour", 5),
    "unknown key": ("colour", 5),
    "version": ("version", 9),
}


@pytest.mark.parametrize(("edit", "value"), EDITS.values(), ids=EDITS.keys())
def test_hand_edited_plans_are_rejected_without_a_traceback(tmp_path: Path, edit: str, value: object) -> None:
    """`check` says what is wrong: 1 for a plan that cannot run as promised, 2 for a file that is no plan."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(edited(edit, value)))
    result = CliRunner().invoke(cli, ["check", str(path)])
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        assert result.stderr.count("\n") == 1
    shown = CliRunner().invoke(cli, ["show", str(path), "--as", "svg"])
    assert shown.exit_code in (0, 1, 2)
    assert shown.exception is None or isinstance(shown.exception, SystemExit)


@pytest.mark.parametrize("content", ["", "[]", "null", "{", '{"format": "contraflow/model"}', "\x00"])
def test_files_that_are_no_plan_are_refused(tmp_path: Path, content: str) -> None:
    """Exit code 2 and one line."""
    path = tmp_path / "plan.json"
    path.write_text(content)
    for command in ("check", "show"):
        result = CliRunner().invoke(cli, [command, str(path)])
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
    with pytest.raises(PlanError):
        load_plan(path)


def test_loading_a_plan_executes_nothing() -> None:
    """Names in a plan stay names."""
    content = edited("problem.model.name", "os:getcwd")
    assert plan_from_dict(content).problem.model.name == "os:getcwd"


@pytest.mark.parametrize("text", ["", "F0", "0F0x", "0f0", "-1F0", "0F-1", None, 3, "0F0 "])
def test_texts_that_are_no_operation_are_refused(text: object) -> None:
    """Op text is exact."""
    with pytest.raises(PlanError):
        op_from_text(text)


@pytest.mark.parametrize(
    "given", [{"bandwidth": 0.0}, {"bandwidth": math.nan}, {"latency_s": -1.0}, {"latency_s": math.nan}]
)
def test_a_link_that_carries_nothing_is_refused(given: dict[str, float]) -> None:
    """The library's users build links themselves: no file has been read that would have refused them."""
    with pytest.raises(ClusterError, match=next(iter(given))):
        Link(**given)
