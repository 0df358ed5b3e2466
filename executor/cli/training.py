"""The options of `contraflow execute` that say how to train, and what they make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..basics import DYNAMIC, SCHEDULES, SKIP, STOP, Training

_DEFAULT = Training()


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases only
    """A finite number: above zero, or at least zero."""

    name = "number"

    def __init__(self, zero: bool = False, word: str | None = None) -> None:
        self._zero = zero
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Also the word, if there is one; raises click.BadParameter."""
        if self._word is not None and value == self._word:
            return self._word
        try:
            number = float(value)
        except (TypeError, ValueError):
            other = f" or {self._word}" if self._word else ""
            self.fail(f"{value!r} is not a number{other}", param, ctx)
        if not (0 < number < float("inf") or (self._zero and number == 0)):
            self.fail(f"must be finite and {'at least' if self._zero else 'above'} 0, got {value}", param, ctx)
        return number


_OPTIONS = (
    click.option("--lr", type=Number(), metavar="RATE", help="Learning rate. [default: by optimizer]"),
    click.option(
        "--lr-schedule",
        type=click.Choice(SCHEDULES),
        default=_DEFAULT.schedule,
        show_default=True,
        help="What follows the warmup.",
    ),
    click.option(
        "--warmup", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Steps up to the rate."
    ),
    click.option(
        "--lr-steps",
        type=click.IntRange(min=1),
        metavar="N",
        help="The step at which the floor is reached, from the very first. [default: --steps]",
    ),
    click.option(
        "--lr-floor", type=Number(zero=True), default=0.0, show_default=True, metavar="RATE", help="Rate at the end."
    ),
    click.option(
        "--weight-decay", type=Number(zero=True), metavar="SHARE", help="[default: adamw 0.01, others 0]"
    ),
    click.option(
        "--momentum",
        type=click.FloatRange(0, 1, max_open=True),
        default=_DEFAULT.momentum,
        show_default=True,
        help="Of momentum and nesterov.",
    ),
    click.option(
        "--betas",
        type=(click.FloatRange(0, 1, max_open=True), click.FloatRange(0, 1, max_open=True)),
        default=_DEFAULT.betas,
        show_default=True,
        metavar="B1 B2",
        help="Of adam and adamw.",
    ),
    click.option(
        "--smoothing",
        type=click.FloatRange(0, 1, max_open=True),
        default=_DEFAULT.smoothing,
        show_default=True,
        help="Of rmsprop: the share of the old average of squares.",
    ),
    click.option("--eps", type=Number(), default=_DEFAULT.eps, show_default=True, help="Of adam, adamw, rmsprop."),
    click.option("--clip-norm", type=Number(), metavar="NORM", help="Scale the whole model's gradient down to it."),
    click.option(
        "--loss-scale",
        type=Number(word=DYNAMIC),
        default=_DEFAULT.loss_scale,
        show_default=True,
        metavar="NUMBER",
        help=f"For float16: a constant, or {DYNAMIC}.",
    ),
    click.option(
        "--mini-batch",
        type=click.IntRange(min=1),
        metavar="SAMPLES",
        help="Samples a step; the last micro-batch gets the rest. [default: all that the micro-batches hold]",
    ),
    click.option(
        "--evaluate-every", type=click.IntRange(min=1), metavar="N", help="Held-out loss after every N steps."
    ),
    click.option(
        "--evaluate-steps",
        type=click.IntRange(min=1),
        default=_DEFAULT.evaluate_steps,
        show_default=True,
        metavar="N",
        help="So many steps' worth of held-out micro-batches.",
    ),
    click.option(
        "--on-nan",
        type=click.Choice((STOP, SKIP)),
        default=STOP,
        show_default=True,
        help="Where a loss or gradient is NaN or infinite: end the run, or leave the step out on all ranks.",
    ),
)  # fmt: skip


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command; `training_of` takes their values back out of its keywords."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def training_of(options: dict[str, Any]) -> Training:
    """Removes the options' values from `options`. Raises RunError where they do not fit together."""
    take = options.pop
    return Training(
        lr=take("lr"),
        schedule=take("lr_schedule"),
        warmup_steps=take("warmup"),
        decay_steps=take("lr_steps"),
        lr_floor=take("lr_floor"),
        weight_decay=take("weight_decay"),
        momentum=take("momentum"),
        betas=take("betas"),
        smoothing=take("smoothing"),
        eps=take("eps"),
        clip_norm=take("clip_norm"),
        loss_scale=take("loss_scale"),
        mini_batch=take("mini_batch"),
        evaluate_every=take("evaluate_every") or 0,
        evaluate_steps=take("evaluate_steps"),
        on_nan=take("on_nan"),
    )
