"""Tied parameters: which stages share them, and which devices hold a copy.

A device holds one copy of a tied parameter, of its gradient and of its optimizer state, however many of the member
stages it trains. A group of layers inside one stage is that stage's own parameter and appears in no tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .model_graph import ModelGraph, SharedParameters


class StageTie(NamedTuple):
    """Parameters that several stages share.

    number: position in ModelGraph.shared. stages: the member stages, two or more, ascending. bytes: of the parameters.
    tensors: how many they are where shapes are known: one, or 0. trained_bytes: 0 where they are frozen.
    """

    number: int
    stages: tuple[int, ...]
    bytes: int
    tensors: int
    trained_bytes: int

    def copies(self, owners: Mapping[int, Iterable[int]]) -> dict[int, int]:
        """Every device that trains a member stage, ascending, and the lowest of the member stages that it trains.

        That stage's STEP updates the device's copy. `owners`: the devices that train each stage.
        """
        found: dict[int, int] = {}
        for stage in self.stages:
            for device in owners[stage]:
                found.setdefault(int(device), stage)
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Shared:
    """The ties between stages, and what tying changes of the sums over a stage's layers: arrays of length `stages`.

    double_bytes: counted twice because tied layers sit in one stage. tied_bytes: what other stages hold as well.
    extra_tensors: parameter tensors that are not the stage's own, or its own counted again.
    double_trained, tied_trained: of the bytes, those that are trained.
    """

    ties: tuple[StageTie, ...]
    double_bytes: NDArray[np.int64]
    tied_bytes: NDArray[np.int64]
    extra_tensors: NDArray[np.int64]
    double_trained: NDArray[np.int64]
    tied_trained: NDArray[np.int64]

    @classmethod
    def of(cls, model: ModelGraph, home: Mapping[str, int], count: int) -> Shared:
        """What `count` stages share; `home` is the stage of every layer."""
        import numpy as np

        ties = []
        double, tied, extra, double_trained, tied_trained = (np.zeros(count, dtype=np.int64) for _ in range(5))
        for number, group in enumerate(model.shared):
            places = [home[name] for name in group.layers]
            members = tuple(sorted(set(places)))
            known = [home[name] for name in group.layers if model.layers[model.index[name]].parameter_shapes]
            np.add.at(extra, known, 1)
            trained = group.bytes if _is_trained(model, group) else 0
            for stage in members:
                double[stage] += (places.count(stage) - 1) * group.bytes
                double_trained[stage] += (places.count(stage) - 1) * trained
            if len(members) > 1:
                ties.append(StageTie(number, members, group.bytes, min(1, len(known)), trained))
                tied[list(members)] += group.bytes
                tied_trained[list(members)] += trained
            elif known:
                extra[members[0]] -= 1
        return cls(tuple(ties), double, tied, extra, double_trained, tied_trained)


def _is_trained(model: ModelGraph, group: SharedParameters) -> bool:
    """Whether all members train as much as they share: what is shared is trained everywhere or nowhere."""
    return all(model.layers[model.index[name]].trained_bytes >= group.bytes for name in group.layers)


def steps_sent(
    ties: Sequence[StageTie], owners: Mapping[int, Iterable[int]], stage: int, source: int, target: int
) -> set[int]:
    """Stages whose STEPs on device `source` write what it sends to `target` as the new parameters of `stage`.

    Its own; of a tied parameter that the target does not step itself, that of the stage that updates the source's.
    """
    copies = (tie.copies(owners) for tie in ties if stage in tie.stages)
    return {stage} | {held[source] for held in copies if source in held and target not in held}


def returned_bytes(trained_bytes: int, ties: Sequence[StageTie], stage: int, trained: Iterable[int]) -> int:
    """Bytes of a stage's trained parameters (`trained_bytes`) that a device gets which trains the stages `trained`.

    What it holds a copy of, it updates itself.
    """
    there = set(trained)
    held = (tie.trained_bytes for tie in ties if stage in tie.stages and not there.isdisjoint(tie.stages))
    return trained_bytes - sum(held)
