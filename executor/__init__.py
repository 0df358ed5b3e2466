"""Runs plans with torch: what a stage computes, where, over which wires, in which order, and what came of it.

Imports the planner's data (plans, problems, traces) and the models, never the search. Rooms stand on one another:
`basics`; `place` (a device and its memory) and `watch` (who is alive); `stage` (programs) and `wires` (messages);
`state` (what a rank holds between steps); `step` (the interpreter); `run` (ranks, checkpoints); `measure` and
`oracle`; `cli`. Begin with `step/interpreter.py`, which runs a list, and `run/launch.py`, which starts the ranks that
do.
"""
