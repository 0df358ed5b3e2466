"""The command line: what programs rely on (options, JSON, exit codes) and what people see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from commands import refused, run

from contraflow import __version__
from contraflow.__main__ import cli
from contraflow.planner.basics.errors import InputError
from contraflow.planner.cli.common import check_devices
from contraflow.planner.cli.progress import SearchProgress
from contraflow.planner.plan_file import load_plan
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.schedules import SCHEDULES
from contraflow.planner.search.driver import Progress

PROBLEM_OPTIONS = {
    "--cluster", "--micro-batches", "--samples", "--micro-batch-size", "--team", "--memory-limit",
    "--optimizer", "--precision", "--pipelines", "--cut", "--no-offload",
    "--no-recompute", "--no-split-backward", "--no-separate-backward", "--no-shard-optimizer", "--time-limit",
    "--deterministic-limit", "--seed", "--workers", "--json",
}  # fmt: skip
ASYNCHRONOUS_OPTIONS = {"--asynchronous", "--update-every", "--staleness-limit", "--quality-within"}
OPTIONS: dict[str, set[str]] = {
    "plan": PROBLEM_OPTIONS | ASYNCHRONOUS_OPTIONS | {"--schedule", "--explain", "--output", "-o"},
    "compare": PROBLEM_OPTIONS | ASYNCHRONOUS_OPTIONS | {"--measured", "--as", "--output", "-o", "--frontier"},
    "serve": PROBLEM_OPTIONS | ASYNCHRONOUS_OPTIONS | {"--schedule", "--port", "--open", "--once", "--output", "-o"},
    "export": {"--to", "--model"},
    "calibrate": {"--output", "-o", "--plan", "--no-overhead", "--json"},
    "cluster": set(),
    "env": {"--json"},
    "partition": {
        "--devices", "--cpus", "--memory-limit", "--bandwidth", "--objective", "--time-limit", "--seed", "--workers",
        "--output", "-o", "--json", "--replicas", "--ways",
    },
    "check": {"--json"},
    "show": {"--as", "--what", "--run", "--only-run", "--output", "-o", "--json"},
    "profile": {
        "--micro-batch-size", "--device", "--precision", "--efficiency", "--data", "--threads", "--load", "--cluster",
        "--layers", "--output", "-o", "--json", "--team", "--ways", "--link", "--compile",
        "--engine",
    },
    "execute": {
        "--steps", "--model", "--data", "--lr", "--seed", "--dtype", "--transport", "--trace", "--checkpoint",
        "--on-nan", "--enforce", "--checkpoint-every", "--keep", "--allow-change", "--resume", "--timeout", "--json",
        "--lr-schedule", "--warmup", "--lr-steps", "--lr-floor", "--weight-decay",
        "--momentum", "--betas", "--eps", "--clip-norm", "--loss-scale", "--evaluate-every", "--evaluate-steps",
        "--engine", "--device", "--compile", "--mini-batch", "--smoothing", "--metrics", "--evaluate-only",
    },
}  # fmt: skip


def problem(folder: Path, *more: object, command: str = "plan") -> list[object]:
    """Arguments of `plan` on the folder's files."""
    return [
        command, folder / "model.json", "--cluster", folder / "cluster.toml", "--micro-batches", 4,
        "--time-limit", 10, *more,
    ]  # fmt: skip


# ---------------------------------------------------------------- the contract


@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_of_every_command_are_frozen(name: str) -> None:
    """Adding one means adding it here; removing one breaks somebody's program."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [p for p in command.params if isinstance(p, click.Option)]
    assert {flag for option in options for flag in option.opts} == OPTIONS[name]
    assert all(option.help for option in options)


def test_the_commands_are_frozen() -> None:
    """In the order of use."""
    assert cli.list_commands(click.Context(cli)) == [
        "profile", "plan", "check", "serve", "show", "compare", "partition", "execute", "cluster", "export",
        "calibrate", "env",
    ]  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_every_help_has_an_example(name: str) -> None:
    """One that can be pasted."""
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"contraflow {name} " in result.stdout.split("Example")[1]


def test_version_and_help() -> None:
    """The two flags of the group."""
    assert run("--version").stdout == f"contraflow, version {__version__}\n"
    assert "Exit codes" in run("--help").stdout


def test_planning_commands_do_not_import_torch(folder: Path) -> None:
    """They run on login nodes: in a fresh process, `plan --help`, `check` and `show` load no torch."""
    script = (
        "import sys\n"
        "from contraflow.__main__ import cli\n"
        "for arguments in (['--help'], ['plan', '--help'], ['check', 'good.json'], ['show', 'good.json']):\n"
        "    try:\n"
        "        cli.main(arguments)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, arguments\n"
        "loaded = {'torch', 'ortools'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_dash_m_is_the_same_program(folder: Path) -> None:
    """`python -m contraflow`, with an error: its exit code and one line."""
    command = [sys.executable, "-m", "contraflow", "check"]
    good = subprocess.run([*command, "good.json"], cwd=folder, capture_output=True, text=True, check=False)
    bad = subprocess.run([*command, "none.json"], cwd=folder, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert (bad.returncode, bad.stderr) == (2, "contraflow: cannot read none.json: No such file or directory\n")


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--micro-batches", "0"], "--micro-batches"),
        (["--micro-batches", "many"], "--micro-batches"),
        (["--time-limit", "nan"], "--time-limit"),
        (["--time-limit", "inf"], "--time-limit"),
        (["--time-limit", "0"], "--time-limit"),
        (["--time-limit", "soon"], "--time-limit"),
        (["--deterministic-limit", "0"], "--deterministic-limit"),
        (["--deterministic-limit", "nan"], "--deterministic-limit"),
        (["--memory-limit", "8Gib"], "--memory-limit"),
        (["--memory-limit", "-1"], "--memory-limit"),
        (["--optimizer", "lion"], "'sgd'"),
        (["--precision", "fp8"], "'mixed'"),
        (["--pipelines", "0"], "--pipelines"),
        (["--workers", "0"], "--workers"),
        (["--seed", "-1"], "--seed"),
        (["--asynchronous", "adam"], "pipeoptim-lookahead"),
        (["--asynchronous", "naive,"], "unknown asynchronous method ''"),
        (["--asynchronous", "naive", "--schedule", "1f1b"], "'1f1b' has a flush"),
        (["--asynchronous", "stash", "--update-every", "3"], "divides 4, got 3"),
        (["--asynchronous", "stash", "--update-every", "4"], "at least two updates of 4 micro-batches"),
        (["--asynchronous", "2bw", "--update-every", "4"], "at least two updates of 4 micro-batches"),
        (["--asynchronous", "stash", "--staleness-limit", "-1"], "--staleness-limit"),
        (["--update-every", "2"], "--update-every needs --asynchronous"),
        (["--staleness-limit", "2"], "--staleness-limit needs --asynchronous"),
        (["--quality-within", "2"], "--quality-within needs --asynchronous"),
        (["--schedule", "fastest"], ", ".join(SCHEDULES)),
        (["--cluster", "/nowhere/cluster.toml"], "/nowhere/cluster.toml"),
        (["-o", "/nowhere/plan.json"], "/nowhere"),
        (["--colour", "blue"], "--colour"),
    ],
)  # fmt: skip
def test_bad_options_are_one_line_and_exit_code_2(folder: Path, options: list[str], named: str) -> None:
    """The line names the option, or what is allowed."""
    assert named in refused(*problem(folder, *options))


def test_a_directory_is_no_output(folder: Path) -> None:
    """Said before the search, by every command that writes."""
    assert "is a directory" in refused(*problem(folder, "-o", folder))
    assert "is a directory" in refused("show", folder / "good.json", "-o", folder)


def test_a_read_only_folder_is_no_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before the search."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "not writable" in refused(*problem(folder, "-o", folder / "plan.json"))


def test_missing_files_and_arguments(folder: Path) -> None:
    """Each names what is missing."""
    assert "none.json" in refused("plan", "none.json", *problem(folder)[2:])
    assert "none.json" in refused("check", "none.json")
    assert "none.json" in refused("show", "none.json")
    assert "folder/model" in refused("plan", "folder/model", *problem(folder)[2:])
    assert "MODEL" in refused("plan")
    assert "--cluster" in refused("plan", folder / "model.json")
    assert "No such command" in refused("plans")


def test_a_model_that_is_not_text_is_refused(folder: Path) -> None:
    """Binary files are not JSON."""
    (folder / "model.json").write_bytes(b"\xff\xfe\x00")
    assert "model.json" in refused(*problem(folder))


def test_times_of_one_preset_are_no_times_of_another() -> None:
    """A model measured on a cpu is not planned for A100s, unless a [devices] entry says how they compare."""
    model = ModelGraph((Layer("a"),), device="cpu")
    nodes = {"nodes": [{"devices": 1, "device": "A100-80GB"}]}
    with pytest.raises(InputError, match=r"cpu.*A100-80GB"):
        check_devices(model, Cluster.from_dict(nodes))
    check_devices(model, Cluster.from_dict(nodes | {"devices": {"A100-80GB": {"speed": 40.0}}}))
    check_devices(model, Cluster.from_dict({"nodes": [{"devices": 1, "device": "cpu"}]}))
    check_devices(ModelGraph((Layer("a"),)), Cluster.from_dict(nodes))
    check_devices(ModelGraph((Layer("a"),), device="a laptop"), Cluster.from_dict(nodes))


def test_names_are_profiled_by_whoever_runs_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner is handed a profiler; it knows no executor."""
    asked: list[str] = []

    def profile(name: str) -> ModelGraph:
        asked.append(name)
        raise InputError("profiled")

    monkeypatch.setattr("contraflow.__main__.profile_by_name", profile)
    for name in ("gpt-tiny", "package.module:function"):
        assert "profiled" in refused("plan", name, *problem(folder)[2:])
    assert asked == ["gpt-tiny", "package.module:function"]


# ---------------------------------------------------------------- check and show


def test_check_passes_a_good_plan_and_names_every_fault_of_a_bad_one(folder: Path) -> None:
    """Exit codes 0 and 1; --json lists code, where and message."""
    assert run("check", folder / "good.json").exit_code == 0
    assert json.loads(run("check", folder / "good.json", "--json").stdout) == {"ok": True, "violations": []}
    content = json.loads((folder / "good.json").read_text())
    dropped = content["orders"][1].pop(content["orders"][1].index("1F3"))
    (folder / "bad.json").write_text(json.dumps(content))
    result = run("check", folder / "bad.json")
    assert result.exit_code == 1
    assert dropped in result.stdout
    found = json.loads(run("check", folder / "bad.json", "--json").stdout)
    assert not found["ok"]
    assert {"code", "where", "message"} == set(found["violations"][0])


def test_plan_prints_json_and_writes_a_plan_that_check_accepts(folder: Path) -> None:
    """The keys that autotuners read."""
    result = run(*problem(folder, "--json", "-o", folder / "plan.json"))
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert list(found) == [
        "status", "step_s", "bound_s", "gap", "peak_bytes", "seconds", "plan", "space", "among",
        "team", "micro_batch_size", "samples", "samples_per_s", "idle_s", "gap_parts",
    ]  # fmt: skip
    assert found["status"] in ("optimal", "feasible")
    assert 0 < found["bound_s"] <= found["step_s"] * (1 + 1e-9)
    assert found["plan"] == str(folder / "plan.json")
    assert run("check", folder / "plan.json").exit_code == 0
    forecast = load_plan(folder / "plan.json").forecast
    assert forecast is not None
    assert forecast.step_s == found["step_s"]
    assert list(forecast.peak_bytes) == found["peak_bytes"]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_plan_with_a_named_schedule(folder: Path, name: str) -> None:
    """Two devices, four micro-batches of 12 seconds in two halves: (N + P - 1) * 6 = 30 s."""
    result = run(*problem(folder, "--schedule", name, "--json"))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["step_s"] == pytest.approx(30.0)


def test_plan_prints_a_table_for_people(folder: Path) -> None:
    """Nothing but results on stdout, within 80 columns."""
    result = run(*problem(folder, "--schedule", "1f1b", "-o", folder / "plan.json"))
    assert result.exit_code == 0
    assert "step" in result.stdout
    assert "what made the peak" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_infeasible_is_exit_code_1_and_says_how_many_bytes_are_missing(folder: Path) -> None:
    """One line naming the device; nothing is written, and JSON still says so to programs."""
    (folder / "plan.json").write_text("the old plan")
    result = run(*problem(folder, "--memory-limit", "3MiB", "-o", folder / "plan.json"))
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "device" in result.stderr
    assert "bytes" in result.stderr
    assert (folder / "plan.json").read_text() == "the old plan"
    found = json.loads(run(*problem(folder, "--memory-limit", "3MiB", "--json", "-o", folder / "plan.json")).stdout)
    assert found["status"] == "infeasible"
    assert found["plan"] is None


def test_ctrl_c_keeps_the_best_plan_so_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted as soon as it has a plan, the search hands it over, and it is written."""

    def interrupt(_: SearchProgress, progress: Progress) -> None:
        if progress.step_s is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr(SearchProgress, "__call__", interrupt)
    result = run(*problem(folder, "-o", folder / "plan.json"))
    assert result.exit_code == 0, result.output
    assert run("check", folder / "plan.json").exit_code == 0


def test_ctrl_c_before_any_plan_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130, as shells expect."""

    def interrupted(*_: object, **__: Any) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("contraflow.planner.search.plan_family", interrupted)
    result = run(*problem(folder, "-o", folder / "plan.json"))
    assert result.exit_code == 130
    assert not (folder / "plan.json").exists()


def test_compare_lists_every_schedule_and_the_search(folder: Path) -> None:
    """No schedule that fits is faster than the search; the others are marked."""
    limit = ["--memory-limit", "9MiB", "--time-limit", 3]
    result = run(*problem(folder, *limit, "--json", command="compare"))
    assert result.exit_code == 0, result.output
    rows = {row["schedule"]: row for row in json.loads(result.stdout)["rows"]}
    assert list(rows) == [*SCHEDULES, "search"]
    fitting = [row for row in rows.values() if row["step_s"] is not None and row["memory_ok"]]
    assert rows["search"]["step_s"] <= min(row["step_s"] for row in fitting) * (1 + 1e-9)
    assert (rows["gpipe"]["status"], rows["gpipe"]["memory_ok"]) == ("infeasible", False)
    table = run(*problem(folder, *limit, command="compare"))
    assert table.exit_code == 0
    lines = {line.split()[1]: line for line in table.stdout.splitlines() if line.startswith("│")}
    assert list(lines) == list(rows)
    assert {name for name, line in lines.items() if " over " in line} == {
        name for name, row in rows.items() if row["memory_ok"] is False
    }


def test_compare_forbids_the_schedules_what_it_forbids_the_search(folder: Path) -> None:
    """Without split backwards, the zero-bubble schedules have whole ones, and win nothing."""
    ModelGraph.chain([Layer(f"l{k}", 1.0, 1.0, 1.0) for k in range(4)]).save(folder / "model.json")
    result = run(*problem(folder, "--no-split-backward", "--pipelines", 1, "--json", command="compare"))
    rows = {row["schedule"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["zb-h1"]["step_s"] >= rows["search"]["step_s"] * (1 - 1e-9)
