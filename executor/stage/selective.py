"""What of a stash is made again in little time: selective recomputation.

Korthikanti et al. (Reducing activation recomputation in large transformer models, 2022) drop the inside of attention
and make it again before the backward: many bytes, few FLOPs. Here every layer drops whatever follows, by cheap
operators alone, from what it keeps: results of norms and activations, scores and probabilities of attention that is not
fused. No product with weights, no fused attention, nothing random, nothing that changes anything is run again. What
one layer hands to another is kept, so a stage drops what its layers drop, in any cut.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import fx

from .tracing import JointGraph

MOST_TERMS = 256
"""A product of activations is cheap if its sums have no more terms: a head's width, not a sequence's length."""
LEAST_SHARE = 1 / 16
"""A layer that could drop less of what it saves drops nothing: an R of it would take longer than that is worth."""
_aten = torch.ops.aten
_CHEAP = {
    _aten._log_softmax, _aten._softmax, _aten._to_copy, _aten._unsafe_view, _aten.amax, _aten.amin, _aten.arange,
    _aten.cat, _aten.clone, _aten.constant_pad_nd, _aten.cumsum, _aten.embedding, _aten.expand, _aten.full,
    _aten.full_like, _aten.gather, _aten.index, _aten.index_select, _aten.mean, _aten.native_group_norm,
    _aten.native_layer_norm, _aten.ones, _aten.ones_like, _aten.repeat, _aten.scalar_tensor, _aten.stack, _aten.sum,
    _aten.tril, _aten.triu, _aten.var, _aten.var_mean, _aten.zeros, _aten.zeros_like,
}  # fmt: skip
"""Beside operators that work element by element, and views."""


class Traits:
    """What the cut of a joint graph knows of its nodes: whether one is a view, changes something, or is random; the
    nodes whose storages one writes; the storages behind one, by identity."""

    def __init__(
        self,
        is_view: Callable[[fx.Node], bool],
        is_fixed: Callable[[fx.Node], bool],
        written: Callable[[fx.Node], set[fx.Node]],
        storages: Callable[[fx.Node], dict[int, int]],
    ) -> None:
        self.is_view, self.is_fixed, self.written, self.storages = is_view, is_fixed, written, storages


def dropped(joint: JointGraph, forward: Sequence[fx.Node], saved: Sequence[fx.Node], traits: Traits) -> list[fx.Node]:
    """Those of the saved nodes of F that can be made again from the others, in their order."""
    return _Search(joint, forward, saved, traits).dropped()


def between(wanted: Iterable[fx.Node], kept: Iterable[fx.Node], forward: Sequence[fx.Node]) -> list[fx.Node]:
    """F's nodes that make the wanted ones from the kept ones, in order."""
    allowed, found = set(forward) - set(kept), set[fx.Node]()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node in allowed and node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return [node for node in forward if node in found]


class _Search:
    def __init__(self, joint: JointGraph, forward: Sequence[fx.Node], saved: Sequence[fx.Node], traits: Traits) -> None:
        self.joint, self.forward, self.saved, self.traits = joint, forward, set(saved), traits
        self.inside = set(forward)
        self.parameters = set(joint.parameters.values())
        entering = {node for node in saved if node.op == "placeholder"}
        self.given = self.parameters | set(joint.buffers.values()) | entering
        changed = {base for node in forward for base in traits.written(node)}
        self.changed = {key for node in changed for key in traits.storages(node)}
        self.can: dict[fx.Node, bool] = {}

    def dropped(self) -> list[fx.Node]:
        for node in self.forward:  # in order: what a node is made from is decided before
            self.can[node] = self._follows(node)
        found = [node for node in self.forward if node in self.saved and self._dropped(node)]
        worth = {layer for layer, share in self._shares(found).items() if share >= LEAST_SHARE}
        return [node for node in found if self.joint.layer_of[node.name] in worth]

    def _shares(self, found: Iterable[fx.Node]) -> dict[int, float]:
        """By layer, how much of what it makes and saves it drops."""
        sizes: list[dict[int, dict[int, int]]] = [{}, {}]
        made = [node for node in self.saved if node.op != "placeholder"]
        for nodes, of in zip((made, found), sizes, strict=True):
            for node in nodes:
                of.setdefault(self.joint.layer_of[node.name], {}).update(self.traits.storages(node))
        return {layer: sum(of.values()) / max(1, sum(sizes[0][layer].values())) for layer, of in sizes[1].items()}

    def _dropped(self, node: fx.Node) -> bool:
        return self.can[node] and node not in self.joint.outputs and not self._handed_on(node)

    def _handed_on(self, node: fx.Node) -> bool:
        """Whether another layer takes it, or a view of it."""
        layer = self.joint.layer_of[node.name]
        return any(
            user in self.inside
            and (self.joint.layer_of[user.name] != layer or (self.traits.is_view(user) and self._handed_on(user)))
            for user in node.users
        )

    def _follows(self, node: fx.Node) -> bool:
        """Whether it is made by cheap operators of its layer from what is kept."""
        if not self._cheap(node) or not self.changed.isdisjoint(self.traits.storages(node)):
            return False
        return all(self._there(used, self.joint.layer_of[node.name]) for used in node.all_input_nodes)

    def _there(self, node: fx.Node, layer: int) -> bool:
        """Whether a recomputation has this, kept or made again."""
        if node.op == "get_attr":
            return True
        if node.op == "placeholder":
            return node in self.given and self.changed.isdisjoint(self.traits.storages(node))
        if node in self.saved and not self._dropped(node):
            return self.changed.isdisjoint(self.traits.storages(node))
        return self.can.get(node, False) and self.joint.layer_of[node.name] == layer

    def _cheap(self, node: fx.Node) -> bool:
        if node.target is operator.getitem:
            return self.can.get(node.all_input_nodes[0], False) or self.traits.is_view(node)
        if not isinstance(node.target, torch._ops.OpOverload) or self.traits.is_fixed(node):
            return False
        if torch.Tag.pointwise in node.target.tags or self.traits.is_view(node):
            return True
        packet = node.target.overloadpacket
        return packet in _CHEAP or (packet is _aten.bmm and self._short_sums(node))

    def _short_sums(self, node: fx.Node) -> bool:
        """Whether a batch of products is one of activations, with sums of few terms."""
        for used in node.all_input_nodes:
            while self.traits.is_view(used):
                used = used.all_input_nodes[0]
            if used in self.parameters:
                return False
        return int(node.all_input_nodes[0].meta["val"].shape[-1]) <= MOST_TERMS
