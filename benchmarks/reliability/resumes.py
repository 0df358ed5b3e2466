"""Kills at random moments and resumes, and resumes under another plan: losses are those of a run without interruption.

A kill is SIGKILL or SIGTERM to the command or to one of its ranks, at a random moment of a run on processes that saves
every few steps, so some fall into a save; the run is resumed, killed again, and at last ended. Under one plan losses
must be equal bit by bit. A pair of plans shares one training: some steps under the first, the rest under the second.

python benchmarks/reliability/resumes.py --cases 40 --seed 1 --json benchmarks/results/reliability/resumes.json
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from record import Row, arguments, finish

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "kit"))

from async_plans import two_devices, unflushed  # noqa: E402
from runs import Case, planned  # noqa: E402

from contraflow.executor.basics.checkpointing import Checkpointing  # noqa: E402
from contraflow.executor.basics.training import Training  # noqa: E402
from contraflow.executor.run.checkpoint_files import complete, read_index  # noqa: E402
from contraflow.executor.run.launch import execute  # noqa: E402
from contraflow.planner.plan import Plan  # noqa: E402
from contraflow.planner.plan_file import save_plan  # noqa: E402

STEPS, EVERY, LIMIT_S = 400, 10, 240.0
MODELS = ("mlp-tiny", "gpt-tiny-dropout", "resnet-tiny", "gpt-tiny-tied")
SCHEDULES = ("gpipe", "1f1b", "chimera", "interleaved", "zb-h1", "zb-v")
POLICIES = ("keep", "recompute", "offload")


# ---------------------------------------------------------------- kills


def losses_of(*arguments: str, folder: Path) -> tuple[int, list[float], str]:
    """A command of its own: exit code, losses, stderr."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, cwd=folder, timeout=LIMIT_S, check=False)
    return done.returncode, json.loads(done.stdout)["losses"] if done.returncode == 0 else [], done.stderr


def command(*arguments: str) -> list[str]:
    """`contraflow execute` as its own process."""
    return [sys.executable, "-m", "contraflow", "execute", "plan.json", "--json", "--evaluate-steps", "1", *arguments]


def ranks_of(pid: int) -> list[int]:
    """The spawned ranks of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid and b"spawn_main" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, IndexError, ValueError):
            continue
    return sorted(found)


def step_of(folder: Path) -> int:
    """Of the newest complete checkpoint."""
    found = complete(folder / "run")
    return read_index(found[-1]).step if found else 0


def kill(rng: random.Random, folder: Path, row: Row, label: str) -> None:
    """Starts or resumes the run, kills it some time after its next checkpoint, and looks at what is left."""
    begun = step_of(folder)
    resume = ["--resume"] if begun else []
    steps = ["--steps", str(STEPS - begun), "--checkpoint", "run", "--checkpoint-every", str(EVERY), "--keep", "3"]
    process = subprocess.Popen(
        command(*steps, *resume), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and step_of(folder) == begun and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(rng.random() * 0.3)
    ranks, before = ranks_of(process.pid), step_of(folder)
    number = rng.choice((signal.SIGKILL, signal.SIGTERM))
    target = rng.choice([process.pid, *ranks])
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(target, number)
        row.figures["kills"] = int(row.figures["kills"]) + 1
    try:
        _, stderr = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        row.count("hang")
        process.kill()
        _, stderr = process.communicate()
        print(f"{label}: hangs after signal {number}", file=sys.stderr)
    time.sleep(1.0)
    if "Traceback" in stderr:
        row.count("traceback")
        print(f"{label}: {stderr[-600:]}", file=sys.stderr)
    if any(Path(f"/proc/{pid}").exists() and pid in ranks_of(1) for pid in ranks):
        row.count("orphan")
        print(f"{label}: a rank is left", file=sys.stderr)
    if step_of(folder) < before:
        row.count("file lost")
        print(f"{label}: step {before} is gone", file=sys.stderr)


def kills(seed: int, row: Row) -> None:
    """Three kills of one training, and its end."""
    rng = random.Random(seed)
    schedule, optimizer = rng.choice(("1f1b", "chimera")), rng.choice(("momentum", "adam"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = planned(Case(schedule, "mlp-tiny", 2, 4, "sgd" if optimizer == "adam" else optimizer))
        save_plan(plan, folder / "plan.json")
        code, whole, stderr = losses_of("--steps", str(STEPS), folder=folder)
        assert code == 0, stderr
        for turn in range(3):
            if step_of(folder) < STEPS:
                kill(rng, folder, row, f"seed {seed}, kill {turn}")
        done = step_of(folder)
        row.cases += 1
        if done >= STEPS:
            return
        left = ["--steps", str(STEPS - done), "--checkpoint", "run", "--resume"]
        code, rest, stderr = losses_of(*left, folder=folder)
        row.figures["resumes"] = int(row.figures["resumes"]) + 1
        if code or rest != whole[done:]:
            row.count("different")
            print(f"seed {seed}: resumed at {done}: exit code {code}, {stderr[-300:]}", file=sys.stderr)


# ---------------------------------------------------------------- pairs of plans


def training_of(rng: random.Random) -> Training:
    """Options that a checkpoint must carry over."""
    schedule = rng.choice(("constant", "linear", "cosine"))
    return Training(
        lr=0.01, schedule=schedule, decay_steps=None if schedule == "constant" else 8, warmup_steps=rng.choice((0, 2)),
        clip_norm=rng.choice((None, 0.5)), loss_scale=rng.choice((1.0, "dynamic")), scale_interval=3,
        mini_batch=rng.choice((None, 7)),
    )  # fmt: skip


def random_plan(rng: random.Random, model: str, optimizer: str, precision: str) -> tuple[str, Plan]:
    """A synchronous plan of four micro-batches."""
    schedule = rng.choice(SCHEDULES)
    devices = 2 if schedule in ("chimera", "interleaved", "zb-v") or model == "mlp-tiny" else rng.choice((1, 2, 3))
    stash = rng.choice(("keep", "offload") if schedule.startswith("zb") else POLICIES)
    case = Case(schedule, model, devices, 4, optimizer, stash, precision=precision)
    return f"{schedule} on {devices}, {stash}", planned(case)


def both(
    first: Plan, second: Plan, options: Mapping[str, Any], every: int = 0
) -> tuple[list[float], list[float], list[float]]:
    """Losses of: the first plan alone; some steps of it and the rest under itself; and the rest under the second."""

    def train(plan: Plan, steps: int, folder: str | None, resume: bool = False) -> list[float]:
        saving = None if folder is None else Checkpointing(folder, every, resume=resume)
        return list(execute(plan, steps, transport="threads", self_check=False, checkpoint=saving, **options).losses)

    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b, tempfile.TemporaryDirectory() as c:
        whole = train(first, 6, c)
        same = [*train(first, 3, a), *train(first, 3, a, True)]
        other = [*train(first, 3, b), *train(second, 3, b, True)]
    return whole, same, other


def pair(seed: int, row: Row) -> None:
    """Two plans of one training."""
    rng = random.Random(seed)
    asynchronous = rng.random() < 0.25
    options: dict[str, Any] = {"seed": seed}
    label: str
    if asynchronous:
        policy = rng.choice(("stash", "2bw", "vertical"))
        first = planned(unflushed(policy, 2, 2, optimizer="momentum"))
        second = two_devices(policy, 2, 2) if policy == "stash" and rng.random() < 0.5 else first
        label, every = f"asynchronous {policy}", 3
    else:
        model, optimizer = rng.choice(MODELS), rng.choice(("sgd", "momentum", "adam"))
        precision = "mixed" if model == "mlp-tiny" and rng.random() < 0.4 else "fp32"
        training = training_of(rng)
        case = Case("1f1b", model, 2, 4, optimizer, precision=precision)
        options |= {"training": training, "dtype": case.dtype}
        (one, first), (two, second) = (random_plan(rng, model, optimizer, precision) for _ in range(2))
        label, every = f"{model} {optimizer} {precision} {training.loss_scale}: {one}; {two}", 0
    whole, same, other = both(first, second, options, every)
    row.cases += 1
    row.figures["pairs of plans"] = int(row.figures["pairs of plans"]) + 1
    bound = 5e-2 if "mixed" in label else 1e-4
    if same != whole:
        row.count("different")
        print(f"seed {seed}, {label}: resumed under its own plan: {same} for {whole}", file=sys.stderr)
    elif not asynchronous and not all(math.isclose(a, b, rel_tol=bound) for a, b in zip(other, whole, strict=True)):
        row.count("different")
        print(f"seed {seed}, {label}: resumed under another plan: {other} for {whole}", file=sys.stderr)


def tried(work: Callable[[int, Row], None], seed: int, row: Row) -> None:
    """Any exception is a fault."""
    try:
        work(seed, row)
    except Exception as error:
        row.cases += 1
        row.count("traceback")
        print(f"seed {seed}, {work.__name__}: {type(error).__name__}: {str(error)[:400]}", file=sys.stderr)


def main() -> int:
    """Exit code 1 on any fault."""
    parser = arguments(__doc__, 40)
    parser.add_argument("--only", type=int, metavar="SEED", help="one case alone")
    parser.add_argument("--kind", choices=("kills", "pairs"), help="with --only, and else: only these")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    row = Row("runs killed three times and resumed, plans changed between: the losses of one run", COMMAND)
    row.faults = dict.fromkeys(("traceback", "hang", "different", "orphan", "file lost"), 0)
    row.figures = {"kills": 0, "resumes": 0, "pairs of plans": 0}
    first = options.seed * 1_000_000
    for number in [options.only] if options.only is not None else range(first, first + options.cases):
        work = kills if (options.kind or ("kills" if number % 4 == 0 else "pairs")) == "kills" else pair
        tried(work, number, row)
    return finish(row, started, options.json)


COMMAND = "python benchmarks/reliability/resumes.py"

if __name__ == "__main__":
    raise SystemExit(main())
