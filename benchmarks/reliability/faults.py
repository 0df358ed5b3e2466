"""Runs of a small model in which something dies: each ends, or has restarted, soon, with one true line, and leaves
nothing behind.

Every case is one run of `contraflow execute` on own processes, threads, or under torchrun, with one fault: a signal to
a rank, to their parent or to torchrun; an exception or a full disk. Judged are the time from the fault to the end, what
stderr says and whom it blames, the exit code, the processes that are left (found by a token in their environment),
temporary files, shared memory, and whether the trace of an earlier run is still whole.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the package, whose root is the repository
sys.path.insert(0, str(Path(__file__).parent))

from fault_cases import Case, draw, save_plans
from fault_runs import TIMEOUT_S, Outcome, run
from record import Row, arguments, finish

SLACK_S = 10.0
"""A run ends so long after its timeout at the latest, on a machine that does nothing else."""

AGAIN_S = 30.0
"""What a restart and the training after it may take besides."""


def judge(case: Case, outcome: Outcome, slack_s: float) -> list[str]:
    """What is wrong; the words before a colon are columns or figures of the row."""
    wrong = []
    if outcome.hung:
        wrong.append("hang: had to be killed")
    elif case.target and outcome.ended_s > TIMEOUT_S + slack_s + (
        AGAIN_S if case.launch == "restart" else 0
    ):  # of a full disk nobody knows when the run needs it
        wrong.append(f"hang: {outcome.ended_s:.1f} s after the fault")
    wrong += [f"orphan: {pid}" for pid in outcome.orphans]
    if "Traceback" in outcome.said:
        wrong.append("traceback: in what the run said")
    wrong += [f"file lost: {what}" for what in outcome.lost]
    wrong += [f"left behind: {what}" for what in outcome.left]
    if outcome.code not in case.codes:
        wrong.append(f"wrong exit code: {outcome.code}, not {case.codes}")
    lines = [line for line in outcome.said.splitlines() if line.strip() and not _success(line)]
    ended = outcome.code != 0 and not outcome.killed
    if (len(lines) != 1 if ended else len(lines) > 1) and not case.quiet:
        wrong.append(f"not one line: {len(lines)}")
    elif ended and lines and not case.names(lines[0]):
        wrong.append(f"wrongly blamed: {lines[0]}")
    return wrong


def _success(line: str) -> bool:
    """Whether it is of a run that ends well: its progress, or the files it wrote."""
    return line.startswith(("training ", "wrote "))


def main() -> int:
    """Runs the cases."""
    parser = arguments(__doc__, 60)
    parser.add_argument("--only", type=int, metavar="SEED", help="run this case alone and show what it said")
    parser.add_argument("--slack", type=float, default=SLACK_S, help="seconds after the timeout [%(default)s]")
    given = parser.parse_args()
    started = time.monotonic()
    row = Row("runs in which a process, a disk or user code fails", f"{Path(sys.argv[0]).name} --cases {given.cases}")
    row.command = f"python benchmarks/reliability/faults.py --cases {given.cases} --seed {given.seed}"
    row.faults = dict.fromkeys(("traceback", "hang", "orphan", "file lost"), 0)
    others: Counter[str] = Counter({"wrongly blamed": 0, "not one line": 0, "left behind": 0, "wrong exit code": 0})
    slowest, kinds = 0.0, Counter()
    seeds = [given.only] if given.only is not None else range(given.seed, given.seed + given.cases)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        save_plans(folder)
        for seed in seeds:
            case = draw(random.Random(seed))
            outcome = run(case, folder / str(seed), folder)
            row.cases += 1
            kinds[case.launch] += 1
            slowest = max(slowest, outcome.ended_s)
            wrong = judge(case, outcome, given.slack)
            for what in wrong:
                kind = what.partition(":")[0]
                if kind in row.faults:
                    row.count(kind)
                else:
                    others[kind] += 1
            print(f"{seed}: {case}: {outcome.code} {outcome.ended_s:.1f} s: {'; '.join(wrong) or 'ok'}", flush=True)
            if wrong or given.only is not None:
                print(outcome.said, flush=True)
            shutil.rmtree(folder / str(seed), ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row.figures = {**others, "slowest end": f"{slowest:.1f} s", "timeout": f"{TIMEOUT_S:g} s", **kinds}
    code = finish(row, started, given.json)
    return max(code, int(any(others.values())))


def apart() -> None:
    """Goes on in a namespace with shared memory and mounts of its own, where this user may have one."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or os.environ.get("APART"):
        return
    mount = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, *sys.argv]
    os.execvpe(command[0], command, os.environ | {"APART": "1"})


if __name__ == "__main__":
    apart()
    sys.exit(main())
