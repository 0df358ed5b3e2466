"""Gives every command files that were made wrong, and looks for anything but an answer or a refusal of one line.

python benchmarks/reliability/fuzz.py --cases 10000 --json benchmarks/results/reliability/fuzz.json
python benchmarks/reliability/fuzz.py --only 4711
"""

from __future__ import annotations

import faulthandler
import json
import math
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from click.testing import CliRunner, Result
from record import Row, arguments, finish

from contraflow.__main__ import cli
from contraflow.planner.basics.errors import InputError
from contraflow.planner.basics.escapes import LINE
from contraflow.planner.plan_file import load_plan, save_plan
from contraflow.planner.simulate import evaluate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "kit"))
import corpus
from mutations import HOSTILE, WORDS, json_bytes, mutated_lists, toml_bytes, torn

COMMAND = "make fuzz"
HANG_S = 10
ROOM = 4 << 30
"""Bytes of address space that the cases may add."""
SCHEDULES = ("1f1b", "gpipe", "chimera", "zb-h1", "interleaved", "pipefb", "pipedream", "pipedream-2bw")
PICTURES = (
    (), ("--json",), ("--as", "svg"), ("--as", "html"), ("--as", "perfetto"), ("--as", "dot"),
    *(("--as", form, "--what", what) for form in ("dot", "svg") for what in ("layers", "placement", "ops")),
)  # fmt: skip
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Hang(BaseException):
    """A case that takes too long; no handler of an error catches it."""


@dataclass(frozen=True)
class Case:
    """A file that may be wrong, and the command that reads it: arguments with FILE for it and OUT for an output."""

    kind: str
    content: bytes
    suffix: str
    command: tuple[str, ...]


# ------------------------------------------------------------------ cases


def case_of(seed: int, folder: Path) -> Case:
    """The case of a seed; sound files that it needs beside the wrong one are in the folder."""
    rng = random.Random(seed)
    makers = {_model: 3, _cluster: 3, _plan: 5, _lists: 4, _run: 3, _published: 2, _argument: 1}
    return rng.choices(list(makers), list(makers.values()))[0](rng, folder)


def _planned(rng: random.Random, model: str, cluster: str) -> tuple[str, ...]:
    made = ("plan", model, "--cluster", cluster, "--micro-batches", "4", "--time-limit", "2", "-o", "OUT")
    return (*made, "--schedule", rng.choice(SCHEDULES))


def _model(rng: random.Random, folder: Path) -> Case:
    content = json_bytes(rng.choice(corpus.models()), rng)
    if rng.random() < 0.1:
        return Case("model", content, ".json", ("calibrate", "FILE", str(folder / "0.run.json"), "-o", "OUT"))
    return Case("model", content, ".json", _planned(rng, "FILE", str(folder / "cluster.toml")))


def _cluster(rng: random.Random, folder: Path) -> Case:
    content = toml_bytes(rng.choice(corpus.clusters()), rng)
    return Case("cluster", content, ".toml", _planned(rng, str(folder / "model.json"), "FILE"))


def _reads_plan(rng: random.Random) -> tuple[str, ...]:
    execute = ("execute", "FILE", "--steps", "1", "--transport", "threads", "--model", "no_such_module:model")
    return rng.choice(
        [("check", "FILE"), ("check", "FILE", "--json"), *(("show", "FILE", *x) for x in PICTURES), execute]
    )


def _plan(rng: random.Random, folder: Path) -> Case:
    return Case("plan", json_bytes(rng.choice(corpus.plan_files()), rng), ".json", _reads_plan(rng))


def _lists(rng: random.Random, folder: Path) -> Case:
    document = dict(rng.choice(corpus.plan_files()))
    document["orders"] = mutated_lists(document["orders"], rng)
    return Case("op lists", json.dumps(document).encode(), ".json", _reads_plan(rng))


def _run(rng: random.Random, folder: Path) -> Case:
    number = rng.randrange(len(corpus.traced()))
    content = json_bytes(corpus.traced()[number][1], rng)
    plan, model = str(folder / f"{number}.plan.json"), str(folder / f"{number}.model.json")
    command = rng.choice(
        [
            ("calibrate", model, "FILE", "-o", "OUT"),
            ("calibrate", model, "FILE", "--plan", plan),
            ("compare", "--measured", "FILE", plan),
            ("compare", "--measured", "FILE", plan, "--json"),
            ("show", plan, "--run", "FILE", "--as", "html", "-o", "OUT"),
            ("show", plan, "--run", "FILE", "--as", "perfetto"),
        ]
    )
    return Case("run", content, ".json", command)


def _published(rng: random.Random, folder: Path) -> Case:
    kind = rng.choice([corpus.PLACEMENT, corpus.PIPER, None])
    content = torn(corpus.PROFILE.encode(), rng) if kind is None else json_bytes(kind, rng)
    return Case(
        "published", content, ".txt" if kind is None else ".json", _planned(rng, "FILE", str(folder / "cluster.toml"))
    )


def _argument(rng: random.Random, folder: Path) -> Case:
    """Names where a file or a model belongs."""
    name = rng.choice([*HOSTILE, *WORDS, str(folder), "no_such_module:model", "json:dumps", "a:b:c", ":", "x/y"])[:3000]
    name = name.encode(errors="replace").decode().replace("\x00", "0")
    name = name.lstrip("-") or "x"
    return Case(
        "argument",
        b"",
        ".json",
        rng.choice([("profile", name), ("check", name), ("show", name), _planned(rng, name, name)]),
    )


def sound_files(folder: Path) -> None:
    """What commands need beside the wrong file."""
    (folder / "model.json").write_text(json.dumps(corpus.models()[1]))
    (folder / "cluster.toml").write_text(corpus.CLUSTER)
    for number, (plan, run) in enumerate(corpus.traced()):
        save_plan(plan, folder / f"{number}.plan.json")
        plan.problem.model.save(folder / f"{number}.model.json")
        (folder / f"{number}.run.json").write_text(json.dumps(run))


# ------------------------------------------------------------------ one case


def tried(case: Case, folder: Path) -> tuple[str, str]:
    """What became of a case ("accepted", "refused" or a fault), and a line about it."""
    path = folder / f"case{case.suffix}"
    path.write_bytes(case.content)
    names = {"FILE": str(path), "OUT": str(folder / "out")}
    try:
        found = _limited([names.get(word, word) for word in case.command])
        fault = _fault(found, case.command[0])
        if fault:
            return fault
        if found.exit_code:
            return "refused", ""
        fault = _unplannable(path) if case.command == ("check", "FILE") else ""
        return ("traceback", fault) if fault else ("accepted", "")
    except Hang:
        return "hang", f"more than {HANG_S} s"


def _limited(command: list[str]) -> Result:
    signal.alarm(HANG_S)
    try:
        return CliRunner().invoke(cli, command)
    finally:
        signal.alarm(0)


def _fault(found: Result, command: str) -> tuple[str, str] | None:
    error, stderr = found.exception, found.stderr
    if isinstance(error, BaseException) and not isinstance(error, SystemExit):
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "traceback", f"{type(error).__name__} {Path(last.filename).name}:{last.lineno} {str(error)[:120]}"
    if found.exit_code not in (0, 1, 2):
        return "traceback", f"exit code {found.exit_code}"
    if "Traceback" in stderr:
        return "traceback", "printed"
    if "out of memory" in stderr:
        return "hang", "out of memory"
    marks = _CONTROLS.search(found.stdout + stderr)
    if marks:
        return "traceback", f"prints {marks[0]!r}"
    if found.exit_code == 0 or (command == "check" and found.exit_code == 1):
        return None
    if stderr.count("\n") != 1 or not stderr.startswith("contraflow: "):
        return "traceback", f"refused in {stderr.count(chr(10))} lines: {stderr[:200]!r}"
    return ("traceback", f"refused in {len(stderr)} letters: {stderr[:200]!r}") if len(stderr) > LINE + 1 else None


def _unplannable(path: Path) -> str:
    """Why a plan that was accepted has no finite forecast or cannot be drawn; empty where it can."""
    try:
        forecast = evaluate(load_plan(path))
    except InputError as error:
        return f"accepted, not evaluated: {error}"
    if not math.isfinite(forecast.step_s) or not all(math.isfinite(x.busy_s) for x in forecast.devices):
        return "accepted with an endless forecast"
    for form in PICTURES:
        found = _limited(["show", str(path), *form])
        fault = _fault(found, "show")
        if fault:
            return f"show {' '.join(form)}: {fault[1]}"
        if found.exit_code and "holds" not in found.stderr:
            return f"show {' '.join(form)}: {found.stderr.strip()}"
    return ""


# ------------------------------------------------------------------ all of them


def _stop(number: int, frame: FrameType | None) -> None:
    raise Hang


def main() -> int:
    parser = arguments(__doc__, 10_000)
    parser.add_argument("--only", type=int, help="the case of this seed alone")
    options = parser.parse_args()
    started = time.monotonic()
    row = Row("files made wrong, read by every command", COMMAND, faults={"traceback": 0, "hang": 0})
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    signal.signal(signal.SIGALRM, _stop)
    seeds = (
        [options.only]
        if options.only is not None
        else range(options.seed * 10**6, options.seed * 10**6 + options.cases)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sound_files(folder)
        _warm(folder)
        _bound_memory()
        for seed in seeds:
            case = case_of(seed, folder)
            faulthandler.dump_traceback_later(6 * HANG_S, exit=True)
            begun = time.monotonic()
            outcome, line = tried(case, folder)
            slowest = max(slowest, time.monotonic() - begun)
            row.cases += 1
            outcomes[outcome] += 1
            if outcome in row.faults:
                row.count(outcome)
                print(f"seed {seed}: {outcome}: {case.kind}: {' '.join(case.command)[:150]!a}: {line!a}", flush=True)
            elif options.only is not None:
                print(f"{outcome}: {case.command!a}", line)
        faulthandler.cancel_dump_traceback_later()
    row.figures |= {"refused": outcomes["refused"], "accepted": outcomes["accepted"], "slowest": f"{slowest:.1f} s"}
    return finish(row, started, options.json)


def _warm(folder: Path) -> None:
    """Loads solver and torch, so that no case is charged for it."""
    files = str(folder / "model.json"), "--cluster", str(folder / "cluster.toml"), "--micro-batches", "4"
    for command in (
        ["plan", *files, "--schedule", "1f1b", "-o", str(folder / "out")],
        ["execute", str(folder / "0.plan.json"), "--model", "x:y"],
    ):
        CliRunner().invoke(cli, command)


def _bound_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))


if __name__ == "__main__":
    sys.exit(main())
