"""How a run trains: rate and schedule, optimizer options, clipping, loss scaling, evaluation. Knows no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from .errors import RunError
from .option_fields import Form, option

DEFAULT_RATES = {"sgd": 0.1, "momentum": 0.02, "nesterov": 0.02, "rmsprop": 1e-3, "adam": 1e-3, "adamw": 1e-3}
SCHEDULES = ("constant", "linear", "cosine")
DYNAMIC = "dynamic"
STOP, SKIP = "stop", "skip"
ON_REQUEST = 1 << 62
"""As `evaluate_every`: evaluations are prepared, and made when they are asked for."""
INITIAL_SCALE = 2.0**16
"""Where a dynamic loss scale begins; torch.amp.GradScaler's."""


@dataclass(frozen=True)
class Training:
    """What a run does besides what its plan says; the same for every rank and for the single-process reference.

    Attributes:
        lr: the highest rate; None: `DEFAULT_RATES` of the optimizer.
        schedule: what follows the warmup: "constant", or "linear" or "cosine" (arXiv:1608.03983) down to `lr_floor`.
        warmup_steps: so many first steps take lr * 1/warmup, 2/warmup, ...
        decay_steps: the step at which the floor is reached, counted from the very first; None: the run's last.
        weight_decay: None: torch's default of the optimizer.
        momentum: of "momentum" and "nesterov". betas: of "adam" and "adamw". smoothing: of "rmsprop", torch's alpha.
        eps: of the three.
        clip_norm: gradients of the whole model are scaled down to this norm where theirs is larger.
        loss_scale: losses are multiplied by it before the backward, and gradients divided before the step: a
            constant, or "dynamic" (arXiv:1710.03740, section 3.2): a step in which any gradient is not finite is left
            out and halves the scale, `scale_interval` others in a row double it.
        mini_batch: samples a step, no more than its micro-batches hold; the last one has the rest. None: all it holds.
        evaluate_every: held-out losses after so many steps each, 0: never.
        evaluate_steps: how many steps' worth of held-out micro-batches that takes.
        on_nan: what a loss or gradient does that is NaN or infinite: "stop" the run, or "skip" the step on all ranks.

    Raises RunError.
    """

    lr: float | None = field(
        default=None,
        metadata=option(
            "Learning rate. [default: by optimizer]", form=Form.POSITIVE, metavar="RATE", words="learning rate"
        ),
    )
    schedule: str = field(
        default="constant",
        metadata=option(
            "What follows the warmup.", flag="lr-schedule", choices=SCHEDULES, words="learning-rate schedule"
        ),
    )
    warmup_steps: int = field(default=0, metadata=option("Steps up to the rate.", flag="warmup", least=0, metavar="N"))
    decay_steps: int | None = field(
        default=None,
        metadata=option(
            "The step at which the floor is reached, from the very first. [default: --steps]",
            flag="lr-steps",
            least=1,
            metavar="N",
        ),
    )
    lr_floor: float = field(default=0.0, metadata=option("Rate at the end.", form=Form.AT_LEAST_0, metavar="RATE"))
    weight_decay: float | None = field(
        default=None, metadata=option("[default: adamw 0.01, others 0]", form=Form.AT_LEAST_0, metavar="SHARE")
    )
    momentum: float = field(default=0.9, metadata=option("Of momentum and nesterov.", form=Form.SHARE))
    betas: tuple[float, float] = field(
        default=(0.9, 0.999), metadata=option("Of adam and adamw.", form=Form.SHARES, metavar="B1 B2")
    )
    smoothing: float = field(
        default=0.99, metadata=option("Of rmsprop: the share of the old average of squares.", form=Form.SHARE)
    )
    eps: float = field(default=1e-8, metadata=option("Of adam, adamw, rmsprop.", form=Form.POSITIVE))
    clip_norm: float | None = field(
        default=None,
        metadata=option("Scale the whole model's gradient down to it.", form=Form.POSITIVE, metavar="NORM"),
    )
    loss_scale: float | str = field(
        default=1.0,
        metadata=option(f"For float16: a constant, or {DYNAMIC}.", form=Form.POSITIVE, word=DYNAMIC, metavar="NUMBER"),
    )
    scale_interval: int = 2000
    mini_batch: int | None = field(
        default=None,
        metadata=option(
            "Samples a step; the last micro-batch gets the rest. [default: all that the micro-batches hold]",
            least=1,
            metavar="SAMPLES",
            words="samples a step",
        ),
    )
    evaluate_every: int = field(default=0, metadata=option("Held-out loss after every N steps.", least=1, metavar="N"))
    evaluate_steps: int = field(
        default=1, metadata=option("So many steps' worth of held-out micro-batches.", least=1, metavar="N")
    )
    on_nan: str = field(
        default=STOP,
        metadata=option(
            "Where a loss or gradient is NaN or infinite: end the run, or leave the step out on all ranks.",
            choices=(STOP, SKIP),
        ),
    )

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise RunError(f"unknown learning-rate schedule {self.schedule!r}; known: {', '.join(SCHEDULES)}")
        if self.on_nan not in (STOP, SKIP):
            raise RunError(f"on_nan is {STOP!r} or {SKIP!r}, got {self.on_nan!r}")
        counts = {"warmup_steps": 0, "scale_interval": 1, "evaluate_every": 0, "evaluate_steps": 1}
        counts |= {} if self.mini_batch is None else {"mini_batch": 1}
        for name, least in counts.items():
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < least:
                raise RunError(f"{name} must be a whole number of at least {least}, got {count!r}")
        self._check_numbers()
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise RunError(f"the schedule ends at step {self.decay_steps}, within {self.warmup_steps} steps of warmup")
        if self.lr is not None and self.lr_floor > self.lr:
            raise RunError(f"the learning rate's floor {self.lr_floor:g} is above the rate {self.lr:g}")

    def _check_numbers(self) -> None:
        positive = {"lr": self.lr, "clip_norm": self.clip_norm, "eps": self.eps}
        if self.loss_scale != DYNAMIC:
            positive["loss_scale"] = _number("loss_scale", self.loss_scale)
        for name, value in positive.items():
            if value is not None and not 0 < _number(name, value) < math.inf:
                raise RunError(f"{name} must be finite and above 0, got {value}")
        for name, value in {"lr_floor": self.lr_floor, "weight_decay": self.weight_decay}.items():
            if value is not None and not 0 <= _number(name, value) < math.inf:
                raise RunError(f"{name} must be finite and at least 0, got {value}")
        shares = {"momentum": self.momentum, "betas[0]": self.betas[0], "betas[1]": self.betas[1]}
        for name, value in (shares | {"smoothing": self.smoothing}).items():
            if not 0 <= _number(name, value) < 1:
                raise RunError(f"{name} must be at least 0 and below 1, got {value}")

    def of_run(self, optimizer: str, steps: int, resumed: bool = False) -> Training:
        """With the rate and the schedule's length filled in for a run of `steps` steps.

        Raises RunError: a run that resumes does not tell how long the schedule is that it goes on with.
        """
        rate = DEFAULT_RATES[optimizer] if self.lr is None else self.lr
        end = self.decay_steps
        if end is None and self.schedule != "constant":
            if resumed:
                raise RunError(f"a resumed run with a {self.schedule} schedule must say how long it is: decay steps")
            end = steps
        return replace(self, lr=rate, decay_steps=end)

    def rate(self, step: int) -> float:
        """The learning rate of step 0, 1, ...: of the step alone, so a resumed run has the same. See `of_run`."""
        assert self.lr is not None, "of_run fills in the rate"
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.lr
        assert self.decay_steps is not None, "of_run fills in the schedule's length"
        done = min(1.0, (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
        left = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.lr_floor + (self.lr - self.lr_floor) * left

    @property
    def agrees(self) -> bool:
        """Whether all ranks must know all gradients before any of them steps."""
        return bool(self.all_gradients)

    @property
    def all_gradients(self) -> str:
        """What needs them all in words, "" for nothing."""
        if self.clip_norm is not None:
            return "clipping gradients"
        return "a dynamic loss scale" if self.loss_scale == DYNAMIC else "leaving steps out" if self.skips else ""

    @property
    def skips(self) -> bool:
        """Whether a step is left out whose gradients are not finite."""
        return self.loss_scale == DYNAMIC or self.on_nan == SKIP


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RunError(f"{name} must be a number, got {value!r}")
    return value


@dataclass
class LossScaler:
    """What losses are multiplied by at present; every rank has the same.

    Attributes:
        interval: good steps in a row that double a dynamic scale.
        good: such steps so far. skipped: steps left out since the very first.
    """

    scale: float
    dynamic: bool = False
    interval: int = 2000
    good: int = 0
    skipped: int = 0

    @staticmethod
    def of(training: Training) -> LossScaler:
        """As a run begins."""
        dynamic = training.loss_scale == DYNAMIC
        scale = INITIAL_SCALE if dynamic else float(training.loss_scale)
        return LossScaler(scale, dynamic, training.scale_interval)

    def update(self, finite: bool) -> None:
        """After a step whose gradients all were finite or not."""
        self.skipped += not finite
        if not self.dynamic:
            return
        if not finite:
            self.scale, self.good = self.scale / 2, 0
            return
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = 2 * self.scale, 0

    def to_dict(self) -> dict[str, float | int]:
        """As a checkpoint keeps it; a constant scale is not kept."""
        return {"good": self.good, "skipped": self.skipped} | ({"scale": self.scale} if self.dynamic else {})

    def resume(self, kept: dict[str, float | int]) -> None:
        """Goes on from what a checkpoint keeps; a constant scale stays what it is."""
        self.skipped = int(kept["skipped"])
        if self.dynamic:
            self.scale, self.good = float(kept["scale"]), int(kept["good"])
