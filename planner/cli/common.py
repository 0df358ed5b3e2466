"""What the planner's commands share: options, reading their inputs, writing their outputs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from ..basics import InputError, parse_bandwidth, parse_bytes, printable_lines, refusal
from ..formats import load_family as load_family_file
from ..plan import gap_of
from ..problem import OPTIMIZER_STATES, PRECISIONS, PRESETS, Cluster, ModelFamily, ModelGraph
from ..search import Proven

Profiler = Callable[[str], ModelGraph]
_Command = TypeVar("_Command", bound=Callable[..., Any])


A_FILE = click.Path(readable=False)
"""What shells complete as a file; what is wrong with it is for its reader to say."""


class SecondsLimit(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases only
    """A finite number above zero, of seconds or what is like them."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises click.BadParameter for anything else, NaN and infinity included."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a number", param, ctx)
        if not math.isfinite(number) or number <= 0:
            self.fail(f"must be a finite number above 0, got {value}", param, ctx)
        return number


class Bytes(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases only
    """A byte count: 8GiB, 500MB or a number."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises click.BadParameter."""
        try:
            return parse_bytes(int(value) if str(value).isdecimal() else value, "memory limit")
        except InputError as error:
            self.fail(str(error), param, ctx)


class Rate(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases only
    """Bytes a second: 25GB/s, 200Gb/s or a number."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises click.BadParameter."""
        try:
            return parse_bandwidth(value, "bandwidth")
        except InputError as error:
            self.fail(str(error), param, ctx)


class OutputFile(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases only
    """A path that can be written: checked before the work, not after it."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Raises click.BadParameter when it is a folder, or in no folder or one that is read-only."""
        reason = refusal(value)
        if reason is not None:
            self.fail(reason, param, ctx)
        return Path(value)


_PROBLEM: list[Callable[[Any], Any]] = [
    click.argument("model", metavar="MODEL", type=A_FILE),
    click.option("--cluster", "cluster_file", required=True, metavar="FILE", help="The machines: cluster.toml."),
    click.option(
        "--micro-batches",
        type=click.IntRange(min=1),
        metavar="N",
        help="Micro-batches a step.",
    ),
    click.option(
        "--memory-limit",
        type=Bytes(),
        metavar="BYTES",
        help="Limit of every device, as 8GiB. [default: its memory]",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(list(OPTIMIZER_STATES)),
        default="sgd",
        show_default=True,
        help="Decides the bytes of optimizer state.",
    ),
    click.option(
        "--precision",
        type=click.Choice(list(PRECISIONS)),
        default="fp32",
        show_default=True,
        help="mixed: 16-bit parameters with an fp32 master copy.",
    ),
    click.option(
        "--pipelines",
        type=click.IntRange(min=1),
        metavar="K",
        help="At most K pipelines, counted by their routes. [default: no limit]",
    ),
    click.option(
        "--cut",
        metavar="LAYERS",
        help="The stages are decided: the layers that begin one, beside the first, as block4,block8; search the rest.",
    ),
    click.option("--no-offload", is_flag=True, help="Copy no stash to the host."),
    click.option("--no-recompute", is_flag=True, help="Never recompute a forward."),
    click.option("--no-split-backward", is_flag=True, help="Never split a backward into its two halves."),
    click.option("--no-shard-optimizer", is_flag=True, help="Every replica of a stage has its whole optimizer state."),
    click.option("--no-separate-backward", is_flag=True, help="Run each backward where its forward ran, ship nothing."),
    click.option(
        "--time-limit",
        type=SecondsLimit(),
        default=60.0,
        show_default=True,
        help="For the whole search; it ends earlier when its plan is proven optimal.",
    ),
    click.option(
        "--deterministic-limit",
        type=SecondsLimit(),
        metavar="EFFORT",
        help="End after this much work, in the solver's deterministic time: the same answer every time, unless the "
        "time limit comes first. [default: none]",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**31 - 1),
        default=0,
        show_default=True,
        metavar="N",
        help="Of the search.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        metavar="N",
        help="Solver threads.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object for machines."),
]


def problem_options(command: _Command) -> _Command:
    """MODEL and the options that describe a problem and bound a search."""
    for decorate in reversed(_PROBLEM):
        command = decorate(command)
    return command


def load_family(name: str, profile: Profiler | None) -> ModelFamily:
    """The models of a family, a model.json or a published file, or of a name, which is profiled. Raises InputError."""
    if name.endswith(".json") or Path(name).is_file():
        return load_family_file(name)
    if "/" in name and ":" not in name:
        raise InputError(f"cannot read {name}: no such file")
    if profile is None:
        raise InputError(f"{name!r} is not a model.json")
    return ModelFamily((profile(name),))


def check_devices(model: ModelGraph, cluster: Cluster) -> None:
    """Raises InputError when times measured on one preset would be taken for those of another."""
    if model.device not in PRESETS:
        return
    for device in cluster.devices:
        name = device.kind.name
        if name != model.device and PRESETS.get(name) == device.kind:
            raise InputError(
                f"model {model.name!r} has times of {model.device} but device {device.index} of the cluster "
                f"is {name}; profile with --device {model.device},{name}, or give it a [devices] entry with its speed"
            )


def among_to_dict(among: Proven | None, seconds: float | None) -> dict[str, Any] | None:
    """What is proven of a part of the space, for machines: the part, its bound, and the gap of a plan of so long."""
    if among is None or seconds is None:
        return None
    return {"space": among.space, "bound_s": among.bound_s, "gap": gap_of(seconds, among.bound_s)}


def print_json(content: Any) -> None:
    """One JSON object on stdout; numbers JSON does not know become null."""
    click.echo(json.dumps(finite(content)))


def finite(content: Any) -> Any:
    """The content with infinities and NaN replaced by None."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return content


def say(text: str, err: bool = False) -> None:
    """Prints lines, whatever names are in them: no escape sequence of theirs reaches a terminal."""
    click.echo(printable_lines(text), err=err)


def stop(code: int) -> NoReturn:
    """Ends the command with an exit code."""
    raise click.exceptions.Exit(code)
