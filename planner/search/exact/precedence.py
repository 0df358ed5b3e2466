"""What waits for what on one stage, and the end of the step."""

from __future__ import annotations

from ...plan import Kind
from .variables import Variables


def backward_after_forward(v: Variables) -> None:
    """F, then B, or I and W, of one stage and micro-batch."""
    for s, k in v.choices:
        kinds = v.instance.stages[s].kinds
        for earlier, later in zip(kinds, kinds[1:], strict=False):
            v.after(v.start[later, s, k], earlier, s, k)


def remake_before_backward(v: Variables) -> None:
    """R between F and the backward, where the stash is made again."""
    for (s, k), choice in v.choices.items():
        again = choice.remade
        if again is not False:
            v.after(v.start[Kind.R, s, k], Kind.F, s, k, again)
            v.after(v.start[v.instance.stages[s].backwards[0], s, k], Kind.R, s, k, again)


def step_ends_after_reductions(v: Variables) -> None:
    """Sums of gradients, optimizer steps, and new parameters where the forward runs, after the last backward."""
    for (s, k), choice in v.choices.items():
        stage = v.instance.stages[s]
        if v.instance.open and k < v.instance.micro_batches - 1:
            continue
        end, least = v.end(stage.backwards[-1], s, k), min(stage.finish.values())
        v.model.add(v.makespan >= end + least)
        for pair, ticks in stage.finish.items():
            if ticks > least:
                v.when(choice.pair[pair], v.makespan >= end + ticks)
