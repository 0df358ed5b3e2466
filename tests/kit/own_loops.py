"""Training loops as users write them, on kept gloo processes: each returns what its rank has seen."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import users_data
from kept_ranks import kept
from torch.utils.data import DataLoader, TensorDataset

from contraflow.executor import JsonLines, StepMetrics, Trainer
from contraflow.executor.basics import RunOptions, Training
from contraflow.planner.plan import Plan
from contraflow.planner.plan_file import load_plan, save_plan

MODEL = "users_data:in_order"
Loop = Callable[..., Any]
"""loop(plan, **arguments): what one rank does; picklable, as what it returns is."""


def on_ranks(plan: Plan, loop: Loop, folder: Path, **arguments: Any) -> list[Any]:
    """What the loop returns on every rank, or the error that it raises."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    save_plan(plan, folder / "plan.json")
    ranks = len(plan.orders)
    kept(ranks).run(_run, ranks, port, str(folder), loop, arguments, timeout_s=300.0)
    return [pickle.loads((folder / f"left{rank}").read_bytes()) for rank in range(ranks)]


def _run(rank: int, ranks: int, port: int, folder: str, loop: Loop, arguments: dict[str, Any]) -> None:
    job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({key: str(value) for key, value in job.items()})
    try:
        left = loop(load_plan(Path(folder, "plan.json")), **arguments)
    except Exception as error:
        left = error
    finally:
        for key in job:
            del os.environ[key]
    Path(folder, f"left{rank}").write_bytes(pickle.dumps(left))


def batches(samples: int = 16, epochs: int = 2) -> Iterator[Any]:
    """48 digits, in order, over and over."""
    kept_ones = TensorDataset(*(tensor[:48] for tensor in users_data.FIRST.tensors))
    for _ in range(epochs):
        yield from DataLoader(kept_ones, samples, drop_last=True)


def plain(plan: Plan, samples: int = 16, **given: Any) -> dict[str, Any]:
    """A loop of steps; what they gave, and the state at the end."""
    with Trainer(plan, MODEL, **given) as trainer:
        losses = [trainer.step(batch) for batch in batches(samples)]
        return {"losses": losses, "state": trainer.state_dict(gathered=True)["tensors"], "steps": trainer.steps}


def scheduled(plan: Plan, **given: Any) -> list[float]:
    """A scheduler of torch in the loop, as anybody uses it: rate and momentum change."""
    with Trainer(plan, MODEL, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9), **given) as trainer:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(trainer.optimizer, max_lr=0.2, total_steps=10)
        losses = []
        for batch in batches():
            losses.append(trainer.step(batch))
            scheduler.step()
        return losses


def stopping(plan: Plan, into: str, at: int) -> dict[str, Any]:
    """A callback of one rank's stops all; another evaluates; metrics go to a file."""
    evaluations: list[float] = []
    mine = int(os.environ["RANK"])

    def stop(trainer: Trainer, metrics: StepMetrics) -> None:
        if mine == 1 and metrics.step == at:
            trainer.stop()

    def evaluate(trainer: Trainer, metrics: StepMetrics) -> None:
        evaluations.append(trainer.evaluate(next(batches())))

    log = JsonLines(Path(into, "metrics.jsonl")) if mine == 0 else ()
    with Trainer(plan, MODEL, callbacks=[stop, evaluate], loggers=log, evaluates=True) as trainer:
        losses = trainer.fit(batches())
        return {"losses": losses, "evaluations": evaluations, "stopped": trainer.stopped}


def resumed(plan: Plan, half: int, first: Plan | None, gathered: bool) -> tuple[list[float], list[float]]:
    """Losses of the second half: of a Trainer, and of another, maybe on another plan, from the first one's state."""
    import torch.distributed as dist

    adam = partial(torch.optim.AdamW, lr=0.01)
    with Trainer(first or plan, MODEL, optimizer=adam) as trainer:
        for batch in list(batches())[:half]:
            trainer.step(batch)
        state = [trainer.state_dict(gathered=gathered)]
        if gathered:
            dist.broadcast_object_list(state)
        before = [trainer.step(batch) for batch in list(batches())[half:]]
    with Trainer(plan, MODEL, optimizer=adam) as trainer:
        trainer.load_state_dict(state[0])
        return before, [trainer.step(batch) for batch in list(batches())[half:]]


def raising(plan: Plan, what: str) -> None:
    """A mistake in the loop."""
    good = next(batches())
    if what == "optimizer":
        Trainer(plan, MODEL, optimizer=torch.optim.Adagrad)
    with Trainer(plan, MODEL, options=RunOptions(training=Training())) as trainer:
        if what == "tensor":
            trainer.step(good[0])
        if what == "none":
            trainer.step(None)
        if what == "samples":
            trainer.step([part[:7] for part in good])
        if what == "shape":
            trainer.step([good[0][:, :60], good[1]])
        trainer.step(good)
        if what == "rest":
            trainer.step([part[:15] for part in good])
        if what == "other shape":
            trainer.step([good[0], good[1].to(torch.int32)])
        if what == "evaluate":
            trainer.evaluate(good)
        if what == "state":
            trainer.load_state_dict({"model": 3})
        if what == "other state":
            trainer.load_state_dict({**trainer.state_dict(), "tensors": {}})
        if what == "decay":
            trainer.optimizer.param_groups[0]["weight_decay"] = 0.1
            trainer.step(good)
        if what == "ranks":
            trainer.optimizer.param_groups[0]["lr"] = 0.1 * (1 + int(os.environ["RANK"]))
            trainer.step(good)
        if what == "closed":
            trainer.close()
            trainer.step(good)
