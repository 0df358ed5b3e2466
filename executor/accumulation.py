"""Gradients of weights are added to their accumulators by the matrix product that computes them."""

from __future__ import annotations

import torch
from torch import fx

_aten = torch.ops.aten
_ADDS = (_aten.add_.Tensor, _aten.addmm_.default)
_EXACT = (torch.float32, torch.float64)
"""16-bit products go into wider accumulators: there is no such product."""


def accumulate_products(graph: fx.Graph) -> None:
    """Turn accumulator.add_(a @ b) into accumulator.addmm_(a, b), and the same through transpositions.

    It saves the product's memory and two passes over it, as Megatron-LM's gradient accumulation fusion. Accumulators
    are placeholders; nodes need the `meta` of tracing.
    """
    for add in [node for node in graph.nodes if node.target is _aten.add_.Tensor and _writes_argument(node)]:
        chain = _product(add)
        if chain and not _changes_between(chain[-1], add):
            _fuse(graph, add, chain)


def _writes_argument(node: fx.Node) -> bool:
    """Whether it adds to an argument of the program."""
    return node.target in _ADDS and node.all_input_nodes[0].op == "placeholder"


def _product(add: fx.Node) -> list[fx.Node]:
    """What is added: transpositions, outermost first, of a product at the end that nobody else uses; else nothing."""
    chain: list[fx.Node] = []
    rest = add.all_input_nodes[1:]
    while rest and len(rest[0].users) == 1:
        node = rest[0]
        chain.append(node)
        if node.target is not _aten.t.default:
            product = node.target is _aten.mm.default and node.meta["val"].dtype in _EXACT
            return chain if product else []
        rest = node.all_input_nodes
    return []


def _changes_between(product: fx.Node, add: fx.Node) -> bool:
    """Whether something but accumulators is changed after the product: its factors might be."""
    node = product.next
    while node is not add:
        writes = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        if writes and not _writes_argument(node):
            return True
        node = node.next
    return False


def _fuse(graph: fx.Graph, add: fx.Node, chain: list[fx.Node]) -> None:
    accumulator, product = add.all_input_nodes[0], chain[-1]
    with graph.inserting_before(add):
        if len(chain) % 2 == 0:
            accumulator = graph.call_function(_aten.t.default, (accumulator,))
        graph.call_function(_aten.addmm_.default, (accumulator, *product.args))
    for node in (add, *chain):
        graph.erase_node(node)
