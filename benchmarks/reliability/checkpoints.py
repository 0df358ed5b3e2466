"""Checkpoints with single flipped bits, or cut short: every one is refused in one line, or resumes with equal tensors.

python benchmarks/reliability/checkpoints.py --cases 400 --seed 1 --json benchmarks/results/reliability/checkpoints.json
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from record import Row, arguments, finish

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "kit"))

from runs import Case, planned  # noqa: E402

from contraflow.executor.basics.checkpointing import Checkpointing  # noqa: E402
from contraflow.executor.basics.errors import RunError  # noqa: E402
from contraflow.executor.run.launch import execute  # noqa: E402
from contraflow.executor.run.result import RunResult  # noqa: E402

PLAN = Case("chimera", "mlp-tiny", 2, 4)


def run(steps: int, folder: Path, resume: bool) -> RunResult:
    """On threads."""
    return execute(
        planned(PLAN), steps, transport="threads", self_check=False, return_state=True,
        checkpoint=Checkpointing(str(folder), resume=resume),
    )  # fmt: skip


def damage(folder: Path, rng: random.Random) -> str:
    """Flips one bit of one file, or cuts the file; says which."""
    path = rng.choice(sorted(p for p in folder.iterdir() if p.is_file()))
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    if rng.random() < 0.25:
        path.write_bytes(content[:place])
        return f"{path.name} cut to {place} bytes"
    bit = rng.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name} byte {place} bit {bit}"


def attempt(seed: int, good: Path, wanted: RunResult, row: Row, folder: Path) -> None:
    """One damaged copy."""
    copy = folder / "copy"
    shutil.copytree(good, copy)
    what = damage(copy / "step-00000002", random.Random(seed))
    row.cases += 1
    try:
        found = run(1, copy, resume=True)
    except RunError as error:
        row.figures["refused"] = int(row.figures["refused"]) + 1
        if "\n" in str(error):
            row.count("traceback")
            print(f"seed {seed}: {what}: more than one line", file=sys.stderr)
    except Exception as error:
        row.count("traceback")
        print(f"seed {seed}: {what}: {type(error).__name__}: {error}", file=sys.stderr)
    else:
        row.figures["harmless"] = int(row.figures["harmless"]) + 1
        assert found.state is not None
        assert wanted.state is not None
        if any(not torch.equal(found.state[name], tensor) for name, tensor in wanted.state.items()):
            row.count("different")
            print(f"seed {seed}: {what}: resumed with other tensors", file=sys.stderr)
    finally:
        shutil.rmtree(copy)


def main() -> int:
    """Exit code 1 on any fault."""
    parser = arguments(__doc__, 200)
    parser.add_argument("--only", type=int, metavar="SEED", help="one case alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    command = "python benchmarks/reliability/checkpoints.py"
    row = Row("checkpoints with a flipped bit or a lost end: refused or harmless", command)
    row.faults, row.figures = {"traceback": 0, "different": 0}, {"refused": 0, "harmless": 0}
    with tempfile.TemporaryDirectory() as name:
        good, whole = Path(name) / "good", Path(name) / "whole"
        run(2, good, resume=False)
        shutil.copytree(good, whole)
        wanted = run(1, whole, resume=True)
        first = options.seed * 1_000_000
        for seed in [options.only] if options.only is not None else range(first, first + options.cases):
            attempt(seed, good, wanted, row, Path(name))
    return finish(row, started, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
