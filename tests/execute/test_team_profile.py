"""`contraflow profile --team` on this machine: a team of processes measures what its lanes run together."""

from __future__ import annotations

from pathlib import Path

import faulty
import pytest
from click.testing import CliRunner
from runs import SAMPLES, profile

from contraflow.__main__ import cli
from contraflow.executor import measure, place
from contraflow.executor.basics import ExecutionError
from contraflow.executor.measure.analytic import analytic_profile
from contraflow.models import resolve
from contraflow.planner import ModelFamily, load_plan
from contraflow.planner.basics import InputError
from contraflow.planner.problem.presets import PRESETS

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def the_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a rank: what it listens on is forgotten with the test."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.slow
def test_a_team_measures_the_bytes_of_a_lane_and_the_time_of_all() -> None:
    """Bytes are those of the same programs on tensors without memory; every pass of a divided layer takes time."""
    model, ways = resolve("gpt-tiny"), {"tensor": 2}
    found = profile(model, ways=ways)
    expected = analytic_profile(model, SAMPLES, PRESETS["A100-40GB"], ways=ways)
    assert found["ways"] == ways
    for mine, other in zip(found["layers"], expected["layers"], strict=True):
        seconds = {key for key in mine if key.endswith("_s")}
        assert {key: mine[key] for key in mine.keys() - seconds} == {key: other[key] for key in mine.keys() - seconds}
        assert mine["forward_s"] > 0
        assert mine["backward_input_s"] + mine["backward_weight_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["tensor", "sequence"])
def test_what_is_measured_is_planned_and_executed(ways: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family with and without a team; a plan of teams stays within its memory."""
    monkeypatch.chdir(tmp_path)
    cluster = EXAMPLES / "cluster-2cpu.toml"
    for command in (
        f"profile gpt-tiny --team 1,2 --ways {ways} --micro-batch-size 2 --load 2 -o family.json",
        f"plan family.json --cluster {cluster} --micro-batches 2 --team 2 --time-limit 2 -o plan.json",
        "execute plan.json --steps 2",
    ):
        done = CliRunner().invoke(cli, command.split())
        assert done.exit_code == 0, done.output
    members = ModelFamily.load(tmp_path / "family.json").members
    assert [(member.ways, member.device) for member in members] == [((), "cpu"), (((ways, 2),), "cpu")]
    assert load_plan(tmp_path / "plan.json").problem.cluster.team == 2


@pytest.mark.slow
@pytest.mark.parametrize(("how", "says"), [("raise", "ValueError: out of luck"), ("kill", "ended with exit code -9")])
def test_a_rank_that_fails_ends_the_measurement(how: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for it inside a layer; its error is told in one line."""
    for name, value in {"FAULT": how, "FAULT_AT": "9", "FAULT_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(faulty, "calls", 0)
    with pytest.raises(ExecutionError, match=says) as caught:
        profile(resolve("faulty:model"), ways={"tensor": 2})
    assert "\n" not in str(caught.value)


def test_a_model_without_a_parallel_plan_is_refused() -> None:
    """Before any process is started."""
    with pytest.raises(InputError, match="layer 'layer0': Linear has no parallel form"):
        profile(resolve("mlp-tiny"), ways={"tensor": 2})


def test_more_ranks_than_cores_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line; they are measured all the same."""
    monkeypatch.setattr(place, "cores", lambda: 1)
    monkeypatch.setattr(measure, "profile_model", lambda *_, ways, **__: {"ways": ways})
    done = CliRunner().invoke(cli, ["profile", "gpt-tiny", "--team", "2", "-o", str(tmp_path / "model.json")])
    assert done.exit_code == 0, done.output
    assert "a team of 2 needs 2 cores, here are 1: its ranks have waited" in done.stderr
    assert done.stderr.count("needs") == 1
