"""Published files: what every number becomes, and that every mistake is one line that names it."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from instances import solved

from contraflow.__main__ import cli
from contraflow.planner import Cluster, Workload
from contraflow.planner.basics.errors import InputError, ModelError
from contraflow.planner.formats import (
    FormatError,
    PipeDreamProfile,
    PiperInstance,
    PlacementInstance,
    load_family,
    read,
)

DATA = Path(__file__).parents[1] / "data"
BERT = DATA / "dnn-partitioning" / "bert24_training.json"
GNMT = DATA / "pipedream" / "gnmt" / "graph.txt"

PROFILE = """\
node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=0.0, parameter_size=0.0
node2 -- LSTM(4, 8) -- forward_compute_time=1.5, backward_compute_time=3.0, activation_size=[64.0; 8.0], parameter_size=96.0
node3 -- __getitem__(0) -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=64.0, parameter_size=0.0
node4 -- __getitem__(1) -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=8.0, parameter_size=0.0
node5 -- Linear(8, 2) -- forward_compute_time=0.5, backward_compute_time=0.25, activation_size=16, parameter_size=64
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
\tnode3 -- node5
"""  # noqa: E501


def operator(id: int, **rest: Any) -> dict[str, Any]:
    values = {"id": id, "name": f"op{id}", "fpgaLatency": 1.0 * id, "cpuLatency": 10.0 * id, "size": 4.0}
    return values | {"isBackwardNode": 0, "supportedOnFpga": 1, "colorClass": id} | rest


PLACEMENT: dict[str, Any] = {
    "maxSizePerFPGA": 100.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        operator(1),
        operator(2),
        operator(3, isBackwardNode=True, colorClass=2),
        operator(4, isBackwardNode=True, colorClass=1),
        operator(5, isBackwardNode=True),  # a backward that has no forward: of a loss, say
    ],
    "edges": [
        {"sourceId": 1, "destId": 2, "cost": 0.5, "size": 32.0},
        {"sourceId": 1, "destId": 4, "cost": 0.5, "size": 32.0},
        {"sourceId": 2, "destId": 5, "cost": 0.25},
        {"sourceId": 5, "destId": 3, "cost": 0.125},
        {"sourceId": 3, "destId": 4, "cost": 0.125},
    ],
}


def mode(name: str, time: float, a: float, b: float) -> dict[str, Any]:
    costs = {"timePerSample": time, "parameterSize": 8.0, "memoryUsageA": a, "memoryUsageB": b}
    return {"id": name} | costs | {"syncTimeFw": {}, "syncTimeBw": {}}


PIPER: dict[str, Any] = {
    "maxDevices": 4,
    "maxMemoryPerDevice": 1000.0,
    "bandwidth": 100.0,
    "mbsInBatch": 16,
    "nodes": [
        {
            "id": 0,
            "name": "layer",
            "TMPCs": {"1": [mode("vanilla", 3.0, 24, 16), mode("activation recomp", 4.0, 5, 40)]},
        },
        {"id": 7, "name": "layer", "TMPCs": {"1": [mode("vanilla", 3.0, 24, 16)], "2": [mode("vanilla", 2.0, 12, 8)]}},
    ],
    "edges": [{"sourceId": 0, "destId": 7, "communicationCost": 20.0}],
}


def written(folder: Path, content: object) -> Path:
    path = folder / "instance.json"
    path.write_text(json.dumps(content))
    return path


def changed(content: dict[str, Any], *keys: Any, **values: Any) -> dict[str, Any]:
    """A deep copy with some values at a place replaced; None takes a key away."""
    result = copy.deepcopy(content)
    place: Any = result
    for key in keys:
        place = place[key]
    place.update(values)
    for key in [key for key, value in values.items() if value is None]:
        del place[key]
    return result


# ------------------------------------------------------------------ PipeDream


def test_a_profile_in_milliseconds_is_a_model_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(PROFILE)
    found = read(path)
    assert isinstance(found, PipeDreamProfile)
    assert [node.activation_bytes for node in found.nodes] == [0, 72, 64, 8, 16]
    assert [layer.name for layer in found.model.layers] == ["node2 LSTM", "node3 __getitem__", "node5 Linear"]
    lstm, _, linear = found.model.layers
    assert (lstm.forward_s, lstm.backward_s, lstm.separable) == (0.0015, 0.003, False)
    assert (lstm.output_bytes, lstm.stash_bytes, lstm.parameter_bytes) == (72, 72, 96)
    assert (linear.output_bytes, linear.parameter_bytes) == (16, 64)
    assert found.model.edges == (("node2 LSTM", "node3 __getitem__"), ("node3 __getitem__", "node5 Linear"))


def test_inputs_and_unused_items_of_the_published_profile_are_left_out() -> None:
    found = read(GNMT)
    assert isinstance(found, PipeDreamProfile)
    assert (len(found.nodes), len(found.trained.nodes)) == (48, 37)
    assert found.name == "gnmt"
    assert not any(node.description.startswith("Input") for node in found.trained.nodes)
    assert sum(node.description.startswith("__getitem__") for node in found.trained.nodes) == 12


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("forward_compute_time=1.5", "forward_compute_time=-1.5", "line 2: node 'node2': forward_compute_time must be"),
        ("forward_compute_time=1.5", "forward_compute_time=nan", "line 2: node 'node2': forward_compute_time must be"),
        ("forward_compute_time=1.5", "forward_compute_time=fast", "must be a number, got 'fast'"),
        ("forward_compute_time=1.5, ", "", "line 2: node 'node2': forward_compute_time is missing"),
        ("forward_compute_time=1.5", "forward_compute_time=[1; 2]", "must be one number, got 2"),
        ("[64.0; 8.0]", "[64.0; ]", "activation_size must be a number, got ''"),
        ("activation_size=16,", "activation_size,", "line 5: node 'node5': a cost must read"),
        ("node5 -- Linear", "node4 -- Linear", "line 5: node 'node4' appears twice"),
        ("\tnode3 -- node5", "\tnode3 -- node9", "line 9: edge node3 -- node9: there is no node 'node9'"),
        ("\tnode3 -- node5", "\tnode3", "line 9: an edge must read"),
        ("\tnode3 -- node5", "\tnode3 -- node2", "has a cycle: "),
        ("node2 -- LSTM(4, 8) -- ", "node2 -- ", "line 2: a node must read"),
    ],
)
def test_a_broken_profile_names_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(PROFILE.replace(old, new))
    with pytest.raises(FormatError) as caught:
        read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ dnn-partitioning


def test_forward_and_backward_of_a_colour_are_one_layer(tmp_path: Path) -> None:
    found = read(written(tmp_path, PLACEMENT))
    assert isinstance(found, PlacementInstance)
    assert (found.accelerators, found.cpus, found.limit_bytes) == (2, 1, 100)
    assert found.groups.members == ((1, 4), (2, 3), (5,))
    first, second, loss = found.model.layers
    assert (first.name, first.forward_s, first.backward_s) == ("op1", 0.001, 0.004)
    assert (second.name, second.forward_s, second.backward_s) == ("op2", 0.002, 0.003)
    assert (first.buffer_bytes, first.output_bytes, second.output_bytes) == (8, 32, 0)
    assert (loss.name, loss.forward_s, loss.backward_s) == ("op5", 0, 0.005)


def test_a_backward_without_forward_is_ordered_as_its_mirror_image(tmp_path: Path) -> None:
    """5 hands a gradient to 3, the backward of 2: so 2 comes before it, as its forward would."""
    found = read(written(tmp_path, PLACEMENT))
    assert isinstance(found, PlacementInstance)
    assert found.model.edges == (("op1", "op2"), ("op2", "op5"))


def test_colours_that_close_a_cycle_are_one_group(tmp_path: Path) -> None:
    content = changed(PLACEMENT, nodes=[operator(1), operator(2), operator(3, colorClass=1), operator(4)])
    content["edges"] = [{"sourceId": a, "destId": b, "cost": 1.0} for a, b in ((1, 2), (2, 3), (3, 4))]
    found = read(written(tmp_path, content))
    assert isinstance(found, PlacementInstance)
    assert found.groups.members == ((1, 2, 3), (4,))
    assert found.model.layers[0].output_bytes == round(2**31 / 1000)  # a millisecond, as the file gives no size


def test_the_published_instance_is_read_whole() -> None:
    found = read(BERT)
    assert isinstance(found, PlacementInstance)
    assert (found.accelerators, found.cpus, found.limit_bytes) == (6, 1, 17185374208)
    assert (len(found.nodes), len(found.model.layers)) == (64, 32)
    assert sum(x.forward_s + x.backward_s for x in found.model.layers) == pytest.approx(0.217813)
    assert sum(x.buffer_bytes for x in found.model.layers) == 3649649184


@pytest.mark.parametrize(
    ("place", "values", "message"),
    [
        (("nodes", 1), {"fpgaLatency": -1}, "node 2: fpgaLatency must be finite and not negative, got -1"),
        (("nodes", 1), {"fpgaLatency": float("nan")}, "node 2: fpgaLatency must be finite"),
        (("nodes", 1), {"cpuLatency": None}, "node 2: cpuLatency is missing"),
        (("nodes", 1), {"cpuLatency": "1"}, "node 2: cpuLatency must be a number, got '1'"),
        (("nodes", 1), {"size": 10**400}, "node 2: size must be finite"),
        (("nodes", 1), {"id": 1}, "node 1 appears twice"),
        (("nodes", 1), {"id": "two"}, "nodes[1]: id must be a whole number"),
        (("nodes", 1), {"isBackwardNode": 2}, "node 2: isBackwardNode must be"),
        (("nodes", 1), {"colorClass": 0.5}, "node 2: colorClass must be a whole number"),
        (("edges", 0), {"destId": 9}, "edge 1 -> 9: there is no node 9"),
        (("edges", 0), {"cost": 0.75}, "edges out of node 1 have two costs: 0.75 and 0.5"),
        (("edges", 3), {"destId": 1}, "edge 5 -> 1 leads from a backward node to a forward node"),
        (("edges", 4), {"destId": 5}, "has a cycle: "),
        ((), {"maxFPGAs": 1.5}, "maxFPGAs must be a whole number of at least 0, got 1.5"),
        ((), {"maxCPUs": None}, "maxCPUs is missing"),
        ((), {"nodes": []}, "there are no nodes"),
        ((), {"edges": {}}, "edges must be a list"),
    ],
)
def test_a_broken_placement_names_the_node(
    tmp_path: Path, place: tuple[Any, ...], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError) as caught:
        read(written(tmp_path, changed(PLACEMENT, *place, **values)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_cannot_say_that_a_node_needs_a_cpu(tmp_path: Path) -> None:
    found = read(written(tmp_path, changed(PLACEMENT, "nodes", 1, supportedOnFpga=False)))
    with pytest.raises(FormatError, match="node 2 runs on CPUs only"):
        _ = found.model


# ------------------------------------------------------------------ Piper


def test_recompute_tells_forward_from_backward(tmp_path: Path) -> None:
    """vanilla is forward and backward, recompute adds a forward; alone, vanilla is split one to two."""
    found = read(written(tmp_path, PIPER))
    assert isinstance(found, PiperInstance)
    assert (found.devices, found.limit_bytes, found.bandwidth, found.micro_batches) == (4, 1000, 100, 16)
    both, alone = found.model.layers
    assert (both.name, both.forward_s, both.backward_s) == ("layer #0", 1, 2)
    assert (both.parameter_bytes, both.stash_bytes, both.workspace_bytes, both.output_bytes) == (8, 24, 0, 20)
    assert (alone.name, alone.forward_s, alone.backward_s) == ("layer #7", 1, 2)


def test_a_larger_micro_batch_scales_all_but_the_parameters(tmp_path: Path) -> None:
    content = changed(PIPER, "nodes", 1, "TMPCs", **{"1": PIPER["nodes"][0]["TMPCs"]["1"]})
    found = read(written(tmp_path, content))
    assert isinstance(found, PiperInstance)
    model = found.to_model("recompute", micro_batch_size=2)
    first = model.layers[0]
    assert model.micro_batch_size == 2
    assert (first.forward_s, first.backward_s) == (2, 6)
    assert (first.parameter_bytes, first.stash_bytes, first.output_bytes) == (8, 10, 40)
    assert first.workspace_bytes == 2 * (40 - 2 * 8)


@pytest.mark.parametrize(
    ("place", "values", "message"),
    [
        (("nodes", 1, "TMPCs"), {"1": None, "2": None}, "node 7 has no mode"),
        (("nodes", 1, "TMPCs"), {"1": [], "2": []}, "node 7 has no mode"),
        (("nodes", 1, "TMPCs"), {"0": []}, "node 7: TMPCs: '0' is no whole number of 1 to"),
        (("nodes", 1, "TMPCs"), {"two": []}, "node 7: TMPCs: 'two' is no whole number of 1 to"),
        (("nodes", 1, "TMPCs"), {"2": [mode("x", 1, 1, 1)] * 2}, "node 7, mode 'x' in 2 ways appears twice"),
        (("nodes", 1, "TMPCs"), {"2": [mode("x", 1, 1, 1) | {"syncTimeFw": {"0": -1}}]}, "syncTimeFw must be"),
        (
            ("nodes", 1, "TMPCs"),
            {"2": [mode("x", 1, 1, 1) | {"syncTimeBw": {"0": 8}}]},
            "node 7, mode 'x' in 2 ways: there is no edge 7 -> 0 to synchronise",
        ),
        (("nodes", 1, "TMPCs"), {"1": [mode("vanilla", -1, 1, 1)]}, "node 7, mode 'vanilla': timePerSample must be"),
        (("nodes", 1, "TMPCs"), {"1": [{"id": "vanilla"}]}, "node 7, mode 'vanilla': timePerSample is missing"),
        (("nodes", 1), {"id": 0}, "node 0 appears twice"),
        (("edges", 0), {"communicationCost": None}, "edge 0 -> 7: communicationCost is missing"),
        (("edges", 0), {"sourceId": 7}, "has a cycle: 7 -> 7"),
        ((), {"bandwidth": 0}, "bandwidth must be above 0"),
        ((), {"maxDevices": 0}, "maxDevices must be a whole number of at least 1"),
    ],
)
def test_a_broken_piper_file_names_the_node(
    tmp_path: Path, place: tuple[Any, ...], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError) as caught:
        read(written(tmp_path, changed(PIPER, *place, **values)))
    assert message in str(caught.value)


def test_a_model_is_of_layers_that_one_device_can_run(tmp_path: Path) -> None:
    """Without that a file may still be partitioned."""
    found = read(written(tmp_path, changed(PIPER, "nodes", 1, "TMPCs", **{"1": None})))
    assert isinstance(found, PiperInstance)
    assert [sorted(node.modes) for node in found.nodes] == [[1], [2]]
    with pytest.raises(FormatError, match="node 7 has no mode 'vanilla' on one device"):
        _ = found.model


def test_a_layer_without_recompute_cannot_recompute(tmp_path: Path) -> None:
    found = read(written(tmp_path, PIPER))
    assert isinstance(found, PiperInstance)
    with pytest.raises(FormatError, match="node 7 has no mode"):
        found.to_model("recompute")


# ------------------------------------------------------------------ where models are given


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"nodes": []}', "some words", "[" * 100000])
def test_what_is_no_published_file_is_an_error_of_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    for reader in (read, load_family):
        with pytest.raises(InputError) as caught:
            reader(path)
        assert "\n" not in str(caught.value)


def test_what_cannot_be_read_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00")
    for name in ("x.bin", ".", "missing"):
        for reader in (read, load_family):
            with pytest.raises(InputError):
                reader(tmp_path / name)


def test_a_model_json_is_still_a_model(tmp_path: Path) -> None:
    model = read(GNMT).model
    model.save(tmp_path / "model.json")
    assert load_family(tmp_path / "model.json").members == (model,)
    with pytest.raises(ModelError, match="unknown key"):
        load_family(written(tmp_path, model.to_dict() | {"extra": 1}))
    with pytest.raises(FormatError, match="is no PipeDream profile"):
        read(tmp_path / "model.json")


@pytest.mark.parametrize("content", [PROFILE, PLACEMENT, PIPER])
def test_the_planner_plans_what_a_file_says(tmp_path: Path, content: object) -> None:
    path = tmp_path / "given.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    found = solved(load_family(path).members[0], Cluster.uniform(2), Workload(2))
    assert found.plan is not None
    assert found.bound_s <= found.plan.forecast.step_s


def test_the_command_takes_a_published_file(tmp_path: Path) -> None:
    shutil.copy(BERT, tmp_path)
    (tmp_path / "cluster.toml").write_text(
        '[[nodes]]\ndevices = 2\ndevice = "toy"\nlink = {bandwidth = "12GB/s", latency = "3us"}\n'
        '[devices.toy]\nmemory = "64GiB"\n'
    )
    given = ["plan", str(tmp_path / BERT.name), "--cluster", str(tmp_path / "cluster.toml"), "--micro-batches", "2"]
    out = tmp_path / "plan.json"
    found = CliRunner().invoke(cli, [*given, "--schedule", "1f1b", "--json", "-o", str(out)])
    assert found.exit_code == 0, found.output
    assert len(json.loads(out.read_text())["problem"]["model"]["layers"]) == 32


def test_reading_loads_neither_torch_nor_a_solver() -> None:
    code = (
        "import sys, contraflow.planner.formats, contraflow.planner.partition.dag as g\n"
        "print([m for m in ('torch', 'ortools', 'networkx', 'numba') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
