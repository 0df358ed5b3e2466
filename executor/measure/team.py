"""The ranks of a team that measure layers together: what they tell each other inside a layer takes its real time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...models import LayeredModel
from ...models.collectives import member_of
from ...models.lanes import Lane
from ...models.protocol import build_shapes
from ...planner.basics import InputError
from ..basics import RunError
from ..wires import listen_locally
from .companions import PATIENCE_S

Seconds = tuple[float, ...]
_SAMPLES = 3
_LIMIT = timedelta(seconds=PATIENCE_S)


@dataclass(frozen=True)
class Team:
    """The team that a process is in; without a lane it is alone. All its methods are collective among the team.

    Attributes:
        wires: its process group of gloo.
    """

    lane: Lane | None = None
    wires: Any = None

    @property
    def samples(self) -> int:
        """How many counts of a layer's bytes it takes until one is right, the least.

        gloo lets go of what it has moved when its thread gets to it, under load an operator later.
        """
        return 1 if self.lane is None else _SAMPLES

    def meet(self) -> None:
        """Returns when all ranks are here."""
        if self.lane is not None:
            dist.barrier(self.wires)

    def slowest(self, seconds: Seconds) -> Seconds:
        """Of every entry the largest of all ranks."""
        if self.lane is None:
            return seconds
        found = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.wires)
        return tuple(found.tolist())

    def said(self, text: str | None) -> list[str | None]:
        """What every rank says, by lane."""
        if self.lane is None:
            return [text]
        texts: list[str | None] = [None] * self.lane.size
        dist.all_gather_object(texts, text, group=self.wires)
        return texts


def lane_of_ways(model: LayeredModel, ways: Mapping[str, int]) -> Lane | None:
    """The first lane of such a team; None: no team. Raises InputError: it is not executed, or cannot divide a layer."""
    try:
        lane = Lane.of(ways)
        if lane is not None:
            for spec in model.layers:
                build_shapes(spec, lane)
    except ValueError as error:
        raise InputError(str(error)) from None
    return lane


def require_room(size: int, device: str) -> None:
    """Raises InputError where this machine has fewer CUDA devices than the team ranks, or a device is named."""
    if device == "cpu":
        return
    if device != "cuda":
        raise InputError(f"a team is measured on the cpu or on cuda, a device a rank, not on {device}")
    if torch.cuda.device_count() < size:
        raise InputError(f"a team of {size} is measured on {size} CUDA devices; torch sees {torch.cuda.device_count()}")


@contextmanager
def seated(ways: Mapping[str, int], processes: int, meeting: str, device: str, first: bool) -> Iterator[Team]:
    """This process as one of so many that meet in a file and form teams: the first, or in the order in which they come.

    On "cuda" the layers' collectives are NCCL's. Raises RunError where the process has a process group already.
    """
    if dist.is_initialized():
        raise RunError("a team is measured by processes of its own, and this one is in a process group already")
    listen_locally()
    store = dist.FileStore(meeting, processes)  # type: ignore[attr-defined]
    rank = 0 if first else store.add("seats", 1)
    lane = Lane.of(ways, rank % max(ways.values()))
    assert lane is not None
    if device == "cuda":
        torch.cuda.set_device(lane.number)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes, timeout=_LIMIT)
    try:
        wires = _group(processes, lane.size, "gloo")
        with member_of(_group(processes, lane.size, "nccl") if device == "cuda" else wires):
            yield Team(lane, wires)
    finally:
        dist.destroy_process_group()


def _group(processes: int, size: int, backend: str) -> Any:
    """The own team's; every rank makes every team's."""
    teams = [list(range(first, first + size)) for first in range(0, processes, size)]
    groups = [dist.new_group(ranks, timeout=_LIMIT, backend=backend) for ranks in teams]
    return groups[dist.get_rank() // size]
