"""A training loop of one's own: the steps of a plan, asked for one by one on every rank that torchrun has started."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...models import LayeredModel
from ...models.once import kept
from ...planner.graph import asynchronous, update_size
from ...planner.plan import Plan
from ..basics import ON_REQUEST, RunError, RunOptions
from ..stage import warn
from ..step import Run
from .by_hand import HandedOver
from .job import Job
from .joined import Joined
from .launch import job_of
from .loading import load_into, whole
from .metrics import Logger, StepMetrics, each
from .rank import RankRun
from .reports import Notice, StepReport
from .stand_in import OptimizerLike, StandIn

Callback = Callable[["Trainer", StepMetrics], None]
"""Called on every rank after every step."""
_OTHERS = ("steps", "model", "data", "transport", "trace", "checkpoint", "resume", "enforce", "return_state", "on_step")
"""Options of `execute` that a loop of one's own has no use for, or says otherwise."""


class Trainer:
    """Trains as a plan says, step by step, on batches that the caller's loop hands over.

        with Trainer(plan, "package.module:function", optimizer=partial(AdamW, lr=3e-4)) as trainer:
            for batch in loader:
                loss = trainer.step(batch)

    Every rank of the plan makes one, and hands over the same batches: whole mini-batches, of which each rank takes its
    micro-batches. What `execute` checks is checked at the first step, which also builds the stages. The losses are
    those of `execute` on the same samples: it is the same loop.

    Args:
        model: default: the registry's model of the plan's name; as of `execute`.
        optimizer: torch's: its class with settings (`partial`), or an optimizer whose settings are taken. It must be
            the one whose state the plan counts. Default: the plan's, with the settings of `options.training`.
        callbacks: called on every rank after every step; they may `evaluate`, and `stop` the training.
        loggers: told about every step on the first rank, see `metrics`.
        evaluates: whether `evaluate` will be called: stages are then built for it too.
        options: of `execute`: seed, engine, device, self-check, and `training` with clipping and loss scale.

    Attributes:
        optimizer: stands for those of all stages: schedulers of torch may change its rate, betas and momentum.
        steps: taken so far. stopped: whether a rank has asked for the end; the same on all ranks after every step.

    Raises:
        RunError: bad input, in one line. ExecutionError: a rank has failed.
    """

    def __init__(
        self,
        plan: Plan,
        model: LayeredModel | str | None = None,
        *,
        optimizer: OptimizerLike | None = None,
        callbacks: Sequence[Callback] = (),
        loggers: Logger | Sequence[Logger] | None = None,
        evaluates: bool = False,
        options: RunOptions | None = None,
    ) -> None:
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise RunError(f"a Trainer is one of several ranks: torchrun --nproc-per-node {len(plan.orders)} SCRIPT")
        if asynchronous(plan):
            raise RunError("an asynchronous plan has no steps to ask for one by one: run it with execute")
        given = options or RunOptions()
        _require_own(given)
        self._plan, self._model, self._given, self._evaluates = plan, model, given, evaluates
        self._stand_in = StandIn(optimizer, plan.problem.workload.optimizer, given.rated)
        self.optimizer = self._stand_in.optimizer
        self._callbacks, self._loggers = tuple(callbacks), each(loggers)
        self._joined = Joined(plan, given.timeout_s)
        self._open = ExitStack()
        self._run: RankRun | None = None
        self._told: list[StepReport] = []
        self._loading: Mapping[str, Any] | None = None
        self._stopping = self._closed = self.stopped = False
        self.steps = 0

    # ------------------------------------------------------------ steps

    def step(self, batch: object) -> float:
        """One step on a batch of inputs and targets, a pair or a mapping; the mean loss. Collective.

        Raises RunError: that is no batch, or has other shapes or fewer samples than those before.
        """
        run = self._ready(batch)
        self._data.give(self.steps, batch)
        settings = self._stand_in.settings(self.steps)
        run.tell(settings)
        with self._joined.attentive():
            self._asked(lambda: run.advance(Run(self.steps, 1)))
            self._stand_in.stepped()
            (report,) = self._told
            self._told.clear()
            metrics = self._exchanged(report, settings)
        self.steps += 1
        if dist.get_rank() == 0:
            for logger in self._loggers:
                logger.log(metrics)
        for callback in self._callbacks:
            callback(self, metrics)
        if self._callbacks:
            self._agree_to_stop()
        return metrics.loss

    def fit(self, batches: Iterable[object], steps: int | None = None) -> list[float]:
        """Steps on these batches: all, so many, or until a rank has asked to stop. Returns the losses."""
        losses: list[float] = []
        if steps is not None and steps < 1:
            raise RunError(f"steps must be at least 1, got {steps}")
        for batch in batches:
            losses.append(self.step(batch))
            if self.stopped or len(losses) == steps:
                break
        return losses

    def evaluate(self, batch: object) -> float:
        """The mean loss of a batch in evaluation mode, which leaves no trace in the training. Collective.

        Raises RunError: it is no full batch, or the Trainer was not made with `evaluates`.
        """
        if not self._evaluates:
            raise RunError("evaluate() needs stages that are built for it: Trainer(..., evaluates=True)")
        run = self._ready(batch)
        self._held_out.give(0, batch)
        found: list[dict[tuple[int, int], float]] = []
        self._asked(lambda: found.append(run.evaluate()))
        count = update_size(self._plan)
        losses = _by_micro_batch(_gathered(_row({m: loss for (_, m), loss in found[0].items()}, count)))
        return sum(losses[m] for m in range(count)) / count

    def stop(self) -> None:
        """Asks all ranks to end; any may. They know at the end of the next step, of one with callbacks at its own."""
        self._stopping = True

    def _asked(self, work: Callable[[], None]) -> None:
        """Does what a rank's run does, and goes back to the caller's loop. Raises what `execute` would."""
        assert self._run is not None
        try:
            work()
        except RunError:
            raise
        except Exception as error:
            raise self._joined.failure(self._job, error) from error
        self._run.away()

    def _exchanged(self, report: StepReport, settings: Mapping[str, Any]) -> StepMetrics:
        """What all ranks know of a step. Raises RunError: they stand at different ones, or have other settings."""
        batch, flat = report.mini_batch, _flat(settings)
        losses = _row(report.losses, batch.micro_batches)
        everyone = _gathered([report.step, report.seconds, self._stopping, *flat, *losses])
        for rank, (step, _, _, *others) in enumerate(everyone):
            if step != report.step:
                raise RunError(f"rank {dist.get_rank()} has taken step {report.step}, but rank {rank} step {step:g}")
            if others[: len(flat)] != flat:
                raise RunError(
                    f"step {report.step}: ranks {dist.get_rank()} and {rank} have different settings of the optimizer: "
                    f"{flat} and {others[: len(flat)]}"
                )
        self.stopped = self._stopping = any(theirs[2] for theirs in everyone)
        return StepMetrics(
            step=report.step,
            loss=batch.mean(_by_micro_batch([theirs[3 + len(flat) :] for theirs in everyone])),
            seconds=max(theirs[1] for theirs in everyone),
            samples=batch.samples,
            lr=settings["lr"],
            grad_norm=report.grad_norm,
            loss_scale=report.loss_scale,
            left_out=report.left_out,
        )

    def _agree_to_stop(self) -> None:
        asked = torch.tensor([int(self._stopping)])
        dist.all_reduce(asked)
        self.stopped = self._stopping = bool(asked.item())

    # ------------------------------------------------------------ begin and end

    def _ready(self, batch: object) -> RankRun:
        """The rank's run; the first batch begins it. Raises RunError: closed."""
        if self._closed:
            raise RunError("the Trainer is closed")
        if self._run is None:
            try:
                self._run = self._begin(batch)
            except BaseException:
                self._end(*sys.exc_info())
                raise
            self._run.away()
            if self._loading is not None:
                self.load_state_dict(self._loading)
        return self._run

    def _begin(self, batch: object) -> RankRun:
        self._open.enter_context(kept())
        self._job = self._open.enter_context(self._joined.ready(lambda: self._prepared(batch)))
        run = self._open.enter_context(self._joined.begun(self._job, self._hear))
        self._open.callback(run.close)
        atexit.register(self._at_exit)
        return run

    def _prepared(self, batch: object) -> Job:
        """The job of a run on such batches; errors as of `execute`."""
        full = self._plan.problem.model.micro_batch_size
        most = update_size(self._plan) * full
        self._data = HandedOver(batch, full, most, most - full + 1)
        samples = self._data.samples_a_step
        training = replace(self._stand_in.training, mini_batch=None if samples == most else samples)
        if self._evaluates:
            self._held_out = self._data.for_evaluation()
            training = replace(training, evaluate_every=ON_REQUEST, evaluate_steps=1)
        return job_of(
            self._plan, replace(self._given, model=self._model, data=self._data, lr=None, steps=1, training=training)
        )

    def _hear(self, report: StepReport | Notice) -> None:
        if isinstance(report, Notice):
            warn(report.text)
        else:
            self._told.append(report)

    def close(self) -> None:
        """Waits for all ranks, and ends what the first step began; the process goes on. Collective."""
        if not self._closed:
            if self._run is not None:
                self._run.finished()
            self._end(None, None, None)

    def _at_exit(self) -> None:
        """Where nobody has closed it; a rank that an error ends leaves it to the others to notice."""
        if getattr(sys, "last_value", None) is None:
            with contextlib.suppress(Exception):
                self.close()

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed = True
        atexit.unregister(self._at_exit)
        for logger in self._loggers:
            with contextlib.suppress(Exception):
                logger.close()
        self._open.__exit__(kind, error, trace)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._end(kind, error, trace)

    # ------------------------------------------------------------ state

    def state_dict(self, *, gathered: bool = False) -> dict[str, Any]:
        """Copies of what this rank trains, and how far: `load_state_dict` goes on from it, bit for bit.

        Tensors are named by layer and parameter, whatever the plan. `gathered`: all ranks' on the first one, and none
        on the others; collective. Raises RunError: before the first step.
        """
        if self._run is None:
            raise RunError("there is no state before the first step, which builds the stages")
        tensors, scaler = self._run.state()
        if gathered:
            tensors = whole(self._run.whole_state())
        else:
            tensors = {key: tensor.detach().cpu().clone() for key, tensor in tensors.items()}
        group = {k: v for k, v in self.optimizer.param_groups[0].items() if k != "params"}
        return {"steps": self.steps, "tensors": tensors, "scaler": scaler, "settings": group}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a rank's own state or a gathered one, of any plan of the model. Collective.

        Before the first step it is kept until then. Raises RunError: it is none, or of another model or optimizer.
        """
        steps, tensors, scaler, settings = _parts(state)
        if self._run is None:
            self._loading = dict(state)
            self.steps = steps
            self.optimizer.param_groups[0].update(settings)
            return
        self._loading = None
        load_into(self._run.state()[0], tensors)
        self._asked(partial(self._run.loaded, steps, scaler))
        self.steps = steps
        self.optimizer.param_groups[0].update(settings)


def _parts(state: object) -> tuple[int, Mapping[str, Tensor], dict[str, Any], dict[str, Any]]:
    if not isinstance(state, Mapping) or state.keys() != {"steps", "tensors", "scaler", "settings"}:
        has = ", ".join(map(str, state)) if isinstance(state, Mapping) else f"a {type(state).__name__}"
        raise RunError(f"not what state_dict() gave: {has[:200]}")
    return state["steps"], state["tensors"], dict(state["scaler"]), dict(state["settings"])


def _flat(settings: Mapping[str, Any]) -> list[float]:
    """Rate, betas, momentum, in one order."""
    return [float(x) for key in sorted(settings) for x in torch.tensor(settings[key], dtype=torch.float64).view(-1)]


def _row(mine: Mapping[int, float], count: int) -> list[float]:
    """Of every micro-batch: whether this rank has its loss, and it."""
    return [x for m in range(count) for x in (float(m in mine), mine.get(m, 0.0))]


def _by_micro_batch(rows: Sequence[Sequence[float]]) -> dict[int, float]:
    """Every micro-batch's loss, from the row of a rank that has it."""
    return {m: next(row[2 * m + 1] for row in rows if row[2 * m]) for m in range(len(rows[0]) // 2)}


def _gathered(mine: Sequence[float]) -> list[list[float]]:
    """As many numbers of every rank; collective."""
    own = torch.tensor(mine, dtype=torch.float64)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    return [theirs.tolist() for theirs in everyone]


def _require_own(given: RunOptions) -> None:
    """Raises RunError: an option that belongs to `execute` alone."""
    for name in _OTHERS:
        if getattr(given, name) != getattr(RunOptions, name):
            raise RunError(f"a Trainer takes no {name} among its options: that is execute's")
    if given.rated.mini_batch is not None or given.rated.evaluate_every:
        name = "mini_batch" if given.rated.mini_batch is not None else "evaluate_every"
        raise RunError(f"a Trainer takes no {name}: the batches of the loop, and evaluate(), say it")
