"""`contraflow profile`. Torch is imported when it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ...planner.basics import InputError, listed, parse_bandwidth, parse_seconds, printable, write_text
from ...planner.cli import OutputFile, print_json, say
from ...planner.problem import Link, ModelFamily, ModelGraph, compared, speeds_to_dict
from ..basics import ENGINES, Form, option
from .lines import fail, notices_as_lines
from .options import gathered, options_of

if TYPE_CHECKING:
    from ...models import Dataset, Granularity, LayeredModel
    from ..basics import Engine

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
GRANULARITIES = ("parts", "block")
WAYS = ("tensor", "sequence", "expert")


@dataclass(frozen=True)
class Asked:
    """What `contraflow profile` is asked; None of `load`: `default_load`."""

    micro_batch_size: str = field(
        default="1", metadata=option("Samples; several with commas between them: a family.", metavar="LIST")
    )
    team: str = field(
        default="1",
        metadata=option("Ranks that divide every layer; several with commas: a family.", metavar="LIST"),
    )
    ways: str = field(
        default="tensor",
        metadata=option(
            "By what a team divides them; sequence: tensor, and positions between its parts; expert: a mixture's "
            "experts, and samples; planned only.",
            choices=WAYS,
        ),
    )
    link: str | None = field(
        default=None,
        metadata=option(
            "On presets: between ranks of a team: bandwidth[,latency], as 450GB/s,3us. Needed with a --team above 1.",
            metavar="RATE",
        ),
    )
    device: str = field(
        default="cpu",
        metadata=option(
            "cpu or cuda: measure here. A preset, as A100-80GB: costs from FLOPs and bytes, nothing is run. Several "
            "presets: times of the first, and the others' mean speeds.",
            metavar="DEVICE",
        ),
    )
    precision: str = field(
        default="fp32",
        metadata=option(
            "16 bit: as a mixed plan runs, under autocast. tf32, on presets only: fp32 with rounded matrix products.",
            choices=PRECISIONS,
        ),
    )
    efficiency: float | None = field(
        default=None,
        metadata=option(
            "Of a preset's peaks that every operator reaches, launches free. [default: what kernels reach by shape]",
            form=Form.NUMBER,
            metavar="SHARE",
        ),
    )
    layers: str = field(
        default="parts",
        metadata=option(
            "parts: attention and MLP of a transformer block are two layers; block: one. A plan of either runs.",
            choices=GRANULARITIES,
        ),
    )
    compile: bool = field(
        default=False,
        metadata=option(
            "Measure layers through torch's compiler, too; stages of layers that are faster so run compiled."
        ),
    )
    engine: str = field(
        default="auto",
        metadata=option("That of execute which will run the stages; bytes differ a little.", choices=ENGINES),
    )
    data: str | None = field(
        default=None, metadata=option("What to feed it. [default: the model's own]", metavar="NAME")
    )
    threads: int = field(default=1, metadata=option("As a process of execute has.", least=1))
    load: int | None = field(
        default=None,
        metadata=option(
            "Processes that will train at a time: as many measure side by side. [default: cpu: what the cores hold, at "
            "most 8; cuda: 1]",
            least=1,
            metavar="N",
        ),
    )

    @property
    def local(self) -> bool:
        """Whether the device is one of this machine, by its name in torch."""
        return self.device == "cpu" or self.device.split(":")[0] == "cuda"

    @property
    def sizes(self) -> list[int]:
        """Micro-batch sizes. Raises InputError."""
        return _counts(self.micro_batch_size, "--micro-batch-size")

    @property
    def teams(self) -> list[int]:
        """Ranks of teams. Raises InputError."""
        return _counts(self.team, "--team")

    @property
    def points(self) -> list[tuple[int, int]]:
        """Teams and micro-batch sizes to be estimated, with a line about those that are left out. Raises InputError.

        Of experts, ranks compute samples of their own: where a team divides some sizes, others are left out.
        """
        found = [(team, size) for team in self.teams for size in self.sizes]
        if self.ways != "expert":
            return found
        whole = [point for point in found if point[1] % point[0] == 0]
        for team in dict.fromkeys(team for team, _ in whole):
            if without := [str(size) for size in self.sizes if size % team]:
                sizes = listed(without)
                say(f"left out: micro-batches of {sizes} on teams of {team}, whose ranks have samples each", err=True)
        return [point for point in found if point in whole or point[0] not in dict(whole)]

    @property
    def team_link(self) -> Link:
        """The link between ranks of a team. Raises InputError."""
        if self.link is None:
            if max(self.teams) > 1:
                raise InputError(f"--team {self.team}: say what is between the ranks of a team, as --link 450GB/s,3us")
            return Link()
        bandwidth, _, latency = self.link.partition(",")
        rate = parse_bandwidth(bandwidth, "--link")
        if rate <= 0:
            raise InputError(f"--link {self.link}: the bandwidth must be above 0")
        return Link(rate, parse_seconds(latency or 0, "--link"))


def _counts(text: str, name: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
        raise InputError(f"{name} must be whole numbers of at least 1 with commas between them, got {text!r}")
    return list(dict.fromkeys(map(int, parts)))


def _family(members: list[dict[str, Any]]) -> dict[str, Any]:
    """One model's document, or that of a family of several."""
    return members[0] if len(members) == 1 else ModelFamily(tuple(map(ModelGraph.from_dict, members))).to_dict()


def _model_names(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Of the registry, for shells that complete them."""
    from ...models import names

    return [name for name in names() if name.startswith(begun)]


@click.command(
    epilog="""\b
Examples:
  contraflow profile gpt-small --micro-batch-size 4 -o model.json
  contraflow profile gpt-small --load 2 --cluster cluster.toml -o model.json
  contraflow profile llama-70b --device H100-80GB --precision bf16 -o model.json
  contraflow profile llama-70b --device H100-80GB --precision bf16 \\
      --team 1,2,4,8 --link 450GB/s,3us --micro-batch-size 1,2,4 -o family.json
"""
)
@click.argument("model", metavar="MODEL", shell_complete=_model_names)
@options_of(Asked)
@click.option(
    "--cluster",
    type=OutputFile(),
    metavar="FILE",
    help="Also measure this computer, as contraflow cluster detect --processes LOAD, and write cluster.toml there.",
)
@click.option("-o", "--output", type=OutputFile(), help="Write model.json there. [default: to stdout]")
@click.option("--json", "as_json", is_flag=True, help="Print the model as one JSON object.")
def profile(model: str, cluster: Path | None, output: Path | None, as_json: bool, **values: Any) -> None:
    """Measure every layer of MODEL on this machine: times, parameters, stashes, outputs, workspace.

    MODEL is a registry name, such as gpt-small, package.module:function returning layers or a module, or
    hf:FOLDER_OR_NAME, a model of transformers. With a device preset nothing is run and nothing allocated: times are
    estimates from the preset's peaks, bytes are exact. A plan of a model in 16 bit wants --precision mixed.
    """
    asked = gathered(Asked, values)
    if cluster is not None and not (asked.device == "cpu" and asked.load != 1):
        given = f"--load {asked.load} on {asked.device}"
        raise InputError(f"--cluster measures at least 2 processes on the cpu, not {given}")
    if cluster is not None and "RANK" in os.environ:
        raise InputError("--cluster starts processes of its own: under torchrun run contraflow cluster detect")
    content = measure(model, asked) if asked.local else estimate(model, asked)
    if output is not None:
        write_text(output, json.dumps(content, indent=1) + "\n")
        say(f"wrote {output}", err=True)
    if cluster is not None:
        _measure_cluster(asked.threads, asked.load, cluster)
    if as_json:
        print_json(content)
    elif output is None:
        click.echo(json.dumps(content, indent=1))


def _measure_cluster(threads: int, load: int | None, target: Path) -> None:
    """Writes what `contraflow cluster detect` does. Raises InputError where there are fewer than two processes."""
    from ..measure import default_load, detect_cluster
    from ..run import run_plan

    found = detect_cluster("cpu", load or default_load("cpu", threads), threads, train=run_plan)
    assert found is not None  # it is under torchrun alone
    write_text(target, found.toml())
    say(f"wrote {target}", err=True)


def measure(model: str, asked: Asked) -> dict[str, Any]:
    """The content of model.json for a model's name, measured here with progress on stderr.

    Raises InputError: unknown model or data, no such device here, or a model that cannot be measured.
    """
    import torch

    from ..measure import PRECISIONS, default_load, profile_model

    if asked.efficiency is not None:
        raise InputError(f"--efficiency is for device presets, not for measuring on {asked.device}")
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {asked.device}: torch sees no CUDA device here")
    if asked.link is not None:
        raise InputError(f"--link is for device presets: on {asked.device} what ranks tell each other is measured")
    if asked.precision == "tf32":
        raise InputError(f"--precision tf32 is for device presets, not for measuring on {asked.device}")

    def work(found: LayeredModel, source: Dataset, tell: Callable[[str], None]) -> dict[str, Any]:
        def of(team: int, size: int) -> dict[str, Any]:
            return profile_model(
                found,
                size,
                asked.device,
                asked.threads,
                tell,
                data=source,
                dtype=PRECISIONS[asked.precision],
                load=asked.load or default_load(asked.device, asked.threads),
                layers=cast("Granularity", asked.layers),
                engine=cast("Engine", asked.engine),
                compiled=asked.compile,
                ways={asked.ways: team} if team > 1 else {},
            )

        family = _family([of(*point) for point in asked.points])
        _tell_of_few_cores(asked)
        return family

    return _profiled(model, asked.data, work)


def _tell_of_few_cores(asked: Asked) -> None:
    from ..place import at_once, cores

    needed = max(asked.teams) * asked.threads
    load = at_once(asked.threads) if asked.load is None else asked.load
    if asked.device == "cpu" and max(asked.teams) == 1 and load > at_once(asked.threads):
        say(
            f"layers were measured with {at_once(asked.threads)} processes at it, not {load}: here are {cores()} "
            f"cores; what more processes do to one another is the key cores of cluster.toml",
            err=True,
        )
    if asked.device == "cpu" and needed > cores():
        team = f"a team of {max(asked.teams)} needs {needed} cores, here are {cores()}"
        say(f"{team}: its ranks have waited for one another longer than they would", err=True)


def estimate(model: str, asked: Asked) -> dict[str, Any]:
    """The content of model.json for a model's name on a device preset, with progress on stderr.

    Raises InputError: unknown model, data or preset, a precision that the preset lacks, an efficiency that is no share.
    """
    from ...planner.problem import PRESETS

    if asked.engine != "auto":
        raise InputError(f"--engine {asked.engine} is for measuring here, not for the preset {asked.device}")
    if asked.compile:
        raise InputError(f"--compile is for measuring here, not for the preset {asked.device}")
    if asked.load is not None:
        raise InputError(f"--load is for measuring here, not for the preset {asked.device}")
    kinds = asked.device.split(",")
    for kind in kinds:
        if kind not in PRESETS:
            known = ", ".join(sorted(PRESETS.keys() - {"cpu"}))
            raise InputError(f"--device {kind}: unknown; measure on cpu or cuda, or take a preset: {known}")
    if len(set(kinds)) < len(kinds):
        raise InputError(f"--device {asked.device}: a preset is named twice")
    from ..measure import analytic_profile

    link = asked.team_link

    def work(found: LayeredModel, source: Dataset, tell: Callable[[str], None]) -> dict[str, Any]:
        def on(kind: str, team: int, size: int) -> dict[str, Any]:
            return analytic_profile(
                found,
                size,
                PRESETS[kind],
                asked.precision,
                asked.efficiency,
                tell,
                source,
                cast("Granularity", asked.layers),
                {asked.ways: team},
                link,
            )

        return _family([with_speeds([on(kind, *point) for kind in kinds]) for point in asked.points])

    return _profiled(model, asked.data, work)


def with_speeds(contents: list[dict[str, Any]]) -> dict[str, Any]:
    """The first device's content of model.json, with the mean speeds of the others if there are any."""
    first, *others = map(ModelGraph.from_dict, contents)
    speeds = [compared(str(other.device), first.layers, other.layers) for other in others]
    return contents[0] | ({"speeds": speeds_to_dict(speeds)} if speeds else {})


def _profiled(
    model: str,
    data: str | None,
    work: Callable[[LayeredModel, Dataset, Callable[[str], None]], dict[str, Any]],
) -> dict[str, Any]:
    """Finds model and data, then does the work with progress on stderr."""
    from rich.console import Console

    from ...models import resolve
    from ...models.once import kept
    from ..basics import ExecutionError
    from ..stage import ProgramMismatch, TraceError
    from ..state import find_data

    console = Console(stderr=True)
    try:
        with kept(), console.status(_status(model)) as status, notices_as_lines():
            found = resolve(model)
            source = find_data(found, data)
            return work(found, source, lambda text: status.update(_status(model, text)))
    except (TraceError, ProgramMismatch) as error:
        raise InputError(str(error)) from None
    except ExecutionError as error:
        fail(error)


def _status(model: str, text: str = "") -> str:
    """What rich shows: names are no markup."""
    from rich.markup import escape

    return escape(printable(f"profiling {model}{': ' * bool(text)}{text}"))
