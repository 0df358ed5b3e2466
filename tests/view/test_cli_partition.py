"""`contraflow partition`: what it prints, writes and refuses, and what a signal leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from contraflow.__main__ import cli
from contraflow.planner import Layer, ModelGraph

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
BERT = DATA / "dnn-partitioning" / "bert24_training.json"
GNMT = DATA / "pipedream" / "gnmt" / "graph.txt"
PIPER = DATA / "piper" / "bert32a100.json"
TOY = ROOT / "examples" / "toy-model.json"
KEYS = {"objective", "bound", "gap", "status", "seconds", "unit", "minimised", "stages", "file"}


def run(*arguments: object) -> Result:
    """The command's exit code and what it printed."""
    return CliRunner().invoke(cli, ["partition", *map(str, arguments)])


def test_it_prints_objective_bound_and_stages() -> None:
    result = run(GNMT, "--devices", 8, "--bandwidth", "1.25GB/s", "--json")
    content = json.loads(result.stdout)
    assert result.exit_code == 0, result.stderr
    assert set(content) == KEYS
    assert (content["objective"], content["gap"], content["status"]) == (0.019285, 0.0, "optimal")
    assert (content["unit"], content["minimised"], content["file"]) == ("s", "overlap", None)
    assert max(stage["load"] for stage in content["stages"]) == content["objective"]
    assert sum(len(stage["nodes"]) for stage in content["stages"]) == 37


def test_without_json_it_is_a_table_with_the_proof() -> None:
    result = run(BERT)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("6 stages: 41.7458 ms\noptimal: proven bound 41.7458 ms, gap 0 %\n")
    assert "accelerator" in result.stdout


def test_stages_have_replicas_ways_and_modes() -> None:
    arguments = (PIPER, "--devices", 64, "--memory-limit", "2GiB", "--bandwidth", "25GiB/s")
    content = json.loads(run(*arguments, "--json").stdout)
    assert (content["status"], content["minimised"], content["unit"]) == ("optimal", "load", None)
    assert content["objective"] == pytest.approx(0.0320300812)
    assert sum(stage["replicas"] * stage["ways"] for stage in content["stages"]) <= 64
    assert all(len(stage["modes"]) == len(stage["nodes"]) for stage in content["stages"])
    assert {name for stage in content["stages"] for name in stage["modes"]} == {"vanilla", "activation recomp"}
    table = run(*arguments).stdout
    assert table.startswith(f"{len(content['stages'])} stages: 0.0320301\noptimal: proven bound 0.0320301")
    assert all(word in table for word in ("replicas", "ways", "recomp", "vanilla"))
    forbidden = json.loads(run(*arguments, "--replicas", 1, "--ways", 2, "--json").stdout)
    assert {(stage["replicas"], stage["ways"] <= 2) for stage in forbidden["stages"]} == {(1, True)}
    assert forbidden["objective"] > content["objective"]


def test_a_profile_has_replicas_where_they_are_allowed() -> None:
    content = json.loads(run(GNMT, "--devices", 4, "--replicas", 4, "--json").stdout)
    assert (content["status"], content["minimised"]) == ("optimal", "overlap")
    assert sum(stage["replicas"] for stage in content["stages"]) <= 4
    nothing = run(GNMT, "--devices", 4, "--replicas", 4, "--memory-limit", "1MiB")
    assert nothing.stderr == "contraflow: infeasible: no partition on at most 4 devices within 1 MiB each fits\n"


def test_what_is_written_is_what_is_printed(tmp_path: Path) -> None:
    out = tmp_path / "stages.json"
    printed = json.loads(run(TOY, "--devices", 3, "--json", "-o", out).stdout)
    assert printed.pop("file") == str(out)
    assert printed == json.loads(out.read_text())
    assert [stage["nodes"][0] for stage in printed["stages"]] == ["layer0", "layer2", "layer5"]


def test_a_model_has_either_objective_and_a_published_file_its_own(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    ModelGraph.chain([Layer("a", 1.0, 1.0, output_bytes=1), Layer("b", 1.0, 1.0)]).save(model)
    slow = ["--devices", 2, "--bandwidth", "0.5B/s", "--json"]
    found = [json.loads(run(model, "--objective", name, *slow).stdout) for name in ("overlap", "load")]
    assert [(part["objective"], len(part["stages"])) for part in found] == [(4.0, 2), (4.0, 1)]
    assert json.loads(run(GNMT, "--devices", 2, "--objective", "overlap", "--json").stdout)["status"] == "optimal"
    refused = run(BERT, "--objective", "overlap")
    assert (refused.exit_code, refused.stdout) == (2, "")


def test_no_partition_is_an_answer_with_exit_code_1(tmp_path: Path) -> None:
    out = tmp_path / "stages.json"
    result = run(BERT, "--cpus", 0, "--memory-limit", 1, "--json", "-o", out)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["status"] == "infeasible"
    assert json.loads(result.stdout)["file"] is None
    assert not out.exists()
    assert run(GNMT, "--devices", 99).stderr == "contraflow: infeasible: no partition into exactly 99 stages fits\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([GNMT], "give their number"),
        ([TOY], "give their number"),
        ([GNMT, "--devices", 2, "--cpus", 1], "what a CPU can do"),
        ([BERT, "--bandwidth", 1], "transfer times"),
        ([BERT, "--devices", 0, "--cpus", 0], "at least one device"),
        ([BERT, "--devices", -1], "-1 is not in the range"),
        ([BERT, "--objective", "overlap"], "is its authors': load, not overlap"),
        ([BERT, "--objective", "speed"], "is not one of 'overlap', 'load'"),
        ([GNMT, "--devices", 2, "--bandwidth", 0], "more than 0"),
        ([GNMT, "--devices", 2, "--replicas", 0], "0 is not in the range"),
        ([GNMT, "--devices", 2, "--ways", 2], "only Piper instances say what layers take that are split"),
        ([BERT, "--replicas", 2], "only PipeDream profiles and Piper instances have replicas"),
        ([TOY, "--devices", 2, "--replicas", 2], "only PipeDream profiles and Piper instances have replicas"),
        ([PIPER, "--devices", 0], "at least one device"),
        ([GNMT, "--devices", 2, "--memory-limit", "lots"], "lots"),
        ([GNMT, "--devices", 2, "-o", "no/such/folder/stages.json"], "folder"),
        (["nothing.json"], "cannot read"),
        ([Path(__file__)], "is not JSON"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2(arguments: list[object], message: str) -> None:
    found = run(*arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


_ENDS_ITSELF = """
import os, sys
from contraflow.__main__ import cli
from contraflow.planner.cli.progress import SearchProgress
number = int(sys.argv.pop())
SearchProgress.__call__ = lambda self, progress: os.kill(os.getpid(), number)
cli()
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 0, ""), (signal.SIGTERM, 143, "contraflow: terminated: this is the best so far\n")],
)
def test_a_signal_keeps_the_best_so_far(tmp_path: Path, number: signal.Signals, code: int, said: str) -> None:
    """It comes when the first partition has been found."""
    out = tmp_path / "stages.json"
    rungs = [Layer(f"l{k}", 1 + k % 7 / 10, 1.0, output_bytes=k % 5) for k in range(60)]
    names = [layer.name for layer in rungs]
    edges = [(a, b) for gap in (3, 7) for a, b in zip(names, names[gap:], strict=False)]
    ModelGraph(tuple(rungs), tuple(edges)).save(tmp_path / "wide.json")
    arguments = ["partition", str(tmp_path / "wide.json"), "--devices", "5", "--bandwidth", "1", "-o", str(out)]
    command = [sys.executable, "-c", _ENDS_ITSELF, *arguments, str(int(number))]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == code, found.stderr
    assert found.stderr.replace(f"wrote {out}\n", "") == said
    content = json.loads(out.read_text())
    assert content["status"] == "feasible"
    assert sorted(node for stage in content["stages"] for node in stage["nodes"]) == sorted(names)


def test_it_loads_neither_torch_nor_the_compiler() -> None:
    code = (
        "import sys\nfrom contraflow.__main__ import cli\n"
        f"cli(['partition', {str(TOY)!r}, '--devices', '2', '--json'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'numba') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"
