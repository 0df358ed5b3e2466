"""Operators of an exported graph: what their values are, and which of them every layer had better make for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from .exported_opaque import call_of


@dataclass(frozen=True)
class Rates:
    """What making a value again is weighed against, in seconds, bytes and operations a second: an A100's in its node.

    Attributes:
        kernel_s: the least that an operator takes. memory_bytes_s: of reading and writing, which all but products are
            held up by. operations_s: of products.
        message_s: what a tensor costs at either end. link_bytes_s: of a link between devices.
    """

    kernel_s: float = 4e-6
    memory_bytes_s: float = 1.3e12
    operations_s: float = 1e14
    message_s: float = 1e-4
    link_bytes_s: float = 3e11

    def making(self, node: fx.Node) -> float:
        """Seconds of an operator, of the example's samples."""
        if not is_tensor(node):
            return 0.0
        moved = sum(map(bytes_of, (node, *node.all_input_nodes)))
        return max(self.kernel_s, moved / self.memory_bytes_s, operations_of(node) / self.operations_s)

    def sending(self, node: fx.Node) -> float:
        """Seconds of its value's way to another device."""
        return self.message_s + bytes_of(node) / self.link_bytes_s


RATES = Rates()
"""Memory and products over links are within a factor of two of the same on an H100 or on processors that share a
memory; on slower links less is sent than should not be. Not measured."""


def is_tensor(node: fx.Node) -> bool:
    """Whether its value is one tensor."""
    return isinstance(node.meta.get("val"), Tensor)


def is_size(node: fx.Node) -> bool:
    """Whether its value is a number of samples, or follows from that."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), int | torch.SymInt)


def numbers_of(node: fx.Node) -> int:
    """How many its tensor has, of the example."""
    value = node.meta.get("val")
    return _count(value.shape) if isinstance(value, Tensor) else 1


def _count(shape: Sequence[Any]) -> int:
    return prod(size if isinstance(size, int) else int(size.node.hint or 1) for size in shape)


def bytes_of(node: fx.Node) -> int:
    """Of its tensor, of the example."""
    value = node.meta.get("val")
    return numbers_of(node) * value.element_size() if isinstance(value, Tensor) else 0


_PRODUCTS = ("mm", "bmm", "matmul", "addmm", "linear", "baddbmm")


def operations_of(node: fx.Node) -> int:
    """Of a product or convolution, of the example: a multiplication and an addition for every term; 0: it is none."""
    name = getattr(node.target, "_opname", "")
    given = [value for other in node.all_input_nodes if isinstance(value := other.meta.get("val"), Tensor)]
    if name in _PRODUCTS:
        factor = given[1] if name in ("addmm", "baddbmm") else given[0]
        return 2 * numbers_of(node) * _count(factor.shape[-1:])
    return 2 * numbers_of(node) * _count(given[1].shape[1:]) if name.startswith("conv") and len(given) > 1 else 0


def attribute(node: fx.Node) -> Any:
    """The parameter, buffer or constant that a node names."""
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def weights_of(node: fx.Node) -> dict[str, int]:
    """By name: numbers of the parameters that an operator takes."""
    call = call_of(node)
    if call is not None:
        return {f"{call.path}.{name}": value.numel() for name, value in call.module.named_parameters()}
    taken = [n for n in node.all_input_nodes if n.op == "get_attr" and isinstance(attribute(n), nn.Parameter)]
    return {str(n.target): numbers_of(n) for n in taken}


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def cheap_nodes(main: Sequence[fx.Node], rates: Rates = RATES) -> set[fx.Node]:
    """Nodes that are made again wherever they are used: no parameter decides them, and it takes no longer than sending.

    All that such a node is made of is among them.
    """
    free: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in main:
        if node.op == "placeholder":
            free[node] = frozenset()
        elif node.op == "get_attr":
            if not isinstance(attribute(node), nn.Parameter):
                free[node] = frozenset()
        elif is_size(node):
            free[node] = frozenset([node])
        elif node.op == "call_function" and not _is_random(node) and call_of(node) is None:
            before = node.all_input_nodes
            if all(other in free for other in before):
                free[node] = frozenset([node]).union(*(free[other] for other in before))
    cheap = set()
    for node, closure in free.items():
        making = sum(map(rates.making, closure))
        if node.op == "call_function" and (not is_tensor(node) or making <= rates.sending(node)):
            cheap |= {node, *closure}
    return cheap
