"""What is told of every step, and loggers that write it: one JSON line a step, or TensorBoard."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..basics import RunError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One step, the same on all ranks.

    Attributes:
        step: its number, from 0 on. samples: it took. loss: the mean over them.
        seconds: of the rank that took longest, without what a user's loop does between steps.
        lr: the rate. grad_norm: of the whole model before clipping, where the run needs it.
        loss_scale: it ran with. left_out: nobody stepped, since something was not finite.
        held_out: the mean loss of the evaluation after it, where the run makes one by itself.
    """

    step: int
    loss: float
    seconds: float
    samples: int
    lr: float
    grad_norm: float | None = None
    loss_scale: float = 1.0
    left_out: bool = False
    held_out: float | None = None

    def numbers(self) -> dict[str, float]:
        """What is known and finite, by name; seconds as samples a second besides."""
        found = {name: value for name, value in asdict(self).items() if value is not None and math.isfinite(value)}
        return found | ({"samples_per_s": self.samples / self.seconds} if self.seconds else {})


class Logger(Protocol):
    """Writes metrics somewhere; on one rank alone."""

    def log(self, metrics: StepMetrics) -> None:
        """One step."""

    def close(self) -> None:
        """No step comes any more."""


class JsonLines:
    """One JSON object a step, a line each, added to what the file has; written at once. Raises RunError: it cannot."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - `close` closes it
        except OSError as error:
            raise RunError(f"cannot write metrics: {error}") from None

    def log(self, metrics: StepMetrics) -> None:
        self._file.write(json.dumps(metrics.numbers()) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Scalars "train/loss", "train/lr", ... by torch's writer. Raises RunError: `tensorboard` is not installed."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError("metrics for TensorBoard need it: pip install tensorboard") from None
        self._make: Callable[[], SummaryWriter] = lambda: SummaryWriter(str(folder))
        self._writer: SummaryWriter | None = None

    def log(self, metrics: StepMetrics) -> None:
        self._writer = self._writer or self._make()  # on the rank that logs, alone
        for name, value in metrics.numbers().items():
            if name != "step":
                self._writer.add_scalar(f"train/{name}", float(value), metrics.step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@contextmanager
def metrics_file(path: str | Path | None) -> Iterator[JsonLines | None]:
    """What writes there, on the first rank of a job; None elsewhere, and without a path. Raises RunError."""
    if path is None or os.environ.get("RANK", "0") != "0":
        yield None
        return
    logger = JsonLines(path)
    try:
        yield logger
    finally:
        logger.close()


def each(loggers: Any) -> tuple[Logger, ...]:
    """Several, one, or none. Raises RunError: it does not log."""
    found = tuple(loggers) if isinstance(loggers, list | tuple) else () if loggers is None else (loggers,)
    for logger in found:
        if not callable(getattr(logger, "log", None)) or not callable(getattr(logger, "close", None)):
            raise RunError(f"a {type(logger).__name__} does not log: it needs log(metrics) and close()")
    return found
