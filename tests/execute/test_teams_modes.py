"""Teams of ranks in mixed precision, compiled, without a flush, and when one rank of them fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import faulty
import pytest
import torch
from async_plans import SCHEDULED, unflushed
from runs import STEPS, Case, assert_within_plan, planned, run_plans_together, truth
from team_plans import Ways, team_plan

from contraflow.executor.basics.errors import ExecutionError
from contraflow.executor.oracle.emulation import emulate
from contraflow.executor.run.launch import execute
from contraflow.executor.step.observe import Observer
from contraflow.executor.watch import MATES, NOWHERE, Board, Doing, Slot, Watcher, lost_another

TWO: Ways = (("tensor", 2),)
SHARDS: Ways = (("sequence", 2),)


@pytest.mark.slow
def test_a_team_trains_in_mixed_precision(tmp_path: Path) -> None:
    """Masters and all within the plan's memory; lanes' sums of bfloat16 are rounded otherwise than one device's."""
    cases = [
        (Case("1f1b", "llama-tiny", 1, 2, precision="mixed"), SHARDS),
        (Case("1f1b", "gpt-tiny", 1, 2, precision="mixed"), TWO),
    ]
    plans = [team_plan(case, ways) for case, ways in cases]
    for (case, _), result in zip(cases, run_plans_together(plans, tmp_path, [torch.bfloat16] * 2), strict=True):
        expected = truth(case.model, case.micro_batches, case.optimizer, torch.bfloat16)
        assert result.losses == pytest.approx(expected.losses, abs=2e-3)
        assert result.state is not None
        for name, tensor in expected.state.items():
            assert result.state[name].dtype == tensor.dtype
            assert (result.state[name].double() - tensor.double()).norm() <= 0.02 * tensor.double().norm() + 1e-6, name
        assert_within_plan(result)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["2bw", *(pytest.param(p, marks=pytest.mark.slow) for p in ("stash", "pipeoptim"))])
def test_teams_train_without_a_flush(policy: str, tmp_path: Path) -> None:
    """Versions and predictions are those of single devices with the same lists."""
    case = unflushed(policy, 2, 2, "gpt-tiny")
    (result,) = run_plans_together([team_plan(case, TWO)], tmp_path, training=SCHEDULED)
    expected = emulate(planned(case), (STEPS,), training=SCHEDULED)
    assert result.losses == pytest.approx(expected.losses, abs=1e-5)
    assert result.state is not None
    for name, tensor in expected.state.items():
        torch.testing.assert_close(result.state[name], tensor, atol=1e-5, rtol=1e-5, msg=name)
    assert_within_plan(result)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.slow
def test_compiled_programs_of_a_team_equal_one_device() -> None:
    """With the self-check of the compiled programs."""
    case = Case("1f1b", "gpt-tiny", 1, 2)
    result = execute(team_plan(case, TWO), STEPS, transport="processes", compiled=True)
    assert result.losses == pytest.approx(truth(case.model, 2, case.optimizer, case.dtype).losses, abs=1e-5)


# ---------------------------------------------------------------- failures


LANE = "rank {0} (lane {0} of device 0)"
HANGS = f"{LANE} hangs in {{1}}: no progress for 2.5 s"


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "rank", "says"),
    [
        ("kill", 1, f"{LANE} was killed by signal 9 (SIGKILL) in {{1}}"),
        pytest.param("sleep", 0, HANGS, marks=pytest.mark.slow),
        pytest.param("sleep", 1, HANGS, marks=pytest.mark.slow),
        pytest.param(
            "stop", 0, f"{LANE} has been stopped, last seen in {{1}}: its process has not run for 2.5 s",
            marks=pytest.mark.slow,
        ),
        pytest.param("raise", 0, f"{LANE}, {{1}}: ValueError: out of luck", marks=pytest.mark.slow),
        pytest.param("raise", 1, f"{LANE}, {{1}}: ValueError: out of luck", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_lane_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, how: str, rank: int, says: str) -> None:
    """Its mates wait for it inside an operation, and are not to blame."""
    monkeypatch.setenv("FAULT", how)
    monkeypatch.setenv("FAULT_AT", "7")
    monkeypatch.setenv("FAULT_RANK", str(rank))
    with pytest.raises(ExecutionError) as caught:
        execute(
            faulty.of_one_team(), 3, model="faulty:model", transport="processes", self_check=False,
            timeout_s=60.0 if how in ("kill", "raise") else 2.5,
        )  # fmt: skip
    assert str(caught.value) == says.format(rank, "stage 0, op 0F2, micro-batch 2, step 1")


SECOND = 1_000_000_000
PLAN = faulty.of_one_team()


def test_who_waits_for_a_lane_is_not_to_blame() -> None:
    """Neither in an operation nor where programs are built, though its own state is older."""
    watcher = Watcher(PLAN, timeout_s=30, setup_s=600)
    slots = [Slot(Doing.WAITING, 4, 0, MATES, SECOND), Slot(Doing.COMPUTING, 4, 0, NOWHERE, 2 * SECOND)]
    where = "stage 0, op 0F0, micro-batch 0, step 4"
    assert watcher.hang(slots, 31 * SECOND) is None
    name = "rank 1 (lane 1 of device 0)"
    assert watcher.hang(slots, 33 * SECOND) == (1, f"{name} hangs in {where}: no progress for 30 s")
    assert watcher.where(0, slots[0]) == f"waiting for the other ranks of its team in {where}"
    starting = [Slot(Doing.STARTING, awaited=MATES, since_ns=SECOND), Slot(Doing.STARTING, since_ns=2 * SECOND)]
    assert watcher.hang(starting, 500 * SECOND) is None
    assert watcher.hang(starting, 700 * SECOND) == (1, f"{name} hangs while starting: no progress for 600 s")
    assert watcher.where(0, starting[0]) == "while starting, waiting for the other ranks of its team"
    orders = [PLAN.orders] * 5
    assert [lost_another(orders.__getitem__, 0, slot) for slot in (*slots, *starting)] == [True, False, True, False]


def test_a_lane_that_waits_for_its_team_stays_where_it_was() -> None:
    """A program is built, and compared with plain torch, before the first step, for which there is more time."""
    board = Board(bytearray(Board.size(1)))
    observer = Observer(board)
    observer.follow(PLAN, 0)
    seen: list[Slot] = []

    def meet() -> list[tuple[Doing, int]]:
        seen.clear()
        with observer.with_team():
            seen.append(board.read(0))
        return [(slot.doing, slot.awaited) for slot in (*seen, board.read(0))]

    assert meet() == [(Doing.STARTING, MATES), (Doing.STARTING, NOWHERE)]
    observer.begin(0, 1)
    assert meet() == [(Doing.WAITING, MATES), (Doing.COMPUTING, NOWHERE)]
    observer.evaluating()
    assert meet() == [(Doing.EVALUATING, MATES), (Doing.EVALUATING, NOWHERE)]
