"""What all ranks report, put together: step by step, and the result at the end."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from ...planner.graph import asynchronous, update_size
from ...planner.plan import Forecast, Plan
from ..basics import OnStep
from ..stage import warn
from ..state import put_together
from .excess import excesses, planned_peaks
from .job import TRACKED_STEPS, Job, filling_updates, tracked_steps
from .metrics import Logger, StepMetrics
from .reports import Notice, RankReport, StepReport
from .result import RunResult
from .stopping import Stop
from .trace import by_device, trace_of

_LOG = logging.getLogger(__name__)


def _steady(positions: Sequence[int], margin: int) -> list[int]:
    """Of updates with these positions in their runs, those with `margin` others of the run before and behind them."""
    ends = [k for k in range(len(positions)) if k + 1 == len(positions) or positions[k + 1] == 0]
    left = {k: end - k for end in reversed(ends) for k in range(end - positions[end], end + 1)}
    return [k for k, position in enumerate(positions) if position >= margin and left[k] >= margin]


def _forecast_step_s(plan: Plan, forecast: Forecast) -> float:
    """Seconds a step; of an asynchronous plan, seconds an update once the pipeline is full."""
    return forecast.step_s if forecast.period_s is None else forecast.period_s * update_size(plan)


def _all_known(bytes_: Iterable[int | None]) -> tuple[int, ...] | None:
    """Those of all devices; None where some device does not know."""
    found = tuple(bytes_)
    return None if None in found else tuple(size for size in found if size is not None)


def _mean(held_out: Mapping[tuple[int, int], float]) -> float:
    """Of the losses of an evaluation, added in the order of its micro-batches, whoever had them."""
    return sum(held_out[key] for key in sorted(held_out)) / len(held_out)


class Collector:
    """Puts the ranks' step reports together; tells `on_step` when all ranks have ended a step."""

    def __init__(self, job: Job, on_step: OnStep | None, logger: Logger | None = None) -> None:
        self._ranks, self._rate = job.ranks, job.training.rate
        self._on_step, self._logger = on_step, logger
        self.stop = Stop(bytearray(Stop.SIZE))
        self._pending: dict[int, list[StepReport]] = {}
        self._ended: tuple[int, float] = (-1, 0.0)  # first step of the run under way; when its last step has ended
        self._positions: list[int] = []
        self._noticed: set[tuple[int, str]] = set()
        self.losses: list[float] = []
        self.times: list[float] = []
        self.norms: list[float] = []
        self.scales: list[float] = []
        self.evaluations: dict[int, float] = {}
        self.left_out: list[int] = []

    def add(self, report: StepReport | Notice) -> None:
        """One rank's report of one step, or its notice, which the user gets as a warning once a stage."""
        if isinstance(report, Notice):
            if (report.stage, report.subject) not in self._noticed:
                self._noticed.add((report.stage, report.subject))
                warn(report.text)
            return
        reports = self._pending.setdefault(report.step, [])
        reports.append(report)
        if len(reports) < self._ranks:
            return
        del self._pending[report.step]
        losses = {m: loss for r in reports for m, loss in r.losses.items()}
        self.losses.append(report.mini_batch.mean(losses))
        ended = max(r.seconds for r in reports)
        self.times.append(ended - (self._ended[1] if self._ended[0] == report.run else 0.0))
        self._ended = (report.run, ended)
        self._positions.append(report.step - report.run)
        self.scales.append(report.loss_scale)
        if report.grad_norm is not None:
            self.norms.append(report.grad_norm)
        if report.left_out:
            self.left_out.append(report.step)
        held_out = {key: loss for r in reports for key, loss in (r.held_out or {}).items()}
        if held_out:
            self.evaluations[report.step + 1] = _mean(held_out)
        _LOG.debug("step %d: loss %.6g, %.6g s", report.step, self.losses[-1], self.times[-1])
        if self._logger is not None:
            self._logger.log(self._metrics(report))
        if self._on_step is not None:
            self._on_step(report.step, self.losses[-1], self.times[-1])

    def _metrics(self, report: StepReport) -> StepMetrics:
        """Of the step that has just ended, of which this is one rank's."""
        return StepMetrics(
            step=report.step,
            loss=self.losses[-1],
            seconds=self.times[-1],
            samples=report.mini_batch.samples,
            lr=self._rate(report.step),
            grad_norm=report.grad_norm,
            loss_scale=report.loss_scale,
            left_out=report.left_out,
            held_out=self.evaluations.get(report.step + 1),
        )

    def result(self, plan: Plan, reports: Sequence[RankReport]) -> RunResult:
        """The run's result from what every rank left at its end, in rank order."""
        forecast = plan.forecast
        assert forecast is not None  # require_executable saw to it
        of_devices = by_device(plan, reports)
        peaks = tuple(report.peak_bytes for report in of_devices)
        planned = planned_peaks(plan, max(self._positions, default=0) + 1)
        state: dict[str, Tensor] = {}
        for report in reports:
            state |= report.state or {}
        alone = {key: loss for report in reports for key, loss in (report.held_out or {}).items()}
        if alone:
            self.evaluations[reports[0].first_step] = _mean(alone)
        times = self.times
        steady = _steady(self._positions, filling_updates(plan)) if asynchronous(plan) else []
        settled = [times[k] for k in steady if k >= tracked_steps(plan)] or [times[k] for k in steady]
        allocated = _all_known(report.allocated_bytes for report in of_devices)
        reserved = _all_known(report.reserved_bytes for report in of_devices)
        return RunResult(
            losses=tuple(self.losses),
            step_s=statistics.median(settled or times[TRACKED_STEPS:] or times[1:] or times or [0.0]),
            step_times=tuple(times),
            peak_bytes=peaks,
            forecast_step_s=_forecast_step_s(plan, forecast),
            forecast_peak_bytes=planned,
            first_step=reports[0].first_step,
            trace=trace_of(plan, reports, times, self.losses),
            grad_norms=tuple(self.norms),
            loss_scales=tuple(self.scales),
            evaluations=self.evaluations,
            state=put_together(state) or None,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            excesses=excesses(of_devices, planned),
            left_out=tuple(self.left_out),
        )
