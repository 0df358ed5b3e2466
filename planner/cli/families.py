"""A family on the command line: which teams and micro-batch sizes, and what came of each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ..basics import InputError
from ..plan import Forecast, Plan, Problem
from ..problem import Cluster, ModelFamily, Workload, speed_notes
from .common import Profiler, check_devices, load_family, say

if TYPE_CHECKING:
    from ..search import Choice, Result

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Counts(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases only
    """Whole numbers of at least 1 with commas between them."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Raises click.BadParameter."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isascii() and part.strip().isdecimal() and 0 < int(part) < 2**31 for part in parts):
            self.fail(f"must be whole numbers with commas between them, as 1,2,4, got {value!r}", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


_OPTIONS: list[Callable[[Any], Any]] = [
    click.option(
        "--samples",
        type=click.IntRange(min=1),
        metavar="N",
        help="Samples a step, instead of --micro-batches: with the best micro-batch size of the family.",
    ),
    click.option(
        "--micro-batch-size",
        "micro_batch_sizes",
        type=Counts(),
        metavar="LIST",
        help="Sizes to choose from, as 1,2,4; between profiled ones costs are interpolated. [default: those profiled]",
    ),
    click.option(
        "--team",
        "teams",
        type=Counts(),
        metavar="LIST",
        help="Ranks of a team to choose from, as 1,2,4,8. [default: all of the family that the nodes can form]",
    ),
]


def family_options(command: _Command) -> _Command:
    """--samples, --micro-batch-size and --team."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return command


class Asked(NamedTuple):
    """What a command is asked to plan: a family, a cluster of devices, and what may be chosen."""

    family: ModelFamily
    cluster: Cluster
    workload: Workload
    choice: Choice

    def problems(self) -> list[Problem]:
        """Every point as a problem. Raises InputError."""
        from ..search import points

        found = points(self.family.on(self.cluster), self.cluster, self.choice)
        for note in speed_notes(self.cluster, found[0].model):
            say(note, err=True)
        for one in found:
            check_devices(one.model, one.cluster)
        return [
            Problem(one.model, one.cluster, replace(self.workload, micro_batches=one.micro_batches)) for one in found
        ]

    def problem(self) -> Problem:
        """The one problem; raises InputError where there are several points."""
        found = self.problems()
        if len(found) > 1:
            raise InputError(f"the family has {len(found)} points: give one --team and one --micro-batch-size")
        return found[0]


def load_asked(
    model: str, cluster_file: str, profile: Profiler | None, options: dict[str, Any], work: dict[str, Any]
) -> Asked:
    """Reads and validates everything, the cheap first; `work`: the options that make a Workload. Raises InputError."""
    given = [name for name in ("micro_batches", "samples") if options[name] is not None]
    if len(given) != 1:
        raise InputError("give one of --micro-batches and --samples")
    cluster, workload = Cluster.load(cluster_file), Workload(**work)
    family = load_family(model, profile)
    sizes = options["micro_batch_sizes"]
    samples = options["samples"]
    if samples is None:
        known = sizes or tuple(sorted({member.micro_batch_size for member in family.members}))
        if len(known) > 1:
            raise InputError(
                f"{options['micro_batches']} micro-batches of which size? give --samples, or one --micro-batch-size"
            )
        samples = options["micro_batches"] * known[0]
    from ..search import Choice

    return Asked(family, cluster, workload, Choice(samples, options["teams"], sizes))


def throughput(plan: Plan, forecast: Forecast) -> dict[str, Any]:
    """Samples of a step and of a second, for machines, with the point of the plan."""
    from ..view import samples_per_s

    size = plan.problem.model.micro_batch_size
    return {
        "team": plan.problem.cluster.team,
        "micro_batch_size": size,
        "samples": size * plan.problem.workload.micro_batches,
        "samples_per_s": samples_per_s(plan, forecast),
    }


def point_rows(result: Result) -> dict[str, Any]:
    """What came of every point, for machines; nothing where there was one."""
    if len(result.points) < 2:
        return {}
    rows = []
    for found in result.points:
        ways, size = found.point
        rows.append({"ways": dict(ways), "team": found.point.team, "micro_batch_size": size} | asdict(found))
        del rows[-1]["point"]
    return {"points": rows}


def print_points(result: Result) -> None:
    """What came of every point, for people; nothing where there was one."""
    if len(result.points) > 1:
        say("\n".join(["points:", *(f"  {found}" for found in result.points)]))
