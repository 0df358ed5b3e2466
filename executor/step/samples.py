"""Do all ranks that read data read the same? Compared on the first micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...models import held_out
from ...models.wiring import named
from ..basics import RunError
from ..state import Blueprint, StageReplica, digest
from ..wires import Transport
from .evaluation import evaluation_seed

_COMPARED = 2
"""So many micro-batches of the first step."""


def compare_samples(
    transport: Transport, blueprint: Blueprint, replicas: Mapping[int, StageReplica], first: int
) -> None:
    """The first step's samples are the same on all ranks that read them, and whenever they are asked for; collective.

    A rank that holds the last stage alone reads targets alone, where the data set can do that.

    Raises RunError, on all ranks, naming the data set, the micro-batch and the ranks.
    """
    known: dict[tuple[str, str, int, int], tuple[int, str]] = {}
    mine = list(_digests(blueprint, replicas, first))
    for rank, theirs in enumerate(transport.all_gather_object(mine)):
        for data, part, step, micro_batch, found in theirs:
            other, expected = known.setdefault((data, part, step, micro_batch), (rank, found))
            if found != expected:
                where = f"step {step}, micro-batch {micro_batch}"
                who = (
                    f"rank {rank} other {part} when it asks again"
                    if other == rank
                    else f"ranks {other} and {rank} different {part}"
                )
                raise RunError(
                    f"data set {data!r} gives {who} for {where}: the same arguments must give the same samples"
                )


def _digests(
    blueprint: Blueprint, replicas: Mapping[int, StageReplica], first: int
) -> Iterator[tuple[str, str, int, int, str]]:
    """(data set, which part, step, micro-batch, hash); the first micro-batch once more behind the others."""
    sources = [(blueprint, first)]
    if blueprint.training.evaluate_every:
        data, seed = held_out(blueprint.data), evaluation_seed(blueprint.seed)
        sources.append((replace(blueprint, data=data, seed=seed), 0))
    last = len(blueprint.plan.stages) - 1
    for source, step in sources:
        name = source.data.name + ("" if source is blueprint else ", held out")
        count = blueprint.mini_batches.micro_batches
        for m in [*range(min(_COMPARED, count)), 0]:
            samples = blueprint.mini_batches.of(step).size(m) if source is blueprint else blueprint.full
            if any(blueprint.passing.reads(stage) for stage in replicas):
                inputs, targets = source.batch(step, m, samples)
                for key, tensor in named(inputs).items():
                    yield name, f"inputs {key}".strip(), step, m, digest(tensor)
                yield name, "targets", step, m, digest(targets)
            if last in replicas:
                yield name, "targets", step, m, digest(source.targets(step, m, samples))
