"""Files and op lists that were made wrong: an answer, or a refusal of one line. `make fuzz` tries many more."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpus
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import json_bytes, mutated_lists, toml_bytes, torn, weird

from contraflow.__main__ import cli
from contraflow.planner.basics import limits
from contraflow.planner.basics.errors import InputError, PlanError
from contraflow.planner.basics.escapes import LINE
from contraflow.planner.basics.limits import MOST_DEVICES, MOST_LAYERS, MOST_MICRO_BATCHES
from contraflow.planner.basics.units import parse_bandwidth, parse_bytes, parse_seconds
from contraflow.planner.check import check
from contraflow.planner.formats import load_family, read
from contraflow.planner.interchange import read_torch_csv
from contraflow.planner.plan_file import load_plan, plan_from_dict
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import SearchSpace, Workload
from contraflow.planner.runs.trace_file import load_trace
from contraflow.planner.simulate import evaluate, simulate

fuzzed = settings(
    max_examples=60, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
Reader = Callable[[Path], Any]
dice = st.randoms(use_true_random=False)


def answered(reader: Callable[[Any], Any], source: Any) -> Any:
    """What the reader makes of it, None where it refuses in one short line; whatever else it raises is a fault."""
    try:
        return reader(source)
    except InputError as error:
        line = str(error)
    assert 0 < len(line) <= 2 * LINE
    assert "\n" not in line
    return None


def _published(path: Path) -> ModelGraph:
    return read(path).model


def _json(documents: Callable[[], Any]) -> Callable[[random.Random], bytes]:
    return lambda rng: json_bytes(rng.choice(documents()), rng)


READERS: dict[str, tuple[Callable[[random.Random], bytes], Reader]] = {
    "model": (_json(corpus.models), load_family),
    "cluster": (lambda rng: toml_bytes(rng.choice(corpus.clusters()), rng), Cluster.load),
    "plan": (_json(corpus.plan_files), load_plan),
    "run": (_json(lambda: [run for _, run in corpus.traced()]), load_trace),
    "dnn-partitioning": (_json(lambda: [corpus.PLACEMENT]), _published),
    "piper": (_json(lambda: [corpus.PIPER]), _published),
    "pipedream": (lambda rng: torn(corpus.PROFILE.encode(), rng), _published),
    "torch-csv": (lambda rng: torn(corpus.TORCH_CSV.encode(), rng), read_torch_csv),
}


@pytest.mark.parametrize("name", READERS)
@fuzzed
@given(rng=dice)
def test_every_reader_answers_or_refuses_what_was_made_wrong(tmp_path: Path, name: str, rng: random.Random) -> None:
    content, reader = READERS[name]
    (tmp_path / "file").write_bytes(content(rng))
    answered(reader, tmp_path / "file")


@fuzzed
@given(content=st.binary(max_size=200), name=st.sampled_from(sorted(READERS)))
def test_every_reader_refuses_bytes(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / "file").write_bytes(content)
    answered(READERS[name][1], tmp_path / "file")


@fuzzed
@given(rng=dice)
def test_every_value_of_a_workload_is_checked(rng: random.Random) -> None:
    """And of a search space and a quantity."""
    for kind in (Workload, SearchSpace, Layer):
        keys = rng.sample(sorted(kind.__dataclass_fields__), 2)
        values: dict[str, Any] = {"micro_batches": 4} if kind is Workload else {"name": "a"} if kind is Layer else {}
        simple = {key: weird(rng) for key in keys if key not in ("asynchronous", "parameter_shapes")}
        answered(lambda given, kind=kind: kind(**given), values | simple)
    for parse in (parse_bytes, parse_bandwidth, parse_seconds):
        answered(lambda value, parse=parse: parse(value, "it"), weird(rng))


@fuzzed
@given(rng=dice)
def test_op_lists_that_no_plan_can_run_are_named(rng: random.Random) -> None:
    """`check` says what is wrong with them, `evaluate` raises PlanError at most, and what is sound has a forecast."""
    document = dict(rng.choice(corpus.plan_files()))
    document["orders"] = mutated_lists(document["orders"], rng)
    plan = answered(plan_from_dict, document)
    if plan is None:
        return
    found = check(plan)
    try:
        forecast = evaluate(plan)
    except PlanError:
        assert found
        return
    assert math.isfinite(forecast.step_s)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda ops: ops.insert(1, ops[0]), "repeated-op"),
        (lambda ops: ops.pop(0), "missing-op"),
        (lambda ops: ops.append("7F0"), "unexpected-op"),
        (lambda ops: ops.append("0F99999999"), "unexpected-op"),
        (lambda ops: ops.append("0RECV_F0<1"), "unexpected-op"),
        (lambda ops: ops.append("0SEND_S0>99999999"), "unexpected-op"),
        (lambda ops: ops.append("0TIE=99999999"), "unexpected-op"),
        (lambda ops: ops.append("0PREDICT0+3"), "prediction"),
        (lambda ops: ops.reverse(), "order"),
        (lambda ops: ops.clear(), "missing-op"),
    ],
)  # fmt: skip
def test_every_fault_of_a_list_is_named(edit: Callable[[list[str]], Any], named: str) -> None:
    document = json.loads(json.dumps(corpus.plan_files()[0]))
    edit(document["orders"][0])
    plan = plan_from_dict(document)
    assert any(named in violation.code for violation in check(plan)), check(plan)
    if "order" not in named and named != "prediction":
        with pytest.raises(PlanError, match=named):
            simulate(plan)


# ---------------------------------------------------------------- how much is read


def _layers(count: int) -> dict[str, Any]:
    return corpus.models()[0] | {"layers": [{"name": f"l{k}"} for k in range(count)], "edges": []}


def _plan(**changes: Any) -> dict[str, Any]:
    return corpus.plan_files()[0] | changes


TOO_MUCH: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], tuple[object, ...]]] = {
    "layers": (lambda: _layers(MOST_LAYERS + 1), ModelGraph.from_dict, (MOST_LAYERS + 1, MOST_LAYERS)),
    "devices": (
        lambda: {"nodes": [{"device": "cpu", "count": 10_000, "devices": 10_000}]}, Cluster.from_dict,
        (10**8, MOST_DEVICES),
    ),
    "micro-batches": (
        lambda: {"micro_batches": 10**8}, Workload.from_dict, (10**8, MOST_MICRO_BATCHES),
    ),
    "stages": (lambda: _plan(stages=[["a"]] * 9000), plan_from_dict, (9000, limits.MOST_STAGES)),
    "a name": (lambda: _plan(weights="x" * 20_000), plan_from_dict, (20_000, limits.MOST_NAME)),
    "bytes": (lambda: _layers(1) | {"layers": [{"name": "a", "stash_bytes": 2**60}]}, ModelGraph.from_dict, (2**53,)),
    "bytes together": (
        lambda: _layers(1) | {"layers": [{"name": x, "stash_bytes": 2**53} for x in "ab"]}, ModelGraph.from_dict,
        (2**55, 2**53),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_is_refused_with_both_numbers(name: str) -> None:
    """Before anything is built of it."""
    content, reader, numbers = TOO_MUCH[name]
    with pytest.raises(InputError) as caught:
        reader(content())
    assert all(str(number) in str(caught.value) for number in numbers), str(caught.value)


@pytest.mark.parametrize(
    ("content", "suffix", "named"),
    [
        (b"[" * 100_000, ".json", "nested 100000 levels deep, at most 100"),
        (b'{"a":' * 50_000, ".json", "nested 50000 levels deep"),
        (b'{"a": 1, "a": 2}', ".json", "key 'a' appears 2 times"),
        (b'{"a": "\xff"}', ".json", "is not UTF-8 text (byte 7)"),
        (b'{"a": \x00}', ".json", "is not JSON"),
        (b"9" * 5000, ".json", "is not JSON"),
        (b"a = " + b"[" * 100_000, ".toml", "nested"),
        (b"a." * 5000 + b"b = 1", ".toml", "line 1 names 5001 levels"),
        (b"# " + b"x" * (limits.MOST_TABLE_FILE_BYTES + 9), ".toml", f"at most {limits.MOST_TABLE_FILE_BYTES}"),
    ],
    ids=str,
)
def test_text_that_is_strange_is_refused_in_one_line(tmp_path: Path, content: bytes, suffix: str, named: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    (tmp_path / "model.json").write_text(json.dumps(corpus.models()[0]))
    command = ["check", str(path)]
    if suffix == ".toml":
        model = str(tmp_path / "model.json")
        command = ["plan", model, "--cluster", str(path), "--micro-batches", "2", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(cli, command)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert named in result.stderr


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """Editors on Windows write it."""
    (tmp_path / "model.json").write_text(json.dumps(corpus.models()[0]), encoding="utf-8-sig")
    (tmp_path / "cluster.toml").write_text(corpus.CLUSTER, encoding="utf-8-sig")
    assert load_family(tmp_path / "model.json").members[0] == ModelGraph.from_dict(corpus.models()[0])
    assert len(Cluster.load(tmp_path / "cluster.toml")) == 4


@pytest.mark.parametrize("given", [0, 100_000])
def test_a_plan_that_promises_far_more_than_it_lists_is_answered_at_once(given: int) -> None:
    """Ten million passes of two ops: nothing is built for them."""
    plan = plan_from_dict(corpus.plan_files()[0])
    workload = replace(plan.problem.workload, micro_batches=10**6)
    pipeline = replace(plan.pipelines[0], micro_batches=tuple(range(10**6 if given else 4)))
    huge = replace(plan, problem=replace(plan.problem, workload=workload), pipelines=(pipeline,))
    found = check(huge)
    assert {violation.code for violation in found} == {"missing-op" if given else "micro-batches"}
    assert len(found) <= 10_001
    with pytest.raises(PlanError):
        simulate(huge)


def test_what_is_large_and_legitimate_is_read() -> None:
    """Thousands of layers and devices."""
    assert len(ModelGraph.from_dict(_layers(10_000)).layers) == 10_000
    assert len(Cluster.from_dict({"nodes": [{"device": "cpu", "count": 512, "devices": 8}]})) == 4096


@pytest.mark.parametrize(
    "text",
    [
        "flops = -1",
        "flops = nan",
        "flops = inf",
        'flops = "fast"',
        "speed = 1e400",
        "speed = 1e-300",
        "memory_bandwidth = 0",
    ],
)
def test_a_device_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.toml").write_text(f'[[nodes]]\ndevice = "toy"\n[devices.toy]\nmemory = 1\n{text}\n')
    with pytest.raises(InputError, match=text.split()[0]):
        Cluster.load(tmp_path / "cluster.toml")
