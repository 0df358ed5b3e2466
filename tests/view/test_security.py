"""What SECURITY.md promises: files are data, and code is run in known places only."""

from __future__ import annotations

import ast
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from contraflow.__main__ import cli
from contraflow.planner import Cluster, ModelGraph, SearchSpace, Workload, plan, save_plan

ROOT = Path(__file__).parents[2]
KNOWN = {
    ("__main__.py", "import_module"): "a command's own module",
    ("planner/basics/compilation.py", "import_module"): "the planner's own kernels, compiled in a process of theirs",
    ("models/registry.py", "importlib.import_module"): "--model module:function",
    ("models/data_tokens.py", "np.load"): "tokens, numbers alone: without allow_pickle numpy refuses objects",
    ("executor/run/gloo_rank.py", "pickle.loads"): "what the parent sent through a pipe",
    ("executor/watch/spawned.py", "pickle.loads"): "what the parent has spawned it to do",
    ("executor/run/children.py", "pickle.loads"): "what a child sent through a pipe",
    ("executor/measure/companions.py", "pickle.loads"): "what the parent sent along",
}
FORBIDDEN = re.compile(
    r"(eval|exec|compile|__import__)"
    r"|(pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve|torch|np|numpy)\.(load|loads|open|Unpickler)"
    r"|(importlib\.)?import_module|runpy\.\w+|os\.(system|popen|exec\w*|spawn\w*)|yaml\.\w+"
)


def calls(path: Path) -> set[str]:
    """The functions that a module calls, as they are written."""
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}


def test_code_is_run_and_objects_are_unpickled_in_known_places_only() -> None:
    """Every other call of the kind is a new way in: think before adding it here."""
    sources = [ROOT / "__main__.py", *(p for d in ("planner", "executor", "models") for p in (ROOT / d).rglob("*.py"))]
    found = {
        (path.relative_to(ROOT).as_posix(), call)
        for path in sources
        for call in calls(path)
        if FORBIDDEN.fullmatch(call)
    }
    assert found == set(KNOWN)
    text = {path: path.read_text() for path in sources}
    assert not [
        path for path, content in text.items() if re.search(r"shell\s*=\s*True|allow_pickle\s*=\s*True", content)
    ]
    unpickling = {
        path.name for path, content in text.items() if re.search(r"^\s*(import|from) pickle\b", content, re.M)
    }
    assert unpickling == {"processes.py", "gloo_rank.py", "spawned.py", "children.py", "companions.py"}


def test_forbidden_calls_would_be_found(tmp_path: Path) -> None:
    """The pattern knows what it is for."""
    (tmp_path / "x.py").write_text(
        "eval('1'); torch.load(f); pickle.loads(b); importlib.import_module('a'); model.eval()"
    )
    assert {call for call in calls(tmp_path / "x.py") if FORBIDDEN.fullmatch(call)} == {
        *("eval", "torch.load", "pickle.loads", "importlib.import_module"),
    }


@pytest.mark.parametrize("command", ["check", "show", "execute", "plan", "compare", "calibrate"])
def test_files_are_data_whatever_they_name(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model called like a function of a module that lies there: no command imports it."""
    monkeypatch.chdir(tmp_path)
    Path("hostile_module.py").write_text("raise SystemExit('imported')")
    toy = json.loads((ROOT / "examples" / "toy-model.json").read_text())
    model = ModelGraph.from_dict({**toy, "name": "hostile_module:build"})
    model.save("model.json")
    Path("cluster.toml").write_text((ROOT / "examples" / "cluster-toy.toml").read_text())
    made = plan(model, Cluster.load("cluster.toml"), Workload(4), SearchSpace(schedule="1f1b")).plan
    assert made is not None
    save_plan(made, "plan.json")
    problem = ["model.json", "--cluster", "cluster.toml", "--micro-batches", "4", "--time-limit", "1"]
    arguments = {
        "plan": [*problem, "-o", "out.json"],
        "compare": problem,
        "calibrate": ["model.json", "plan.json", "-o", "out.json"],
    }
    result = CliRunner().invoke(cli, [command, *arguments.get(command, ["plan.json"])])
    assert "imported" not in f"{result.output}{result.exception}"
    assert "hostile_module" not in sys.modules
    registry = "not in the registry" if find_spec("torch") else "needs torch"
    refused = {"execute": registry, "calibrate": "plan.json"}
    assert refused.get(command, "") in f"{result.output}{result.exception}"
    assert result.exit_code == 0 or command in refused


def test_every_test_that_is_named_exists() -> None:
    """In the file that is named."""
    named = re.findall(r"`(tests/\w+/\w+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) >= 15
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text()]
    assert missing == []
