"""Ranks that somebody else started, torchrun for one: this process is one of them."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...planner.plan import Plan
from ..basics import ExecutionError, RunError, SilentExit, one_line, rank_name
from ..stage import warn
from ..watch import Board, Watcher, lost_another
from ..wires import BACKSTOP_S, JobStore, all_here, listen_locally, local_store
from .children import Failure, ended_by_sigterm
from .collector import Collector
from .gloo_rank import begun_here, run_here
from .job import Job
from .rank import RankRun
from .reports import Notice, RankReport, StepReport
from .roll_call import Presence, call_roll
from .watchdog import Watchdog


class Joined:
    """One rank of the environment's WORLD_SIZE.

    Args:
        plan, timeout_s: what this rank was given; what the others were is compared in `ready`.
    """

    def __init__(self, plan: Plan, timeout_s: float) -> None:
        self._plan, self._timeout_s = plan, timeout_s
        self._rank, self._world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._store = JobStore()
        self._watchdog: Watchdog | None = None
        self._made = False
        self._board = Board(bytearray(Board.size(max(self._world, _ranks(plan)))))

    @contextmanager
    def ready(self, prepare: Callable[[], Job]) -> Iterator[Job]:
        """The job, once all ranks have come and mean the same one; the default process group while it lasts.

        Raises:
            RunError: ranks disagree, some rank's input is bad, or the world size is not the plan's number of devices.
            ExecutionError: some rank could not prepare. All ranks raise the same.
        """
        with self._one_voice(), self._watched() as watchdog:
            self._watchdog = watchdog
            try:
                with ended_by_sigterm(), nullcontext() if watchdog is None else watchdog.heeding_sigterm():
                    job = self._agreed(prepare)
                if watchdog is not None:
                    watchdog.watcher = Watcher(job.plan, job.options.timeout_s, orders_at=job.orders_at)
                yield job
            finally:
                if self._made and dist.is_initialized():
                    dist.destroy_process_group()

    def _agreed(self, prepare: Callable[[], Job]) -> Job:
        """The job, once all ranks are in the default process group and mean the same."""
        job, failure = None, None
        try:
            job = prepare()
            self._require_world()
            mine = Presence.of(job)
        except Exception as error:
            failure, mine = error, Presence.unable(error)
        self._join()
        try:
            call_roll(mine, _gathered, _tell_once)
        except (RunError, ExecutionError) as refused:
            raise refused from failure
        except Exception as error:
            raise self._lost("has lost the others before training", error) from error
        assert job is not None  # a failure is refused
        return job

    def run(self, job: Job, collected: Collector) -> list[RankReport]:
        """Trains; every rank gets the result."""
        torch.set_num_threads(job.options.threads_per_process)
        told: list[StepReport | Notice] = []
        try:
            mine = run_here(
                job, told.append, self._board, collected.stop, int(os.environ.get("LOCAL_RANK", self._rank))
            )
            gathered = _gathered((mine, told))
        except RunError:
            raise
        except Exception as error:
            raise self.failure(job, error) from error
        for notice in (report for _, told in gathered for report in told if isinstance(report, Notice)):
            collected.add(notice)
        steps = [[report for report in told if isinstance(report, StepReport)] for _, told in gathered]
        for reports in zip(*steps, strict=True):
            for report in reports:
                collected.add(report)
        return [report for report, _ in gathered]

    @contextmanager
    def begun(self, job: Job, report: Callable[[StepReport | Notice], None]) -> Iterator[RankRun]:
        """This rank's run, ready for its first step; see `rank.begun`."""
        torch.set_num_threads(job.options.threads_per_process)
        with begun_here(job, report, self._board, None, int(os.environ.get("LOCAL_RANK", self._rank))) as run:
            yield run

    @contextmanager
    def attentive(self) -> Iterator[None]:
        """While it lasts, a SIGTERM ends this rank as it does in `ready`: with a line, where another one has ended."""
        watchdog = self._watchdog
        try:
            with ended_by_sigterm(), nullcontext() if watchdog is None else watchdog.heeding_sigterm():
                yield
        except SystemExit:
            if watchdog is not None:
                watchdog.end_if_left()
            raise

    def failure(self, job: Job, error: Exception) -> ExecutionError:
        """What to raise where a step has; ends this process with better words where a rank beside it has ended."""
        lost = lost_another(job.orders_at, self._rank // job.team, self._board.read(self._rank))
        failure = Failure.of(error, rank_name(self._rank, job.team), lost)
        if failure.order > 1 and self._watchdog is not None:
            self._watchdog.end_if_lost()
        failure.stand_back()
        return ExecutionError(failure.text)

    def _join(self) -> None:
        """Makes the default process group, unless the user has; raises ExecutionError: there is no way to the others.

        Raises RunError: the user's carries no tensors of the host.
        """
        if dist.is_initialized():
            _require_gloo()
            return
        self._made = True
        if all_here():
            listen_locally()
        limit = timedelta(seconds=BACKSTOP_S)
        try:
            store = local_store(self._rank, self._world, limit)
            if store is None:
                store, _, _ = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
            own = _attempts_own(store)
            dist.init_process_group("gloo", store=own, rank=self._rank, world_size=self._world, timeout=limit)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise self._lost(f"cannot meet the others at {where}", error) from error

    def _lost(self, what: str, error: Exception) -> ExecutionError:
        """What to raise; ends this process with better words where a rank beside it has ended."""
        if self._watchdog is not None:
            self._watchdog.end_if_lost()
        return ExecutionError(f"rank {self._rank} {what}: {one_line(error)}")

    @contextmanager
    def _one_voice(self) -> Iterator[None]:
        """Marks what this rank raises where another rank's command line has told the user why the run ends."""
        try:
            yield
        except (RunError, ExecutionError) as error:
            error.told = not self._store.first_word()
            raise
        except KeyboardInterrupt:
            if not self._store.first_word():
                raise SilentExit(128 + signal.SIGINT) from None
            raise
        except SystemExit as ending:  # torchrun ends the ranks that are left when one has died: that one is the cause
            if self._watchdog is not None:
                self._watchdog.end_if_left()
            if not self._store.first_word():
                raise SilentExit(ending.code) from None
            raise

    def _watched(self) -> AbstractContextManager[Watchdog | None]:
        """Its watchdog from the very start, unless what it was given is refused anyway."""
        if _ranks(self._plan) != self._world or not 0 < self._timeout_s < math.inf:
            return nullcontext()
        return Watchdog(Watcher(self._plan, self._timeout_s), self._board, self._rank, self._store)

    def _require_world(self) -> None:
        devices, team = len(self._plan.orders), self._plan.problem.cluster.team
        if self._world != devices * team:
            teams = f", each a team of {team} ranks" if team > 1 else ""
            raise RunError(f"the plan is for {devices} devices{teams}, but WORLD_SIZE is {self._world}")


def _ranks(plan: Plan) -> int:
    return len(plan.orders) * plan.problem.cluster.team


def _require_gloo() -> None:
    backend = str(dist.get_backend_config())
    if "gloo" not in backend:
        raise RunError(
            f"the process group that is there is one of {backend}: make one with the backend 'cpu:gloo,cuda:nccl'"
        )


def _attempts_own(store: Any) -> Any:
    """Where the ranks that torchrun has started again do not read the addresses of the attempt before."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]


def _gathered(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _tell_once(text: str) -> None:
    if dist.get_rank() == 0:
        warn(text)
