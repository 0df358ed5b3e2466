"""What every stage of a plan costs: seconds, bytes, and the tensors that it sends to others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..basics import PerObject, PlanError
from .layer import Layer
from .model_graph import ModelGraph
from .overhead import NO_OVERHEAD, Overhead
from .ties import Shared, StageTie
from .workspaces import Ends, stage_workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray


class StageEdge(NamedTuple):
    """What stage `producer` sends to stage `consumer`: bytes a micro-batch; gradients are taken to be as large."""

    producer: int
    consumer: int
    bytes: int


class OpWorkspaces(NamedTuple):
    """Bytes of every stage beyond stash, received and sent tensors: of F that leaves a whole stash, R that makes one,
    B, I and W. A forward that leaves less and an R that makes a part take `StageCosts.workspace_bytes`."""

    forward: NDArray[np.int64]
    remake: NDArray[np.int64]
    backward: NDArray[np.int64]
    inputs: NDArray[np.int64]
    weights: NDArray[np.int64]


@dataclass(frozen=True)
class StageCosts:
    """Costs of every stage for one micro-batch: arrays of length `stages`; seconds at speed 1, bytes.

    Times, parameters and stashes of a stage's layers add, but what two of them keep counts once; workspace is their
    maximum, or less: `workspaces`. Times contain what their op costs beside its layers, by `overhead`. `input_bytes` is
    the data that a stage takes from outside the model, `kept_input_bytes` what its layers declare as input beyond that
    and beyond the tensors that edges deliver: recompute keeps it. `tied_bytes` of `parameter_bytes` are shared with
    other stages, as `ties` say; `parameter_tensors` leaves those out. `trained_bytes` of the parameters are trained;
    what other stages train as well is not in `own_trained_bytes`. `inner_bytes`: the most between its layers at once,
    which a forward that leaves no stash holds beside all else. `selective_bytes` of the stash are dropped by selective
    recomputation and made again in `selective_s`, an R's overhead included; `dropped_bytes`: the most of any one layer.
    """

    forward_s: NDArray[np.float64]
    backward_input_s: NDArray[np.float64]
    backward_weight_s: NDArray[np.float64]
    separable: tuple[bool, ...]
    parameter_bytes: NDArray[np.int64]
    trained_bytes: NDArray[np.int64]
    own_trained_bytes: NDArray[np.int64]
    tied_bytes: NDArray[np.int64]
    buffer_bytes: NDArray[np.int64]
    parameter_tensors: NDArray[np.int64]
    stash_bytes: NDArray[np.int64]
    weight_stash_bytes: NDArray[np.int64]
    workspace_bytes: NDArray[np.int64]
    workspaces: OpWorkspaces
    inner_bytes: NDArray[np.int64]
    input_bytes: NDArray[np.int64]
    kept_input_bytes: NDArray[np.int64]
    edges: tuple[StageEdge, ...]
    ties: tuple[StageTie, ...]
    selective_bytes: NDArray[np.int64]
    selective_s: NDArray[np.float64]
    dropped_bytes: NDArray[np.int64]
    overhead: Overhead = NO_OVERHEAD

    @property
    def own_bytes(self) -> NDArray[np.int64]:
        """Bytes of parameters that no other stage shares."""
        return self.parameter_bytes - self.tied_bytes

    @property
    def backward_s(self) -> NDArray[np.float64]:
        """Seconds of the whole backward: one op instead of two."""
        return self.backward_input_s + self.backward_weight_s - self.overhead.op_s

    @property
    def least_weight_s(self) -> NDArray[np.float64]:
        """Seconds that W adds to I at the least: as one op with it, B, which is no longer than both alone."""
        return self.backward_weight_s - self.overhead.op_s

    @cached_property
    def around_s(self) -> NDArray[np.float64]:
        """Of these seconds, what F, B and I of every stage cost beside their layers; a W has `overhead.op_s` alone."""
        return _around(self.overhead, self.edges, len(self.forward_s))

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """What decides which ops a plan needs: edges, splittable stages, stages with new parameters, ties."""
        edges = tuple((edge.producer, edge.consumer) for edge in self.edges)
        return edges, self.separable, tuple((self.trained_bytes > 0).tolist()), self.ties

    @cached_property
    def incoming_bytes(self) -> NDArray[np.int64]:
        """Bytes that recompute keeps of every stage: the tensors it takes."""
        total = self.input_bytes + self.kept_input_bytes
        for _, consumer, size in self.edges:
            total[consumer] += size
        return total

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """For every stage the stages it takes tensors from."""
        return tuple(tuple(e.producer for e in self.edges if e.consumer == s) for s in range(len(self.forward_s)))

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For every stage the stages it sends tensors to."""
        return tuple(tuple(e.consumer for e in self.edges if e.producer == s) for s in range(len(self.forward_s)))

    @cached_property
    def edge_number(self) -> NDArray[np.int64]:
        """Position in `edges` for every [producer, consumer]; -1 where there is no edge."""
        import numpy as np

        table = np.full((len(self.forward_s), len(self.forward_s)), -1, dtype=np.int64)
        for number, edge in enumerate(self.edges):
            table[edge.producer, edge.consumer] = number
        return table

    @classmethod
    def of(cls, model: ModelGraph, stages: tuple[tuple[str, ...], ...], overhead: Overhead = NO_OVERHEAD) -> StageCosts:
        """Costs of these stages; raises PlanError when they do not cut the layer graph into a chain of ideals.

        Remembered while the model lives.
        """
        return _known_costs.get(model, (stages, overhead), lambda: _stage_costs(model, stages, overhead))


_known_costs: PerObject[StageCosts] = PerObject()


def _around(overhead: Overhead, edges: tuple[StageEdge, ...], count: int) -> NDArray[np.float64]:
    import numpy as np

    ends = [stage for edge in edges for stage in edge[:2]]
    messages = np.bincount(np.array(ends, dtype=np.int64), minlength=count)
    return np.asarray(overhead.op_s + overhead.message_s * messages, dtype=np.float64)


def _stage_costs(model: ModelGraph, stages: tuple[tuple[str, ...], ...], overhead: Overhead) -> StageCosts:
    import numpy as np

    home = _stage_of_layer(model, stages)
    members = [[model.layers[model.index[name]] for name in stage] for stage in stages]
    shared = Shared.of(model, home, len(stages))
    frozen = {x.name for x in model.layers if x.parameter_bytes and not x.trained_bytes}
    tensors = [sum(len(x.parameter_shapes or ()) for x in group if x.name not in frozen) for group in members]

    def total(key: str, kind: type = np.int64) -> NDArray[np.float64]:
        return np.array([sum(getattr(x, key) for x in group) for group in members], dtype=kind)

    twice = np.zeros((2, len(stages)), dtype=np.int64)
    for pair in model.kept_twice:
        if home[pair.first] == home[pair.second]:
            twice[:, home[pair.first]] += (pair.bytes, pair.weight_bytes)
    trained = total("trained_bytes").astype(np.int64) - shared.double_trained
    edges, data = _stage_edges(model, home), _source_input_bytes(model, home, len(stages))
    around = _around(overhead, edges, len(stages))
    return StageCosts(
        total("forward_s", np.float64) + around,
        total("backward_input_s", np.float64) + around,
        total("backward_weight_s", np.float64) + overhead.op_s,
        tuple(all(x.separable for x in group) for group in members),
        total("parameter_bytes").astype(np.int64) - shared.double_bytes,
        trained,
        np.maximum(trained - shared.tied_trained, 0),
        shared.tied_bytes,
        total("buffer_bytes").astype(np.int64),
        np.maximum(np.array(tensors, dtype=np.int64) - shared.extra_tensors, 0),
        total("stash_bytes").astype(np.int64) - twice[0],
        total("weight_stash_bytes").astype(np.int64) - twice[1],
        np.array([max(x.workspace_bytes for x in group) for group in members], dtype=np.int64),
        _workspaces(model, members, edges, data),
        _inner_bytes(model, home, members),
        data,
        _kept_input_bytes(model, home, len(stages)),
        edges,
        shared.ties,
        total("selective_bytes").astype(np.int64),
        total("selective_s", np.float64) + around,
        np.array([max(x.selective_bytes for x in group) for group in members], dtype=np.int64),
        overhead,
    )


def _stage_of_layer(model: ModelGraph, stages: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    home: dict[str, int] = {}
    for position, stage in enumerate(stages):
        if not stage:
            raise PlanError(f"stage {position} has no layers")
        for name in stage:
            if name not in model.index:
                raise PlanError(f"stage {position} names layer {name!r}, which the model does not have")
            if name in home:
                raise PlanError(f"layer {name!r} is in stages {home[name]} and {position}")
            home[name] = position
    for layer in model.layers:
        if layer.name not in home:
            raise PlanError(f"layer {layer.name!r} is in no stage")
    for source, target in model.edges:
        if home[source] > home[target]:
            raise PlanError(f"edge {source!r} -> {target!r} goes back from stage {home[source]} to {home[target]}")
    return home


def _stage_edges(model: ModelGraph, home: dict[str, int]) -> tuple[StageEdge, ...]:
    sent: dict[tuple[str, int], list[str]] = {}
    for source, target in model.edges:
        if home[source] != home[target]:
            sent.setdefault((source, home[target]), []).append(target)
    size: dict[tuple[int, int], int] = {}
    for (source, consumer), targets in sent.items():
        key = (home[source], consumer)
        size[key] = size.get(key, 0) + model.carried_bytes(source, targets)
    return tuple(StageEdge(*key, size[key]) for key in sorted(size))


def _inner_bytes(model: ModelGraph, home: dict[str, int], members: list[list[Layer]]) -> NDArray[np.int64]:
    """After some layer of a stage, what layers of it gave that others of it still take."""
    import numpy as np

    most = np.zeros(len(members), dtype=np.int64)
    inside: list[dict[str, list[str]]] = [{} for _ in members]
    for source, target in model.edges:
        if home[source] == home[target]:
            inside[home[source]].setdefault(source, []).append(target)
    for stage, group in enumerate(members):
        names = sorted((layer.name for layer in group), key=model.rank.__getitem__)
        place = {name: position for position, name in enumerate(names)}
        change = np.zeros(len(group) + 1, dtype=np.int64)
        for source, targets in inside[stage].items():
            size = model.carried_bytes(source, targets)
            change[place[source]] += size
            change[max(place[target] for target in targets)] -= size
        most[stage] = max(np.cumsum(change).max(), 0)
    return most


def _workspaces(
    model: ModelGraph, members: list[list[Layer]], edges: tuple[StageEdge, ...], data: NDArray[np.int64]
) -> OpWorkspaces:
    import numpy as np

    if any(layer.workspaces is None for layer in model.layers):  # of many cuts in a search, so at once
        most = np.array([max(x.workspace_bytes for x in group) for group in members], dtype=np.int64)
        return OpWorkspaces(most, most, most, most, most)
    found = []
    for stage, group in enumerate(members):
        order = sorted(group, key=lambda layer: model.rank[layer.name])
        ends = ends_of(model, order, edges, stage, int(data[stage]))
        found.append(stage_workspaces(order, model.kept_twice, ends)[:-1])
    return OpWorkspaces(*np.array(found, dtype=np.int64).T)


def ends_of(
    model: ModelGraph, layers: Sequence[Layer], edges: Iterable[tuple[int, int, int]], stage: int, data: int
) -> Ends:
    """Of a stage of these layers, of the edges between all stages and the bytes of the data that it takes."""
    taken = [size for _, consumer, size in edges if consumer == stage]
    given = sum(size for producer, _, size in edges if producer == stage)
    names = {layer.name for layer in layers}
    tied = sum(group.bytes for group in model.shared if len(names.intersection(group.layers)) > 1)
    return Ends(taken, given, data, _outside(model, layers), tied)


def _outside(model: ModelGraph, layers: Sequence[Layer]) -> list[int]:
    inside = {layer.name for layer in layers}
    found = []
    for layer in layers:
        sizes = {source: model.carried_bytes(source, [layer.name]) for source in model.sources[layer.name]}
        own = sum(size for source, size in sizes.items() if source in inside)
        found.append(max(sum(sizes.values()), layer.input_bytes or 0) - own)
    return found


def _source_input_bytes(model: ModelGraph, home: dict[str, int], count: int) -> NDArray[np.int64]:
    """Bytes of the data that each stage takes from outside the model (layers without predecessors)."""
    import numpy as np

    fed = {target for _, target in model.edges}
    total = np.zeros(count, dtype=np.int64)
    for layer in model.layers:
        if layer.name not in fed:
            total[home[layer.name]] += layer.input_bytes or 0
    return total


def _kept_input_bytes(model: ModelGraph, home: dict[str, int], count: int) -> NDArray[np.int64]:
    """Declared input beyond the predecessors' outputs, of the layers that take tensors from an earlier stage."""
    import numpy as np

    sources: dict[str, list[str]] = {}
    for source, target in model.edges:
        sources.setdefault(target, []).append(source)
    total = np.zeros(count, dtype=np.int64)
    for name, before in sources.items():
        declared = model.layers[model.index[name]].input_bytes
        if declared is not None and any(home[source] != home[name] for source in before):
            delivered = sum(model.carried_bytes(source, [name]) for source in before)
            total[home[name]] += max(0, declared - delivered)
    return total
