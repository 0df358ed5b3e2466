"""Pauses between the operators of a stage program, in which threads that carry messages run.

A thread of gloo's that has a message to move while its core computes gets the core when the kernel's clock ticks, every
4 ms of many servers: longer than many ops. A core that is offered in between is taken at once, if anybody waits for it;
offering it costs half a microsecond. Where ranks share cores, others that compute would take it, and caches with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from .split import storages

LEAST_BYTES = 64 << 10
"""That operators read and write from one pause to the next, some ten microseconds."""
_DUE = "pause"

Program = Callable[[list[Any]], tuple[Tensor, ...]]


def pause() -> None:
    """Offers the core to a thread that waits for it, on systems that can."""


if hasattr(os, "sched_yield"):
    pause = os.sched_yield


def note_pauses(program: fx.GraphModule) -> None:
    """Notes after which operators pauses are due, and drops what else is noted of the nodes: fake tensors."""
    sizes = {node: _bytes(node) for node in program.graph.nodes}
    touched = 0
    for node in program.graph.nodes:
        node.meta.clear()
        if node.op == "call_function":
            touched += sizes[node] + sum(sizes[used] for used in node.all_input_nodes)
        if touched >= LEAST_BYTES:
            node.meta[_DUE] = True
            touched = 0


def with_pauses(program: Program) -> Program:
    """A part of a stage program with the pauses that were noted."""
    module: fx.GraphModule = program.__self__  # type: ignore[attr-defined]
    for node in [node for node in module.graph.nodes if node.meta.pop(_DUE, False)]:
        with module.graph.inserting_after(node):
            module.graph.call_function(pause)
    module.recompile()
    paused: Program = module.forward
    return paused


def _bytes(node: fx.Node) -> int:
    return sum(storages(node.meta.get("val")).values())
