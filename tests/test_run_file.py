"""run.json read back: times and ops as the run wrote them, or one line that names what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contraflow.planner.errors import InputError
from contraflow.planner.plan import Kind, Op
from contraflow.planner.run_file import Run, RunDevice, RunOp, load_run, run_from_dict


def content() -> dict[str, Any]:
    """One device, two ops, in both ways of writing an op."""
    ops: list[dict[str, Any]] = [
        {"kind": "F", "stage": 0, "micro_batch": 2, "start_s": 0.0, "end_s": 0.5},
        {"op": "0SEND_F2>1", "start_s": 0.5, "end_s": 0.75, "live_bytes": 8, "peak_bytes": 9, "waited_s": 0.1},
    ]
    device = {"busy_s": 0.5, "bubble": 0.5, "peak_bytes": 9, "ops": ops}
    return {"format": "contraflow/run", "version": 1, "step_s": 1.0, "losses": [2.5, float("nan")], "devices": [device]}


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Both ways of writing an op, memory where it is known, and a loss that is not a number."""
    (tmp_path / "run.json").write_text(json.dumps(content()))
    run = load_run(tmp_path / "run.json")
    ops = (RunOp(Op(Kind.F, 0, 2), 0.0, 0.5), RunOp(Op(Kind.SEND_F, 0, 2, 1), 0.5, 0.75, 8, 9))
    assert run == Run(1.0, run.losses, (RunDevice(0.5, 0.5, 9, ops),))
    assert run.losses[0] == 2.5
    assert run.losses[1] != run.losses[1]


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (("format",), "contraflow/plan", "format"),
        (("version",), 2, "version"),
        (("step_s",), 0, "step_s"),
        (("step_s",), float("inf"), "step_s"),
        (("losses",), 3, "losses"),
        (("losses",), ["low"], "losses"),
        (("devices",), [], "devices"),
        (("devices", 0, "busy_s"), -1, r"devices\[0\]: busy_s"),
        (("devices", 0, "bubble"), float("nan"), r"devices\[0\]: bubble"),
        (("devices", 0, "peak_bytes"), 1.5, r"devices\[0\]: peak_bytes"),
        (("devices", 0, "ops", 0, "kind"), "FORWARD", r"ops\[0\]: unknown kind 'FORWARD'"),
        (("devices", 0, "ops", 0, "stage"), -1, r"ops\[0\]: stage"),
        (("devices", 0, "ops", 0, "end_s"), True, r"ops\[0\]: end_s"),
        (("devices", 0, "ops", 1, "op"), "0JUMP", r"ops\[1\]: not an operation: '0JUMP'"),
        (("devices", 0, "ops", 1, "end_s"), 0.25, r"ops\[1\]: op 0SEND_F2>1 ends at 0.25 s, before it starts at 0.5 s"),
        (("devices", 0, "ops", 1, "live_bytes"), "8", r"ops\[1\]: live_bytes"),
    ],
)
def test_what_is_wrong_is_named(keys: tuple[Any, ...], value: object, named: str) -> None:
    """One line: device, op and key."""
    broken = content()
    place: Any = broken
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(InputError, match=named) as caught:
        run_from_dict(broken)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_one_that_is_no_json_are_refused(tmp_path: Path) -> None:
    """Each is named."""
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"none\.json"):
        load_run(tmp_path / "none.json")
    with pytest.raises(InputError, match="not JSON"):
        load_run(tmp_path / "run.json")
