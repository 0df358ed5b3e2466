"""A clean environment with the wheel alone: its size, and how long a Llama of 70B parameters takes to plan in it.

The wheel is built from the last commit and installed with what it depends on, from the package index. A plan's seconds
are those of the whole command, from the start of Python to plan.json; a checkout is not on its path.

    python benchmarks/without_torch.py --save       3 to 5 minutes
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import Table, origin, savable

from contraflow.planner import check, load_plan

ROOT = Path(__file__).resolve().parents[1]
LIMITS_S = (10, 20, 50)
MODEL = (
    "llama-70b.json", "--cluster", "cluster-h100.toml", "--micro-batches", "64", "--precision", "mixed",
    "--optimizer", "adam",
)  # fmt: skip
MIB = 1 << 20


def run(*command: object, folder: Path, allowed: int = 0) -> None:
    """Runs a command away from this checkout; ends the program with what it says where it fails otherwise."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run([*map(str, command)], cwd=folder, env=clean, capture_output=True, text=True, check=False)
    if found.returncode not in (0, allowed):
        sys.exit(f"{' '.join(map(str, command))}: {(found.stderr or found.stdout).strip()}")


def installed(folder: Path) -> Path:
    """The command line of an environment that has the wheel of the last commit."""
    source, made = folder / "source", folder / "venv"
    source.mkdir()
    run("git", "archive", "-o", folder / "source.tar", "HEAD", folder=ROOT)
    run("tar", "-xf", folder / "source.tar", "-C", source, folder=folder)
    run(sys.executable, "-m", "venv", made, folder=folder)
    pip = (made / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "-w", folder, source, folder=folder)
    run(*pip, "install", *folder.glob("contraflow-*.whl"), folder=folder)
    run(made / "bin" / "python", "-c", "import importlib.util as u; assert not u.find_spec('torch')", folder=folder)
    return made / "bin" / "contraflow"


def size_mib(folder: Path) -> float:
    """Of all files below."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file()) / MIB


def planned(command: Path, folder: Path, limit_s: int) -> list[str]:
    """A row: what the command takes, and what its plan comes to; the plan is checked here."""
    file, began = folder / f"plan{limit_s}.json", time.perf_counter()
    run(command, "plan", *MODEL, "--time-limit", limit_s, "-o", file, folder=folder, allowed=1)
    spent = time.perf_counter() - began
    if not file.exists():
        return [f"--time-limit {limit_s}", f"{spent:.1f}", "no plan", "-"]
    made = load_plan(file)
    assert not check(made)
    assert made.forecast is not None
    gap = "-" if made.forecast.gap is None else f"{100 * made.forecast.gap:.1f} %"
    return [f"--time-limit {limit_s}", f"{spent:.1f}", f"{made.forecast.step_s:.3f}", gap]


def main() -> None:
    """Installs, plans and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    savable(parser)
    options = parser.parse_args()
    made = origin()
    with tempfile.TemporaryDirectory(prefix="contraflow-") as name:
        folder = Path(name)
        command = installed(folder)
        size = f"{size_mib(folder / 'venv'):.0f}"
        for file in (MODEL[0], MODEL[2]):
            (folder / file).write_bytes((ROOT / "examples" / file).read_bytes())
        rows = [planned(command, folder, limit_s) for limit_s in LIMITS_S]
    tables = {
        "large": Table.made(made, ["Llama-70B, 32 H100s", "the command, s", "step, s", "gap"], rows),
        "size": Table.made(made, ["environment", "MiB"], [["pip install contraflow", size]]),
    }
    for name, table in tables.items():
        print(table.text(), flush=True)
        if options.save:
            table.save(f"embed/{name}")


if __name__ == "__main__":
    main()
