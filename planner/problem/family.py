"""ModelFamily: the costs of one model's layers at several points: teams of ranks, micro-batch sizes, device kinds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..basics import MOST_DEVICES, ModelError, listed, reading, refusing, shown, write_text
from .cluster import Cluster
from .kept_twice import between_sizes
from .layer import WORKSPACES, Layer
from .model_graph import ModelGraph

Ways = tuple[tuple[str, int], ...]
FORMAT = "contraflow/family"
VERSION = 1
SPLITS_SAMPLES = "expert"
"""The way whose ranks compute samples of their own."""
_MOST_MEMBERS = MOST_DEVICES
_TIMES = ("forward_s", "backward_input_s", "backward_weight_s", "selective_s")
_BYTES = (
    "parameter_bytes",
    "stash_bytes",
    "weight_stash_bytes",
    "output_bytes",
    "input_bytes",
    "workspace_bytes",
    "buffer_bytes",
    "trainable_bytes",
    *WORKSPACES,
)
_DROPPED = "selective_bytes"


class Point(NamedTuple):
    """Where the layers' costs are of: by what a team divides them, and into how many parts; and samples."""

    ways: Ways
    micro_batch_size: int

    @property
    def team(self) -> int:
        """Ranks of the team."""
        return max((count for _, count in self.ways), default=1)

    def __str__(self) -> str:
        team = " and ".join(f"{name} {count}" for name, count in self.ways) or "no team"
        return f"{team}, micro-batches of {self.micro_batch_size}"


@dataclass(frozen=True)
class ModelFamily:
    """One model at several points, each with the costs of all its layers. Immutable, validated, picklable.

    Raises ModelError: no members, two of one point, or members whose layers, edges or shared parameters differ.
    """

    members: tuple[ModelGraph, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise ModelError("a family has no members")
        seen: set[tuple[Point, str | None]] = set()
        for number, member in enumerate(self.members):
            if (point := (_point(member), member.device)) in seen:
                raise ModelError(f"members[{number}]: the family has {point[0]} on {shown(member.device)} already")
            seen.add(point)
            self._require_alike(number, member)

    def _require_alike(self, number: int, member: ModelGraph) -> None:
        first, both = self.members[0], f"members[0] ({_point(self.members[0])}) and [{number}] ({_point(member)})"
        for a, b in zip(first.layers, member.layers, strict=False):
            if a.name != b.name:
                raise ModelError(f"{both} have different layers: {shown(a.name)} and {shown(b.name)}")
        count = len(first.layers), len(member.layers)
        if count[0] != count[1]:
            more = max(first, member, key=lambda one: len(one.layers)).layers[min(count)]
            raise ModelError(f"{both} have {count[0]} and {count[1]} layers: {shown(more.name)} is in one only")
        for source, target in sorted(set(first.edges) ^ set(member.edges)):
            raise ModelError(f"{both}: the edge {shown(source)} -> {shown(target)} is in one only")
        kinds = [[[(o.name, o.gradient) for o in one.carried[edge]] for edge in first.edges] for one in (first, member)]
        for (source, target), mine, theirs in zip(first.edges, *kinds, strict=True):
            if mine != theirs:
                raise ModelError(f"{both}: the edge {shown(source)} -> {shown(target)} carries other tensors in each")
        tied = [{frozenset(group.layers) for group in one.shared} for one in (first, member)]
        for group in tied[0] ^ tied[1]:
            raise ModelError(f"{both}: the parameters shared by {listed(sorted(group))} are in one only")

    @property
    def name(self) -> str:
        """The model's name."""
        return self.members[0].name

    @cached_property
    def ways(self) -> tuple[Ways, ...]:
        """How teams divide the layers, every way once, the smallest teams first."""
        return tuple(sorted({_ways(member) for member in self.members}, key=lambda ways: (Point(ways, 1).team, ways)))

    def sizes(self, ways: Ways) -> tuple[int, ...]:
        """The micro-batch sizes that such a team was profiled with."""
        return tuple(sorted({member.micro_batch_size for member in self.members if _ways(member) == ways}))

    def on(self, cluster: Cluster) -> ModelFamily:
        """The members for a cluster's kind of devices; all of them where they are of one kind."""
        kinds = {member.device for member in self.members}
        names = {device.kind.name for device in cluster.devices}
        mine = tuple(member for member in self.members if member.device in names)
        if len(kinds) == 1:
            return self
        if len(names) > 1 or not mine:
            raise ModelError(
                f"the family has costs for {listed(sorted(str(kind) for kind in kinds))}, the cluster has "
                f"{listed(sorted(names))}: one kind is planned for"
            )
        return ModelFamily(mine)

    def point(self, point: Point) -> ModelGraph:
        """The model at a point: a member, or between two micro-batch sizes what lies on the line through both.

        Times and bytes of every layer are interpolated, bytes rounded up. Raises ModelError for what was not profiled.
        """
        mine = [member for member in self.members if _ways(member) == point.ways]
        if not mine:
            known = listed([str(Point(ways, 1)).partition(",")[0] for ways in self.ways])
            asked = str(point).partition(",")[0]
            raise ModelError(f"model {shown(self.name)} was not profiled for {asked}; known: {known}")
        if len({member.device for member in mine}) > 1:
            raise ModelError(f"model {shown(self.name)} has {point} for several kinds of devices")
        mine.sort(key=lambda member: member.micro_batch_size)
        sizes = [member.micro_batch_size for member in mine]
        for member in mine:
            if member.micro_batch_size == point.micro_batch_size:
                return member
        above = next((k for k, size in enumerate(sizes) if size > point.micro_batch_size), 0)
        if not above:
            raise ModelError(
                f"model {shown(self.name)} was profiled with micro-batches of {listed([*map(str, sizes)])}, and "
                f"{point.micro_batch_size} is not between them"
            )
        for name, count in point.ways:
            if name == SPLITS_SAMPLES and point.micro_batch_size % count:
                raise ModelError(
                    f"model {shown(self.name)}: micro-batches of {point.micro_batch_size} do not divide among the "
                    f"{count} ranks of a team that divides experts and samples"
                )
        return _between(mine[above - 1], mine[above], point.micro_batch_size)

    def rescale(self, micro_batch_size: int, ways: Ways = ()) -> ModelGraph:
        """The model in micro-batches of so many samples, measured or between two measured sizes: `point` in short."""
        return self.point(Point(tuple(sorted(ways)), micro_batch_size))

    def measured(self, point: Point) -> bool:
        """Whether there is a member for a point; others are interpolated."""
        return point in {_point(member) for member in self.members}

    # ---------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """The content of a family's file."""
        return {"format": FORMAT, "version": VERSION, "members": [member.to_dict() for member in self.members]}

    @classmethod
    def from_dict(cls, content: object) -> ModelFamily:
        """The family of a parsed file; a model.json is one of one member. Raises ModelError naming key or layer."""
        with refusing(ModelError):
            top = reading.mapping(content, "a family", what="a JSON object")
            if top.get("format") != FORMAT:
                return cls((ModelGraph.from_dict(content),))
            reading.mapping(top, "family", {"format", "version", "members"})
            reading.versioned(top, FORMAT, VERSION, "family")
            members = reading.items(top, "members", "family", _MOST_MEMBERS)
        return cls(tuple(_member(entry, number) for number, entry in enumerate(members)))

    def save(self, path: str | Path) -> None:
        """Writes the family."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> ModelFamily:
        """Reads a family or a model.json; raises ModelError (one line) when it is neither."""
        with refusing(ModelError):
            return cls.from_dict(reading.read_json(path))


def _member(entry: object, number: int) -> ModelGraph:
    with refusing(ModelError, f"members[{number}]: "):
        return ModelGraph.from_dict(entry)


def _ways(member: ModelGraph) -> Ways:
    return tuple(sorted((name, count) for name, count in member.ways if count > 1))


def _point(member: ModelGraph) -> Point:
    return Point(_ways(member), member.micro_batch_size)


def _between(below: ModelGraph, above: ModelGraph, size: int) -> ModelGraph:
    """The model on the line through two others, at a micro-batch size between theirs."""
    weights = above.micro_batch_size - size, size - below.micro_batch_size
    layers = [_layer_between((a, b), weights) for a, b in zip(below.layers, above.layers, strict=True)]
    kept_twice = between_sizes(below.kept_twice, above.kept_twice, weights)
    return replace(below, layers=tuple(layers), micro_batch_size=size, kept_twice=kept_twice)


def _layer_between(ends: tuple[Layer, Layer], weights: tuple[int, int]) -> Layer:
    """The weighted mean of two layers."""
    if not all(layer.separable for layer in ends):
        ends = (_joined(ends[0]), _joined(ends[1]))
    values: dict[str, Any] = {}
    for key in (*_TIMES, *_BYTES, _DROPPED):
        of = [getattr(layer, key) for layer in ends]
        if None in of:
            values[key] = None
        else:
            total = of[0] * weights[0] + of[1] * weights[1]
            values[key] = total / sum(weights) if key in _TIMES else -(-total // sum(weights))
            if key == _DROPPED:  # what is kept is rounded up
                values[key] = total // sum(weights)
    if ends[0].outputs:
        pairs = zip(ends[0].outputs, ends[1].outputs, strict=True)
        sizes = [-(-(a.bytes * weights[0] + b.bytes * weights[1]) // sum(weights)) for a, b in pairs]
        values["outputs"] = tuple(o._replace(bytes=size) for o, size in zip(ends[0].outputs, sizes, strict=True))
        values["output_bytes"] = sum(sizes)
    return replace(ends[0], **values)


def _joined(layer: Layer) -> Layer:
    """A layer's backward as one."""
    return replace(layer, backward_input_s=layer.backward_s, backward_weight_s=0.0, separable=False)


def choose_ways(family: ModelFamily, cluster: Cluster, teams: Iterable[int] | None) -> tuple[Ways, ...]:
    """The family's ways for teams of these sizes; without any, those whose teams the cluster's nodes can form.

    Raises ModelError for a size that was not profiled, ClusterError for one that does not divide a node.
    """
    if teams is None:
        nodes = [group.devices for group in cluster.nodes]
        return tuple(w for w in family.ways if all(count % Point(w, 1).team == 0 for count in nodes))
    found: list[Ways] = []
    for team in dict.fromkeys(teams):
        cluster.teams(team)
        mine = [ways for ways in family.ways if Point(ways, 1).team == team]
        if not mine:
            known = sorted({Point(ways, 1).team for ways in family.ways})
            raise ModelError(
                f"model {shown(family.name)} was not profiled for teams of {team}; known: {listed([*map(str, known)])}"
            )
        found += mine
    return tuple(found)
