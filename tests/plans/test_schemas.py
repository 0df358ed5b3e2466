"""The published JSON Schemas and the readers of the files agree."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import pytest

from contraflow.planner import (
    Cluster,
    InputError,
    ModelFamily,
    ModelGraph,
    Plan,
    SearchSpace,
    Workload,
    check,
    plan,
    plan_from_dict,
    plan_to_dict,
)
from contraflow.planner.problem.layer import WORKSPACES
from contraflow.planner.runs.trace_file import trace_from_dict

jsonschema: Any = pytest.importorskip("jsonschema", reason="pip install 'contraflow[test]'")

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "contraflow.schema.json").read_text())
READERS: dict[str, Callable[[Any], object]] = {
    "model": ModelGraph.from_dict,
    "family": ModelFamily.from_dict,
    "cluster": Cluster.from_dict,
    "workload": Workload.from_dict,
    "plan": plan_from_dict,
    "space": SearchSpace.from_dict,
    "run": trace_from_dict,
}


def validator(name: str) -> Any:
    """Of one kind of file."""
    return jsonschema.Draft202012Validator(SCHEMA | {"anyOf": [{"$ref": f"#/$defs/{name}"}]})


def planned(schedule: str, *methods: str) -> Any:
    """plan.json of a small problem."""
    model, cluster = ModelGraph.load(ROOT / "examples/toy-model.json"), Cluster.load(ROOT / "examples/cluster-toy.toml")
    found = plan(model, cluster, Workload(4), SearchSpace(schedule, asynchronous=methods), 20, bound=False).plan
    assert found is not None
    return json.loads(json.dumps(plan_to_dict(found)))


def documents() -> Iterator[Any]:
    """Files of every kind."""
    model = json.loads((ROOT / "examples/toy-model.json").read_text())
    whole = {
        "name": "w", "forward_s": 1, "backward_input_s": 1.5, "backward_weight_s": 0, "parameter_bytes": 8,
        "stash_bytes": 4, "input_bytes": 2, "parameter_shapes": [[2, 1]], "trainable_bytes": 4,
    }  # fmt: skip
    shared = [{"layers": ["w", "v"], "bytes": 8}]
    full = {
        "format": "contraflow/model", "version": 1, "name": "x", "micro_batch_size": 2, "device": "cpu",
        "layers": [whole, whole | {"name": "v"} | dict.fromkeys(WORKSPACES, 3)], "edges": [["w", "v"]],
        "kept_twice": [{"layers": ["w", "v"], "bytes": 2, "weight_bytes": 1}], "shared": shared, "ways": {"tensor": 2},
        "speeds": {"toy": {"mean": 2.0, "least": 1.0, "most": 3.0}},
    }  # fmt: skip
    yield from (("model", model), ("model", full), ("family", ModelFamily((ModelGraph.from_dict(full),)).to_dict()))
    yield from (("cluster", tomllib.loads(path.read_text())) for path in sorted(ROOT.glob("examples/cluster-*.toml")))
    yield "cluster", Cluster.load(ROOT / "examples/cluster-a100.toml").to_dict()
    yield "workload", Workload(8, "adam", "mixed", 10, sharded=True).to_dict()
    yield "space", SearchSpace("search", 2, False, asynchronous=("stash",), replicas=1).to_dict()
    yield from (("space", SearchSpace(cut=cut).to_dict()) for cut in (("l1", "l2"), (("l0",), ("l1", "l2"))))
    yield "plan", planned("1f1b")
    yield "run", corpus.traced()[0][1]
    yield pytest.param("plan", planned("pipedream", "stash"), marks=pytest.mark.slow)


def edits(content: Any) -> Iterator[Any]:
    """The document with one key left out, or one value replaced; of long lists, their beginning."""

    def places(value: Any, way: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        entries = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
        for key, inner in entries:
            yield (*way, key)
            yield from places(inner, (*way, key))

    for way in places(content, ()):
        for new in (..., None, -1, 0, 1.5, "x", [], {}, True):
            made = copy.deepcopy(content)
            holder = made
            for key in way[:-1]:
                holder = holder[key]
            if new is ...:
                del holder[way[-1]]
            else:
                holder[way[-1]] = new
            yield made


@pytest.mark.long
@pytest.mark.parametrize(("name", "content"), list(documents()))
def test_what_is_read_is_what_the_schema_says(name: str, content: Any) -> None:
    """Every real file is valid; whatever a reader takes of its edits is, too, if it can run; no other key is."""
    valid = validator(name).is_valid
    READERS[name](content)
    assert valid(content), next(validator(name).iter_errors(content))
    assert not valid(content | {"nonsense": 1})
    refused = 0
    for other in edits(content):
        try:
            read = READERS[name](copy.deepcopy(other))
        except InputError:
            refused += not valid(other)
            continue
        impossible = isinstance(read, Plan) and check(read)  # a device -1 is for the checker to find
        assert valid(other) or impossible, jsonschema.exceptions.best_match(validator(name).iter_errors(other)).message
    assert refused > 0


def test_the_schema_is_one() -> None:
    """And its definitions are those of all readers."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(READERS) <= set(SCHEMA["$defs"])
