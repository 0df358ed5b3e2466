"""`contraflow cluster detect`. Torch is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from ...planner.basics import write_text
from ...planner.cli import OutputFile, print_json, say
from ..basics import DEVICES

_EXAMPLES = """\b
Examples:
  contraflow cluster detect -o cluster.toml
  contraflow cluster detect --processes 2 --json
  torchrun --nnodes 2 --nproc-per-node 4 ... -m contraflow cluster detect -o cluster.toml
"""


@click.group(epilog=_EXAMPLES)
def cluster() -> None:
    """Describe machines: cluster.toml."""


@cluster.command(epilog=_EXAMPLES)
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    help="Its GPUs, or processes that talk through gloo. [default: cuda where there is a GPU]",
)
@click.option("--processes", type=click.IntRange(min=2), metavar="N", help="On the cpu. [default: as many as cores]")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of a process.")
@click.option(
    "--no-overheads",
    is_flag=True,
    help="On the cpu: do not train a small model for what ops cost beside their layers, which takes 10 s.",
)
@click.option("-o", "--output", type=OutputFile(), help="Write cluster.toml there. [default: to stdout]")
@click.option("--json", "as_json", is_flag=True, help="Print the cluster as one JSON object.")
def detect(
    device: str | None, processes: int | None, threads: int, no_overheads: bool, output: Path | None, as_json: bool
) -> None:
    """Measure this machine as a cluster: devices, memory, links between them, links to the host, overheads of ops.

    Under torchrun every agent is a node, the processes it has started are its devices, and the network between nodes is
    measured too; the first rank writes. Nodes are taken to be alike.
    """
    import torch

    from ..measure import detect_cluster
    from ..place import cores
    from ..run import run_plan

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found = detect_cluster(
        chosen, processes or max(2, cores() // threads), threads, train=None if no_overheads else run_plan
    )
    if found is None:
        return
    if output is not None:
        write_text(output, found.toml())
        say(f"wrote {output}", err=True)
    if as_json:
        print_json(found.cluster.to_dict())
    elif output is None:
        click.echo(found.toml(), nl=False)
