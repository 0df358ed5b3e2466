"""Solves that are left to themselves: the process that began them still ends well."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import random, threading
from ortools.sat.python import cp_model
from contraflow.planner.search.exact import solver

solver._stop = solver._left.add  # as if it did not notice
rng, model = random.Random(0), cp_model.CpModel()
machines, step = [[] for _ in range(12)], model.new_int_var(0, 5000, "step")
for _ in range(40):
    ready = 0
    for k in rng.sample(range(12), 12):
        start, size = model.new_int_var(0, 5000, ""), rng.randint(1, 50)
        machines[k].append(model.new_fixed_size_interval_var(start, size, ""))
        model.add(start >= ready)
        ready = start + size
    model.add(step >= ready)
for intervals in machines:
    model.add_no_overlap(intervals)
model.minimize(step)
effort = solver.Effort(60.0, 1e6, 2)
threading.Timer(0.3, effort.stop.set).start()
solver.run(model, effort, 0, lambda bound: None)
print(any(solve.thread.is_alive() for solve in solver._left))
"""


def test_a_process_ends_well_while_a_solve_does_not_notice_that_it_is_stopped() -> None:
    """It is waited for at exit; otherwise its next report aborts the process."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
