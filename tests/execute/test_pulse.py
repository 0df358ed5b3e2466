"""Who does not run is to blame before who waits; who runs may take its time."""

from __future__ import annotations

import os

import faulty
import pytest

from contraflow.executor.run.watchdog import Watchdog
from contraflow.executor.watch import Board, Doing, Slot, Watcher
from contraflow.executor.watch.proc import ProcessState
from contraflow.executor.watch.pulse import Stillness

SECOND = 1_000_000_000
WATCHER = Watcher(faulty.planned(), timeout_s=6)
RUNS, STOPPED, ASLEEP = ProcessState("R"), ProcessState("T"), ProcessState("S")
COMPUTING, WAITING = Slot(Doing.COMPUTING, 4, 2, -1, SECOND), Slot(Doing.WAITING, 4, 2, 1, SECOND)
STARTING = Slot(Doing.STARTING, since_ns=SECOND)


def still(
    slots: list[Slot], states: list[ProcessState], until_s: int, beats: list[int] | None = None
) -> dict[int, float]:
    """What a watcher finds that asks every second up to one."""
    stillness, found = Stillness(), {}
    for second in range(1, until_s + 1):
        now = second * SECOND
        given = [now] * len(slots) if beats is None else beats
        found = stillness.seconds(slots, given, dict(enumerate(states)), now)
    return found


def blamed(slots: list[Slot], found: dict[int, float], at_s: int = 20) -> int | None:
    """The rank that a watcher names."""
    hang = WATCHER.hang(slots, at_s * SECOND, found)
    return None if hang is None else hang.rank


def test_a_stopped_rank_is_to_blame_whatever_it_does_and_whatever_the_others_do() -> None:
    """Rank 1 starts, computes, waits or is done; rank 0 has waited or computed far longer than the limit."""
    for mine in (STARTING, COMPUTING, WAITING, Slot(Doing.EVALUATING, since_ns=SECOND), Slot(Doing.DONE)):
        for other in (STARTING, COMPUTING, WAITING):
            found = still([other, mine], [RUNS, STOPPED], 10)
            assert found == {1: 9.0}
            assert blamed([other, mine], found) == 1


def test_nobody_else_is_to_blame_while_a_rank_has_been_stopped_for_less_than_the_limit() -> None:
    """It may go on: then all of them do."""
    found = still([WAITING, COMPUTING], [ASLEEP, STOPPED], 4)
    assert found == {1: 3.0}
    assert blamed([WAITING, COMPUTING], found) is None


def test_a_process_that_runs_may_go_without_a_beat_while_it_loads_a_library() -> None:
    """Only its main thread is judged; but a rank that does nothing but wait beats."""
    assert still([STARTING], [RUNS], 60, [SECOND]) == {}
    assert still([COMPUTING], [RUNS], 60, [SECOND]) == {}
    assert still([WAITING], [ASLEEP], 60, [SECOND]) == {0: 59.0}


def test_where_the_system_does_not_tell_the_beat_does() -> None:
    """From the first one on: before it nothing is known."""
    nothing = ProcessState()
    assert still([STARTING], [nothing], 60, [0]) == {}
    assert still([STARTING], [nothing], 60, [SECOND]) == {0: 59.0}
    assert still([STARTING], [nothing], 60) == {}


def test_who_watches_and_was_stopped_itself_begins_anew() -> None:
    """Ctrl-Z stops all; afterwards nobody has waited, computed or been silent for an hour."""
    stillness, hour = Stillness(), 3600 * SECOND
    slots = [COMPUTING, WAITING]
    for now in (SECOND, hour):
        assert stillness.seconds(slots, [SECOND, SECOND], {}, now) == {}
    assert WATCHER.hang(slots, hour, {}, stillness.awake_ns) is None
    late = WATCHER.hang(slots, hour + 7 * SECOND, {}, stillness.awake_ns)
    assert late is not None
    assert late.rank == 0


def test_a_beat_leaves_the_slot_alone() -> None:
    """Two writers, two places."""
    board = Board(bytearray(Board.size(2)))
    board.write(1, *COMPUTING)
    board.beat(1, 17)
    assert board.read(1) == COMPUTING
    assert board.beats() == [0, 17]


def test_whoever_is_ended_by_torchrun_names_the_rank_that_has_ended_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though it never saw that rank, and its own watch is over."""
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    board = Board(bytearray(Board.size(2)))
    watchdog = Watchdog(WATCHER, board, 0)
    with watchdog:
        pass
    watchdog.end_if_left()
    assert codes == [1]
    assert capsys.readouterr().err == "contraflow: rank 1 has ended without a result, last seen while starting\n"
