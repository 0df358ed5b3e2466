"""`contraflow profile`. Torch is imported when it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...planner.basics import InputError, printable, write_text
from ...planner.cli import OutputFile, print_json, say
from ..basics import Form, option
from .lines import fail, notices_as_lines
from .options import gathered, options_of

if TYPE_CHECKING:
    from ...models import Dataset, LayeredModel

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True)
class Asked:
    """What `contraflow profile` is asked; None of `load`: `default_load`."""

    micro_batch_size: int = field(default=1, metadata=option("Samples.", least=1, metavar="N"))
    device: str = field(
        default="cpu",
        metadata=option(
            "cpu or cuda: measure here. A preset, as A100-80GB: costs from FLOPs and bytes, nothing is run.",
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
            "Of a preset's peak FLOP/s and bandwidth that is reached. [default: 0.5]", form=Form.NUMBER, metavar="SHARE"
        ),
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


@click.command(
    epilog="""\b
Examples:
  contraflow profile gpt-small --micro-batch-size 4 -o model.json
  contraflow profile gpt-small --load 2 --cluster cluster.toml -o model.json
  contraflow profile llama-70b --device H100-80GB --precision bf16 -o model.json
"""
)
@click.argument("model", metavar="MODEL")
@options_of(Asked)
@click.option(
    "--cluster",
    type=OutputFile(),
    metavar="FILE",
    help="Also measure this computer as --load processes that talk through gloo, and write cluster.toml there.",
)
@click.option("-o", "--output", type=OutputFile(), help="Write model.json there. [default: to stdout]")
@click.option("--json", "as_json", is_flag=True, help="Print the model as one JSON object.")
def profile(model: str, cluster: Path | None, output: Path | None, as_json: bool, **values: Any) -> None:
    """Measure every layer of MODEL on this machine: times, parameters, stashes, outputs, workspace.

    MODEL is a registry name, such as gpt-small, or package.module:function returning layers. With a device preset
    nothing is run and nothing allocated: times are estimates from the preset's peaks, bytes are exact. A plan of a
    model in 16 bit wants --precision mixed.
    """
    asked = gathered(Asked, values)
    if cluster is not None and not (asked.device == "cpu" and asked.load != 1):
        given = f"--load {asked.load} on {asked.device}"
        raise InputError(f"--cluster measures at least 2 processes on the cpu, not {given}")
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
    """Writes cluster.toml of this computer's processes. Raises InputError where there are fewer than two."""
    from ..measure import default_load, measure_machine

    processes = load or default_load("cpu", threads)
    write_text(target, measure_machine(processes, threads).toml(processes))
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
    if asked.precision == "tf32":
        raise InputError(f"--precision tf32 is for device presets, not for measuring on {asked.device}")

    def work(found: LayeredModel, source: Dataset, tell: Callable[[str], None]) -> dict[str, Any]:
        return profile_model(
            found,
            asked.micro_batch_size,
            asked.device,
            asked.threads,
            tell,
            data=source,
            dtype=PRECISIONS[asked.precision],
            load=asked.load or default_load(asked.device, asked.threads),
        )

    return _profiled(model, asked.data, work)


def estimate(model: str, asked: Asked) -> dict[str, Any]:
    """The content of model.json for a model's name on a device preset, with progress on stderr.

    Raises InputError: unknown model, data or preset, a precision that the preset lacks, an efficiency that is no share.
    """
    from ...planner.problem import PRESETS

    if asked.load is not None:
        raise InputError(f"--load is for measuring here, not for the preset {asked.device}")
    if asked.device not in PRESETS:
        known = ", ".join(sorted(PRESETS.keys() - {"cpu"}))
        raise InputError(f"--device {asked.device}: unknown; measure on cpu or cuda, or take a preset: {known}")
    from ..measure import EFFICIENCY, analytic_profile

    share = EFFICIENCY if asked.efficiency is None else asked.efficiency

    def work(found: LayeredModel, source: Dataset, tell: Callable[[str], None]) -> dict[str, Any]:
        preset = PRESETS[asked.device]
        return analytic_profile(found, asked.micro_batch_size, preset, asked.precision, share, tell, source)

    return _profiled(model, asked.data, work)


def _profiled(
    model: str,
    data: str | None,
    work: Callable[[LayeredModel, Dataset, Callable[[str], None]], dict[str, Any]],
) -> dict[str, Any]:
    """Finds model and data, then does the work with progress on stderr."""
    from rich.console import Console

    from ...models import resolve
    from ..basics import ExecutionError
    from ..stage import ProgramMismatch, TraceError
    from ..state import find_data

    console = Console(stderr=True)
    try:
        found = resolve(model)
        source = find_data(found, data)
        with console.status(_status(model)) as status, notices_as_lines():
            return work(found, source, lambda text: status.update(_status(model, text)))
    except (TraceError, ProgramMismatch) as error:
        raise InputError(str(error)) from None
    except ExecutionError as error:
        fail(error)


def _status(model: str, text: str = "") -> str:
    """What rich shows: names are no markup."""
    from rich.markup import escape

    return escape(printable(f"profiling {model}{': ' * bool(text)}{text}"))
