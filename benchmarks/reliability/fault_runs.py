"""One run of `faults.py`: started, disturbed, waited for, and searched for what it has left behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fault_cases import STEPS, Case

TIMEOUT_S = 6.0
_PATIENCE_S = 150.0
"""A run that takes longer hangs, also on a busy machine."""
_SETTLE_S = 3.0
"""Processes that end with their parent are gone after so long."""
_ROOT = Path(__file__).resolve().parents[2]
_GOOD = "an earlier run's trace"


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        code: of the command; killed: by a signal that cannot be caught, so that it says nothing.
        ended_s: from the fault to the end. said: all that ranks and parent wrote on stderr.
    """

    code: int
    ended_s: float
    said: str
    hung: bool
    killed: bool
    orphans: list[int]
    left: list[str]
    lost: list[str]


def run(case: Case, folder: Path, plans: Path) -> Outcome:
    """Runs a case in a folder of its own, which is made."""
    folder.mkdir()
    temporary, work = folder / "tmp", folder / "work"
    temporary.mkdir()
    work.mkdir()
    (work / "trace.json").write_text(_GOOD)
    token = secrets.token_hex(8)
    with _disturbed(case, folder, temporary, work):
        shared = _shared_memory()
        process = _start(case, folder, plans, token, temporary, work)
        moment = _strike(case, process, token)
        try:
            code, hung = process.wait(_PATIENCE_S), False
        except subprocess.TimeoutExpired:
            code, hung = -signal.SIGKILL, True
        ended = time.time()
        orphans = [] if hung else _orphans(token)
        for pid in _with_token(token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        left = [f"temporary {path.name}" for path in temporary.iterdir() if path.name != "full"]
        left += [f"shared memory {name}" for name in _shared_memory() - shared]
        left += [path.name for path in work.rglob("*.part*")] if code >= 0 else []
        lost = _lost(case, work / "trace.json", code)
    mark = folder / "mark"
    began = float(mark.read_text()) if mark.exists() else moment
    killed = case.fault == "SIGKILL" and case.target == "parent"
    return Outcome(code, ended - began, _said(folder), hung, killed, orphans, left, lost)


def _start(case: Case, folder: Path, plans: Path, token: str, temporary: Path, work: Path) -> subprocess.Popen[bytes]:
    options = ["--steps", str(STEPS), "--timeout", f"{TIMEOUT_S:g}", "--evaluate-every", "5", "--checkpoint"]
    options += [str(work / "checkpoints"), "--trace", str(work / "trace.json")]
    train = ["-m", "contraflow", "execute", str(plans / f"{case.plan}.json"), "--model", "victim:model", *options]
    command = [sys.executable, *train]
    if case.launch == "threads":
        command += ["--transport", "threads"]
    if case.launch in ("torchrun", "restart"):
        devices = case.plan.rpartition("-")[2]
        more = ["--max-restarts", "1" if case.launch == "restart" else "0", "--master-port", str(_free_port())]
        logs = ["--log-dir", str(folder / "logs"), "--redirects", "2"]
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", devices, *more, *logs]
        command = [*start, *train]
    path = os.pathsep.join(
        [str(Path(__file__).parent), str(_ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment = os.environ | {
        "PYTHONPATH": path, "TMPDIR": str(temporary), "FAULTS_TOKEN": token, "MARK": str(folder / "mark"),
        "VICTIM": str(case.victim), "FAULT": case.fault, "WHERE": case.where, "AT": str(case.at),
        "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "THREADS": "1" if case.launch == "threads" else "", **case.environment,
    }  # fmt: skip
    stderr = (folder / "stderr").open("wb")
    stdout: int | None = subprocess.DEVNULL
    if case.fault == "no reader":
        reader, stdout = os.pipe()
        os.close(reader)
    process = subprocess.Popen(
        command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        start_new_session=True,
    )  # fmt: skip
    if case.fault == "no reader" and stdout is not None:
        os.close(stdout)
    return process


def _strike(case: Case, process: subprocess.Popen[bytes], token: str) -> float:
    """Sends the signal from outside where the ranks do not send it to themselves; when that was."""
    if case.where or not case.fault.startswith("SIG"):
        return time.time()
    number = signal.Signals[case.fault]
    target: int | None = process.pid
    if case.target == "rank" or number == signal.SIGSTOP:  # nobody can notice that a process is stopped that is alone
        found = _rank(process, case.victim)
        target = found if case.target == "rank" else target
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(case.after_s)
    moment = time.time()
    if target is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, number)
    return moment


def _rank(process: subprocess.Popen[bytes], number: int) -> int | None:
    """The process of a spawned rank, as soon as it is there."""
    while process.poll() is None:
        ranks = (b"spawn_main", b"contraflow\0execute")
        found = sorted(pid for pid in _children(process.pid) if any(x in _read(pid, "cmdline") for x in ranks))
        if len(found) > number:
            return found[number]
        time.sleep(0.02)
    return None


def _children(pid: int) -> list[int]:
    return [int(child) for child in _read(pid, f"task/{pid}/children").split()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _with_token(token: str) -> list[int]:
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    mine = f"FAULTS_TOKEN={token}".encode()
    alive = (pid for pid in numbers if mine in _read(pid, "environ").split(b"\0"))
    return [pid for pid in alive if _read(pid, "stat").rpartition(b")")[2].split()[:1] != [b"Z"]]


def _orphans(token: str) -> list[int]:
    deadline = time.monotonic() + _SETTLE_S
    while _with_token(token) and time.monotonic() < deadline:
        time.sleep(0.1)
    return _with_token(token)


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()} if os.environ.get("APART") else set()


def _lost(case: Case, trace: Path, code: int) -> list[str]:
    """Files that are neither what they were nor whole."""
    content = trace.read_text() if trace.exists() else ""
    if content == _GOOD and (code != 0 or case.fault.startswith("disk full")):
        return []
    try:
        json.loads(content)
    except ValueError:
        return ["the trace"]
    return []


def _said(folder: Path) -> str:
    """What ranks and parent wrote; of torchrun's ranks, not torchrun's own words."""
    logs = sorted((folder / "logs").rglob("stderr.log"))
    said = [path.read_text(errors="replace") for path in logs] or [(folder / "stderr").read_text(errors="replace")]
    return "".join(said)


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def _disturbed(case: Case, folder: Path, temporary: Path, work: Path):  # type: ignore[no-untyped-def]
    """The machine as the case wants it."""
    mounted = {
        "no shared memory": (Path("/dev/shm"), "size=4k"),
        "no temporary files": (temporary, "size=4k"),
        "disk full: trace": (work, "size=256k"),
        "disk full: checkpoint": (work / "checkpoints", "size=16k"),
    }.get(case.fault)
    if mounted is None or not os.environ.get("APART"):
        yield
        return
    place, size = mounted
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(place)], check=True)
    try:
        if case.fault == "disk full: trace":
            (work / "trace.json").write_text(_GOOD)
        if not case.fault.startswith("disk full: checkpoint"):
            _fill(place / "full")
        yield
    finally:
        (place / "full").unlink(missing_ok=True)
        subprocess.run(["umount", "-l", str(place)], check=True)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
