"""Planning without a flush from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from instances import uniform

from contraflow.__main__ import cli
from contraflow.planner import check, load_plan

CLUSTER = '[[nodes]]\ndevices = 2\ndevice = "toy"\n[devices.toy]\nmemory = "1GiB"\n'


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(folder: Path, command: str, *more: object) -> Result:
    """A command on two devices and two layers with F = 1 and B = 2 seconds, eight micro-batches."""
    uniform(2, 1.0, 2.0, parameter_bytes=8).save(folder / "model.json")
    (folder / "cluster.toml").write_text(CLUSTER)
    given = [command, folder / "model.json", "--cluster", folder / "cluster.toml", "--micro-batches", 8, *more]
    return CliRunner().invoke(cli, [str(part) for part in given])


def test_plan_says_period_weights_and_staleness(tmp_path: Path) -> None:
    """In JSON beside the usual keys; the plan that it writes passes the checker."""
    result = run(tmp_path, "plan", "--asynchronous", "stash", "--json", "-o", tmp_path / "plan.json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["status"]) == (0, "optimal")
    assert (found["period_s"], found["weights"], found["staleness"]) == (3.0, "stash", [1, 0])
    assert found["step_s"] == 27.0  # eight periods, and one to fill the pipeline
    assert check(load_plan(tmp_path / "plan.json")) == []


def test_a_synchronous_plan_says_nothing_of_it(tmp_path: Path) -> None:
    """The frozen keys stay as they are."""
    found = json.loads(run(tmp_path, "plan", "--time-limit", "1", "--json").stdout)
    assert not {"period_s", "weights", "staleness"} & set(found)


def test_the_text_says_it_to_people(tmp_path: Path) -> None:
    """Seconds a micro-batch, micro-batches a second, staleness and versions."""
    result = run(tmp_path, "plan", "--asynchronous", "stash")
    text = " ".join(result.stdout.split())
    assert "period 3 s a micro-batch" in text
    assert "0.3333 micro-batches/s; updates of staleness by stage: 1, 0; versions held: 2, 1" in text


def test_options_reach_the_plan(tmp_path: Path) -> None:
    """Micro-batches an update and the staleness limit are the workload's."""
    more = ("--asynchronous", "2bw,stash", "--update-every", 4, "--staleness-limit", 1)
    result = run(tmp_path, "plan", *more, "-o", tmp_path / "plan.json")
    assert result.exit_code == 0, result.output
    plan = load_plan(tmp_path / "plan.json")
    assert plan.weights == "stash"  # equally fast, and only its first stage is late
    assert (plan.problem.workload.update_every, plan.problem.workload.staleness_limit) == (4, 1)


def test_any_leaves_out_what_does_not_apply(tmp_path: Path) -> None:
    """Double buffering's updates, of as many micro-batches as stages where none are asked for, must divide them."""
    result = run(tmp_path, "plan", "--asynchronous", "any", "--micro-batches", 5, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["weights"]) == (0, "pipeoptim")
    assert "2bw" not in [row["weights"] for row in found["methods"]]


def test_double_buffering_of_one_micro_batch_an_update_is_one_update_behind(tmp_path: Path) -> None:
    """On two stages no more than two are in flight then."""
    result = run(tmp_path, "plan", "--asynchronous", "any", "--update-every", 1, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["weights"]) == (0, "pipeoptim")
    (row,) = [row for row in found["methods"] if row["weights"] == "2bw"]
    assert max(row["staleness"]) == 1


def test_several_methods_are_told_apart(tmp_path: Path) -> None:
    """Period, peak memory, staleness and predictions of each, in JSON and with --explain; one is chosen."""
    result = run(tmp_path, "plan", "--asynchronous", "stash,spectrain,naive", "--quality-within", 1, "--json")
    found = json.loads(result.stdout)
    rows = {row["weights"]: row for row in found["methods"]}
    assert list(rows) == ["stash", "spectrain", "naive"]
    assert [row["weights"] for row in rows.values() if row["chosen"]] == ["spectrain"] == [found["weights"]]
    assert rows["stash"] | {"peak_bytes": 0} == {
        "weights": "stash",
        "status": "optimal",
        "predicted": False,
        "chosen": False,
        "period_s": 3.0,
        "peak_bytes": 0,
        "staleness": [1, 0],
    }
    told = run(tmp_path, "plan", "--asynchronous", "stash,spectrain,naive", "--explain").stdout
    assert "predicted" in told
    assert "chosen" in told
    assert "methods" not in json.loads(run(tmp_path, "plan", "--asynchronous", "stash", "--json").stdout)


def test_what_quality_needs(tmp_path: Path) -> None:
    """Methods to choose from, and a share."""
    refused = run(tmp_path, "plan", "--quality-within", 3)
    assert (refused.exit_code, "--quality-within needs --asynchronous" in refused.output) == (2, True)
    assert run(tmp_path, "plan", "--asynchronous", "any", "--quality-within", -1).exit_code == 2


@pytest.mark.parametrize("as_json", [True, False])
def test_compare_lists_schedules_without_and_the_search_with_a_flush(tmp_path: Path, as_json: bool) -> None:
    """All by seconds a micro-batch; a flush costs the time to fill and drain the pipeline."""
    more = ("--json",) if as_json else ()
    result = run(tmp_path, "compare", "--asynchronous", "stash,2bw", "--time-limit", 1, "--pipelines", 1, *more)
    assert result.exit_code == 0, result.output
    if not as_json:
        assert "pipedream" in result.stdout
        return
    rows = {row["schedule"]: row for row in json.loads(result.stdout)["rows"]}
    assert list(rows) == ["pipedream", "pipedream-2bw", "pipefb", "search", "search, with a flush"]
    assert rows["pipedream"]["micro_batch_s"] == rows["search"]["micro_batch_s"] == 3.0
    assert rows["pipedream"]["staleness"] == [1, 0]
    assert rows["search, with a flush"]["micro_batch_s"] > 3.0
    assert rows["search, with a flush"]["weights"] == "flush"


def test_infeasible_says_what_is_missing(tmp_path: Path) -> None:
    """Exit code 1 and the bytes."""
    result = run(tmp_path, "plan", "--asynchronous", "stash", "--memory-limit", 16)
    assert result.exit_code == 1
    assert "device 0: 1 bytes missing" in result.stderr


def test_the_table_has_no_pictures(tmp_path: Path) -> None:
    """Said before any search."""
    result = run(tmp_path, "compare", "--asynchronous", "stash", "--frontier", 3)
    assert result.exit_code == 2
    assert "--asynchronous has no pictures" in result.output
