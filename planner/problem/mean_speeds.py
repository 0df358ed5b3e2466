"""Clusters of several kinds of devices for a model that has times of one: the others' mean speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .cluster import Cluster
from .layer import Layer
from .model_graph import ModelGraph
from .presets import PRESETS, KindSpeed


def compared(name: str, layers: Sequence[Layer], there: Sequence[Layer]) -> KindSpeed:
    """Of a kind on which the same layers take the times `there`."""
    pairs = [(a.forward_s + a.backward_s, b.forward_s + b.backward_s) for a, b in zip(layers, there, strict=True)]
    ratios = [here / far for here, far in pairs if here > 0 and far > 0] or [1.0]
    whole, other = (sum(times) for times in zip(*pairs, strict=True))
    return KindSpeed(name, whole / other if whole > 0 and other > 0 else 1.0, min(ratios), max(ratios))


def at_speeds(cluster: Cluster, model: ModelGraph) -> Cluster:
    """The cluster in which presets that the model has speeds of have them; other devices are as they were."""
    known = {kind.name: kind.mean for kind in model.speeds}
    groups = tuple(
        replace(group, device=replace(group.device, speed=group.device.speed * known[group.device.name]))
        if group.device.name in known and PRESETS.get(group.device.name) == group.device
        else group
        for group in cluster.nodes
    )
    return replace(cluster, nodes=groups)


def speed_notes(cluster: Cluster, model: ModelGraph) -> list[str]:
    """A line for every preset of the cluster whose speed is a mean over layers."""
    used: Mapping[str, None] = dict.fromkeys(
        group.device.name for group in cluster.nodes if PRESETS.get(group.device.name) == group.device
    )
    return [
        f"{kind.name}: planned at {kind.mean:.3g} times the speed of {model.device}, the mean over all layers; single "
        f"layers are {kind.least:.3g} to {kind.most:.3g} times as fast"
        for kind in model.speeds
        if kind.name in used
    ]
