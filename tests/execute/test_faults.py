"""A rank that raises, dies or hangs ends the whole run soon, with one line that names it; nobody is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import faulty
import pytest

from contraflow.executor.basics.errors import ExecutionError, RunError
from contraflow.executor.run import threaded
from contraflow.executor.run.launch import execute
from contraflow.executor.watch import Board, Doing, Slot, Watcher
from contraflow.planner.plan_file import save_plan

STARTUP_S = 120.0
"""A spawned run is up after so long on a busy machine."""
MODEL = "faulty:model"
WHERE = "stage 1, op 1F2, micro-batch 2, step 1"


def processes() -> dict[int, int]:
    """Parent by process id of every process that is not a zombie."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(folder.name)] = int(parent)
    return found


def ranks_below(pid: int) -> set[int]:
    """Spawned ranks of a process: its children that run multiprocessing's spawn_main."""
    return {child for child, parent in processes().items() if parent == pid and b"spawn_main" in _command_line(child)}


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def left_folders() -> set[Path]:
    """The rendezvous folders that are there."""
    return set(Path(tempfile.gettempdir()).glob("contraflow-*"))


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """After every test: no new rank of this process, no rendezvous folder."""
    before = ranks_below(os.getpid())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(faulty, "calls", 0)
    yield
    assert ranks_below(os.getpid()) <= before
    assert left_folders() == set()


def fail(monkeypatch: pytest.MonkeyPatch, how: str, transport: str, timeout_s: float = 60.0, at: str = "7") -> str:
    """Runs the faulty model, which fails in step 1, micro-batch 2, unless told otherwise; the message."""
    monkeypatch.setenv("FAULT", how)
    monkeypatch.setenv("FAULT_AT", at)
    with pytest.raises(ExecutionError) as caught:
        execute(
            faulty.planned(), 3, model=MODEL, transport=transport, timeout_s=timeout_s, self_check=False,
        )  # fmt: skip
    return str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["processes", "threads"])
def test_a_rank_that_raises(monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    """The error, and not that the other rank lost its connection."""
    assert fail(monkeypatch, "raise", transport) == f"rank 1, {WHERE}: ValueError: out of luck"


@pytest.mark.long
def test_a_rank_that_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the kernel does when memory runs out. Until then nobody else can connect: all listen on the loopback."""
    monkeypatch.setenv("FAULT_LISTEN", str(tmp_path / "listening"))
    assert fail(monkeypatch, "kill", "processes") == f"rank 1 was killed by signal 9 (SIGKILL) in {WHERE}"
    addresses = (tmp_path / "listening").read_text().splitlines()
    assert len(addresses) >= 2, "a socket of each rank"
    assert set(addresses) == {"0100007F"}


@pytest.mark.long
def test_a_rank_that_is_stopped_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found although starting may take long, and named although the other rank waits for it as long."""
    message = fail(monkeypatch, "stop", "processes", 2.5, at="build")
    assert message == "rank 1 has been stopped, last seen while starting: its process has not run for 2.5 s"


def test_a_rank_that_exits() -> None:
    """A library that ends the process."""
    slot = Slot(Doing.COMPUTING, 1, place(1, "1F2"))
    assert Watcher(PLAN, 1.0).lost(1, 3, slot) == f"rank 1 ended without a result (exit code 3) in {WHERE}"
    assert Watcher(PLAN, 1.0).lost(0, -11, Slot(Doing.STARTING)).endswith("by signal 11 (SIGSEGV) while starting")


@pytest.mark.long
@pytest.mark.parametrize("transport", ["processes", "threads"])
def test_a_rank_that_hangs(monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    """It is named, not the rank that waits for it; the time counts from the op, not from the start."""
    monkeypatch.setattr(threaded, "_GRACE_S", 0.5)  # a thread that sleeps for an hour is left behind
    began = time.monotonic()
    assert fail(monkeypatch, "sleep", transport, 2.5) == f"rank 1 hangs in {WHERE}: no progress for 2.5 s"
    assert time.monotonic() - began < STARTUP_S


def test_a_timeout_must_be_a_time() -> None:
    """Found before anything starts."""
    with pytest.raises(RunError, match="timeout must be a finite number of seconds above 0, got 0"):
        execute(faulty.planned(), 1, model=MODEL, timeout_s=0)


# ---------------------------------------------------------------- the command


def start(folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """`contraflow execute` of the faulty model in a process of its own."""
    save_plan(faulty.planned(), folder / "plan.json")
    command = [sys.executable, "-m", "contraflow", "execute", str(folder / "plan.json"), "--model", MODEL, *options]
    path = os.pathsep.join([str(Path(__file__).parents[1] / "kit"), *sys.path])
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": path} | environment,
    )  # fmt: skip


def lines(text: str) -> list[str]:
    """Without empty ones."""
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.slow
def test_a_joined_rank_that_is_stopped_is_named_by_another(tmp_path: Path) -> None:
    """Under torchrun there is no parent to tell: ranks tell one another through the job's store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "FAULT": "stop", "FAULT_AT": "9"}
    first, second = (start(tmp_path, "--timeout", "2", RANK=rank, **job) for rank in "01")
    try:
        _, stderr = first.communicate(timeout=STARTUP_S)
        second.wait(STARTUP_S)
    finally:
        first.kill()
        second.kill()
        second.communicate()
    assert first.returncode == 1
    says = r"contraflow: rank 1 has been stopped, last seen .*: its process has not run for 2 s"
    assert re.fullmatch(says, "\n".join(lines(stderr))), stderr
    assert second.returncode == -signal.SIGKILL, "nobody else can end it"


ENDINGS = [
    pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.slow),
    (signal.SIGINT, 130, "interrupted"),
]


@pytest.mark.long
@pytest.mark.parametrize(("number", "code", "says"), ENDINGS)
def test_a_signal_to_the_parent_ends_all(tmp_path: Path, number: int, code: int, says: str) -> None:
    """One line on stderr, no rank alive, no file left."""
    run = start(tmp_path, FAULT="sleep", FAULT_AT="1")
    ranks = wait_for_ranks(run)
    run.send_signal(number)
    _, stderr = run.communicate(timeout=STARTUP_S)
    assert run.returncode == code
    assert lines(stderr) == [f"contraflow: {says}"]
    assert not ranks & set(processes())


def wait_for_ranks(run: subprocess.Popen[str]) -> set[int]:
    """The ranks of a command, once both are there."""
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline and run.poll() is None:
        ranks = ranks_below(run.pid)
        if len(ranks) == 2:
            return ranks
        time.sleep(0.05)
    run.kill()
    raise AssertionError(f"no ranks: {run.communicate()}")


# ---------------------------------------------------------------- who is to blame


SECOND = 1_000_000_000
PLAN = faulty.planned()


def place(device: int, op: str) -> int:
    """Where an op stands in a device's list."""
    return [str(x) for x in PLAN.orders[device]].index(op)


def waiting(device: int, op: str, awaited: str, since_s: float) -> Slot:
    """A rank that waits."""
    return Slot(Doing.WAITING, 4, place(device, op), place(device, awaited), int(since_s * SECOND))


def test_who_computes_too_long_is_to_blame_and_not_who_waits_longer() -> None:
    """Rank 0 has waited for 50 s, rank 1 computes for 40 s."""
    watcher = Watcher(PLAN, timeout_s=30)
    slots = [waiting(0, "0B0", "0RECV_B0<1", 50), Slot(Doing.COMPUTING, 4, place(1, "1B0"), -1, 60 * SECOND)]
    found = watcher.hang(slots, 100 * SECOND)
    assert found == (1, "rank 1 hangs in stage 1, op 1B0, micro-batch 0, step 4: no progress for 30 s")
    assert watcher.hang(slots, 89 * SECOND) is None, "30 s are not over yet"


def test_waiting_for_long_is_no_hang_while_another_rank_makes_progress() -> None:
    """Rank 1 has just begun its next op."""
    slots = [waiting(0, "0B0", "0RECV_B0<1", 1), Slot(Doing.COMPUTING, 4, place(1, "1F1"), -1, 1000 * SECOND)]
    assert Watcher(PLAN, timeout_s=30).hang(slots, 1001 * SECOND) is None


def test_when_all_wait_the_message_says_who_waits_for_what() -> None:
    """A message that got lost: nobody could end it."""
    slots = [waiting(0, "0B0", "0RECV_B0<1", 50), waiting(1, "1F1", "1RECV_F1<0", 60)]
    found = Watcher(PLAN, timeout_s=30).hang(slots, 100 * SECOND)
    assert found is not None
    assert found.text == (
        "rank 0 hangs waiting for 0RECV_B0<1 from rank 1 in stage 0, op 0B0, micro-batch 0, step 4: no progress for "
        "30 s; rank 1 waiting for 1RECV_F1<0 from rank 0 in stage 1, op 1F1, micro-batch 1, step 4"
    )


def test_starting_may_take_longer_than_an_op() -> None:
    """Tracing and checking a large model takes minutes; there is another limit for it."""
    slots = [Slot(Doing.STARTING, since_ns=SECOND), waiting(1, "1F0", "1RECV_F0<0", 2)]
    watcher = Watcher(PLAN, timeout_s=30, setup_s=600)
    assert watcher.hang(slots, 500 * SECOND) is None
    found = watcher.hang(slots, 700 * SECOND)
    assert found == (0, "rank 0 hangs while starting: no progress for 600 s")


def test_publishing_takes_less_than_a_microsecond() -> None:
    """It happens at every op of every step. The best of many: the machine may be busy."""
    board, best = Board(bytearray(Board.size(2))), 1.0
    for _ in range(200):
        began = time.perf_counter()
        for _ in range(100):
            board.write(1, Doing.COMPUTING, 3, 17, -1, 123456789)
        best = min(best, (time.perf_counter() - began) / 100)
    assert board.read(1) == Slot(Doing.COMPUTING, 3, 17, -1, 123456789)
    assert best < 1e-6
