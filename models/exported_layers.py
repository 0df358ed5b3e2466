"""Layers as modules: pieces of an exported graph, with what is made again in each of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.nn.modules.batchnorm import _BatchNorm

from .exported_graph import Segment
from .exported_nodes import attribute, is_size, is_tensor, numbers_of
from .exported_opaque import call_of, leaf

_aten = torch.ops.aten
PATHS = "contraflow paths"
"""Of a layer's `meta`: the paths in the whole module of what it has, by its own names."""


class Attention(nn.Module):
    """Scaled dot product attention that drops in training alone."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """As torch's function, without the probability."""
        q, k, v, mask, causal = args
        rate = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, mask, rate, causal, **kwargs)


class BatchNorm(_BatchNorm):
    """torch's, of inputs with any number of dimensions."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Was checked when the graph was made."""


class AtMost(nn.Module):
    """Lets so many samples pass."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, x: Tensor) -> Tensor:
        """The same. Raises ValueError: more samples."""
        if len(x) > self.samples:
            raise ValueError(f"computes otherwise from {self.samples + 1} samples on, has {len(x)}: cut it by hand")
        return x


def with_at_most(samples: int, layer: fx.GraphModule) -> None:
    """The layer refuses more samples than so many, of the first tensor that it takes."""
    layer.add_module("at_most", AtMost(samples))
    first = next(node for node in layer.graph.nodes if node.op == "placeholder")
    with layer.graph.inserting_before(next(node for node in layer.graph.nodes if node.op != "placeholder")):
        passed = layer.graph.call_module("at_most", (first,))
    first.replace_all_uses_with(passed, delete_user_cb=lambda user: user is not passed)
    layer.recompile()


class _Writer:
    """Copies operators into a graph of their own."""

    def __init__(self, whole: fx.GraphModule, root: str, inside: Callable[[fx.Node], bool]) -> None:
        self._whole, self._root, self._inside = whole, root, inside
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.attributes: dict[str, Any] = {}
        self.paths: dict[str, str] = {}
        self.takes: list[fx.Node] = []
        self.sizes: dict[fx.Node, None] = {}
        self._device: fx.Node | None = None

    def collect(self, node: fx.Node) -> None:
        """Finds what has to come from outside for this operator, integers apart."""
        waiting, seen = [node], set[fx.Node]()
        while waiting:
            for used in waiting.pop().all_input_nodes:
                if is_size(used):
                    self.sizes[used] = None
                if used in seen or used.op == "get_attr" or is_size(used):
                    continue
                seen.add(used)
                if used.op == "placeholder" or (used.op == "call_function" and not self._inside(used)):
                    if used not in self.takes:
                        self.takes.append(used)
                else:
                    waiting.append(used)

    def open(self, order: Mapping[fx.Node, int]) -> None:
        """Placeholders for what comes from outside."""
        self.takes.sort(key=order.__getitem__)
        for number, node in enumerate(self.takes):
            self.copies[node] = self.graph.placeholder(f"x{number}")

    def copy(self, node: fx.Node) -> fx.Node:
        """The operator here, with all that it needs."""
        if node in self.copies:
            return self.copies[node]
        if node.op == "get_attr":
            made = self._attribute(node)
        elif is_size(node) and (known := self._size(node)) is not None:
            made = known
        elif node.op == "placeholder":
            raise ValueError(f"a size of {node.name} is needed where nothing has it")
        elif (own := self._norm(node) or self._call(node)) is not None:
            made = own
        else:
            for used in node.all_input_nodes:
                self.copy(used)
            args = map_aggregate(node.args, self._here)
            kwargs = map_aggregate(node.kwargs, self._here)
            made = self._by_mode(node, args) or self.graph.create_node("call_function", node.target, args, kwargs)
        self.copies[node] = made
        return made

    def _here(self, given: Any) -> Any:
        """An argument of an operator: what is made on the example's device is made where the layer's input is."""
        if isinstance(given, torch.device):
            if self._device is None and self.takes:
                self._device = self.graph.call_function(getattr, (self.copies[self.takes[0]], "device"))
            return self._device or given
        return self.copies[given] if isinstance(given, fx.Node) else given

    def _attribute(self, node: fx.Node) -> fx.Node:
        name, found = str(node.target), self._whole
        for part in name.split("."):
            found = getattr(found, part)
        own = name.removeprefix(f"{self._root}.") if self._root else name
        if own != name and own in self.attributes and self.attributes[own] is not found:
            own = name
        self.attributes[own], self.paths[own] = found, name
        return self.graph.get_attr(own)

    def _size(self, node: fx.Node) -> fx.Node | None:
        """A size that some tensor from outside has too."""
        wanted: Any = node.meta.get("val")
        if isinstance(wanted, int):
            return None
        for taken in self.takes:
            for dim, size in enumerate(taken.meta["val"].shape):
                if not isinstance(size, int) and size.node.expr == wanted.node.expr:
                    return self.graph.call_function(_aten.sym_size.int, (self.copies[taken], dim))
        return None

    def _by_mode(self, node: fx.Node, args: tuple[Any, ...]) -> fx.Node | None:
        """Operators that do something else where a layer is evaluated."""
        if node.target is _aten.dropout.default and args[2]:
            return self._module("dropout", nn.Dropout(args[1]), args[:1])
        if node.target is _aten.scaled_dot_product_attention.default and len(args) > 4 and args[4]:
            given = (*args[:3], args[3], args[5] if len(args) > 5 else False)
            made = self._module("attention", Attention(args[4]), given)
            made.kwargs = {k: v for k, v in map_aggregate(node.kwargs, self._here).items() if k != "dropout_p"}
            return made
        return None

    def _norm(self, node: fx.Node) -> fx.Node | None:
        """BatchNorm with statistics of its own is a module, which counts them in training and is known by its class."""
        if node.target is not _aten.batch_norm.default or not node.args[5] or not isinstance(node.args[3], fx.Node):
            return None
        given_args: tuple[Any, ...] = node.args
        x, weight, bias, mean, variance, _, momentum, eps = given_args[:8]
        path = str(mean.target).rpartition(".")[0]
        own = path.removeprefix(f"{self._root}.") if self._root else path
        if own not in self.attributes:
            module = BatchNorm(numbers_of(mean), eps, momentum, affine=isinstance(weight, fx.Node))
            for name, given in (("weight", weight), ("bias", bias), ("running_mean", mean), ("running_var", variance)):
                if isinstance(given, fx.Node):
                    setattr(module, name, attribute(given))
                    self.paths[f"{own}.{name}"] = str(given.target)
            counter = f"{path}.num_batches_tracked"
            module.num_batches_tracked = self._whole.get_buffer(counter)
            self.paths[f"{own}.num_batches_tracked"] = counter
            self.attributes[own] = module
        return self.graph.call_module(own, (self.copy(x),))

    def _call(self, node: fx.Node) -> fx.Node | None:
        """A part that is no graph is called as it is; what it returns is taken apart."""
        if node.target is operator.getitem and (call := call_of(node.args[0])) is not None:  # type: ignore[arg-type]
            whole, place = node.args
            return self.graph.call_function(leaf, (self.copy(whole), call.gives[place]))  # type: ignore[arg-type,index]
        if (call := call_of(node)) is None:
            return None
        given: Any = node.args[0]
        args, kwargs = call.arguments([self.copy(one) for one in given])
        own = call.path.removeprefix(f"{self._root}.") if self._root else call.path
        self.attributes[own] = call.module
        self.paths |= {f"{own}.{name}": f"{call.path}.{name}" for name in call.module.state_dict()}
        return self.graph.call_module(own, args, kwargs)

    def _module(self, kind: str, module: nn.Module, args: tuple[Any, ...]) -> fx.Node:
        name = f"{kind}_{sum(isinstance(x, nn.Module) for x in self.attributes.values())}"
        self.attributes[name] = module
        return self.graph.call_module(name, args)

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The module."""
        found = tuple(self.copies[node] for node in outputs)
        self.graph.output(found if len(found) > 1 else found[0])
        self.graph.lint()
        made = fx.GraphModule(self.attributes, self.graph)
        made.meta[PATHS] = self.paths
        return made


def layer_of(
    whole: fx.GraphModule, segment: Segment, gives: Sequence[fx.Node], home: Mapping[fx.Node, int], number: int
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """(a layer, what it takes of the data and of layers before it)."""
    writer = _Writer(whole, segment.root, lambda node: home.get(node, number) == number)
    order = {node: place for place, node in enumerate(whole.graph.nodes)}
    for node in (*segment.nodes, *gives):
        writer.collect(node)
    for size in writer.sizes:
        _reach(writer, size)
    writer.open(order)
    for node in (*segment.nodes, *gives):
        writer.copy(node)
    return writer.finish(gives), writer.takes


def _reach(writer: _Writer, size: fx.Node) -> None:
    """Where no tensor that is taken has a size, the tensor that it is a size of is taken."""
    wanted: Any = size.meta.get("val")
    if isinstance(wanted, int) or any(
        not isinstance(found, int) and found.node.expr == wanted.node.expr
        for taken in writer.takes
        for found in taken.meta["val"].shape
    ):
        return
    for used in size.all_input_nodes:
        if is_size(used):
            _reach(writer, used)
        elif used.op == "placeholder" and used not in writer.takes:
            writer.takes.append(used)


def loss_of(
    whole: fx.GraphModule, loss: fx.Node, label: fx.Node, tail: set[fx.Node]
) -> tuple[nn.Module, list[fx.Node]]:
    """(the loss as a module of what the last layer gives and of the targets, what that gives)."""
    nodes = [node for node in whole.graph.nodes if node in tail and node is not label]
    given: dict[fx.Node, None] = {}
    for node in nodes:
        for used in node.all_input_nodes:
            if used not in tail and is_tensor(used) and used.op != "placeholder" and used.op != "get_attr":
                given[used] = None
    ends = list(given)
    writer = _Writer(whole, "", lambda node: True)
    for number, node in enumerate(ends):
        writer.copies[node] = writer.graph.placeholder(f"x{number}")
    writer.copies[label] = writer.graph.placeholder("target")
    writer.takes = [*ends, label]
    writer.copy(loss)
    return writer.finish([loss]), ends
