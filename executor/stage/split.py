"""Cuts a joint graph into programs: forward and backward, and the backward into its two halves.

F is everything recorded before autograd ran, B the rest. What crosses from F to B is the stash. Three rules
keep the stash as small as eager torch's: views are replayed in B rather than saved, the members of an
operator with several results are picked where the operator runs, and programs take their arguments in a list
they empty, so that every tensor dies at its last use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.fx.graph import CodeGen

from .selective import Traits, between, dropped
from .tracing import JointGraph

_aten = torch.ops.aten
_WEIGHT_MASKED = (_aten.convolution_backward.default,)
_UPDATES_STATISTICS = (_aten.native_batch_norm.default, _aten.cudnn_batch_norm.default)  # arguments 3, 4; 5: training
_READS_NO_STATISTICS = {  # BatchNorm backward in training mode takes the running statistics but reads none
    _aten.native_batch_norm_backward.default: (3, 4),
    _aten.cudnn_batch_norm_backward.default: (3, 4),
    _aten.batch_norm_backward.default: (3, 4),
}


class BoxedCodeGen(CodeGen):
    """Generates fn(arguments: list), which empties the list: an argument is freed at its last use."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        names = [var.split(":")[0].split("=")[0].strip() for var in free_vars if var != "self"]
        head = f"def {self._func_name}(self, arguments){maybe_return_annotation}:"
        if not names:
            return head
        return f"{head}\n    {', '.join(names)}, = arguments\n    arguments.clear()"


@dataclass(frozen=True)
class GraphPart:
    """A program cut out of the joint graph: takes `inputs` in a list, returns `outputs` as a tuple."""

    program: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Split:
    """All programs of a stage. `backward` adds into accumulators; I returns (input gradient, extras).

    The inputs of B and I are [*saved, *grad_outputs], those of B and W end with the accumulators.

    Attributes:
        forward_only: F without the stash. remake: the stash without the output; it changes no buffer, and takes
            no BatchNorm statistics. None where that cannot be: a buffer's new value is needed.
        forward_part, remake_part: F that leaves its stash without `dropped`, and R that makes these again from the
            rest: it takes parameters, buffers, and what is kept. None where nothing is dropped.
        saved: what B reads of the forward: parameters, buffers, the stage's input and target, activations.
        held: what W reads: members of `saved` or `grad_outputs`, then what I returns for it.
        accumulated: parameter names, in the order of the accumulators.
    """

    forward: GraphPart
    forward_only: GraphPart
    remake: GraphPart | None
    forward_part: GraphPart | None
    remake_part: GraphPart | None
    backward: GraphPart
    backward_input: GraphPart
    backward_weight: GraphPart
    saved: tuple[fx.Node, ...]
    held: tuple[fx.Node, ...]
    dropped: frozenset[fx.Node]
    accumulated: tuple[str, ...]
    random_layers: frozenset[int]


def split(joint: JointGraph, reseed: Callable[[int, int], None]) -> Split:
    """Cut the joint graph. F gets a last argument `seed`; `reseed(seed, layer)` opens every random layer."""
    _drop_unread_statistics(joint)
    forward_nodes, backward_nodes = _phases(joint)
    position = {node: index for index, node in enumerate(joint.module.graph.nodes)}
    grads = list(joint.parameter_grads.values())
    input_grads = joint.boundary
    saved, replayed = _crossing([*grads, *input_grads], backward_nodes, forward_nodes, set(joint.grad_outputs))
    saved.sort(key=position.__getitem__)
    backward_nodes = sorted([*replayed, *backward_nodes], key=position.__getitem__)

    random_layers = frozenset(joint.layer_of[node.name] for node in forward_nodes if _is_random(node))
    shipped = [node for node in saved if node.op != "placeholder"]
    forward, forward_only, remake = _forwards(joint, forward_nodes, shipped, random_layers, reseed)
    less = dropped(joint, forward_nodes, saved, Traits(_is_view, _is_fixed, _written, _storages))
    forward_part, remake_part = _in_part(joint, forward_nodes, saved, less, (random_layers, reseed))
    backward = _Builder(joint, [*saved, *joint.grad_outputs])
    backward.copy_accumulating(backward_nodes)

    backward_nodes = _split_masked(joint, backward_nodes)
    first, second = _halves(joint, backward_nodes)
    held, again = _crossing(list(joint.parameter_grads.values()), second, first, set())
    order = {node: index for index, node in enumerate(joint.module.graph.nodes)}
    extras = [node for node in held if node in set(first)]
    held = [*(node for node in held if node not in set(first)), *extras]
    half_input = _Builder(joint, [*saved, *joint.grad_outputs])
    half_input.copy(first)
    half_weight = _Builder(joint, held)
    half_weight.copy_accumulating(sorted([*again, *second], key=order.__getitem__))
    return Split(
        forward=forward,
        forward_only=forward_only,
        remake=remake,
        forward_part=forward_part,
        remake_part=remake_part,
        backward=backward.finish(input_grads),
        backward_input=half_input.finish([*input_grads, *extras]),
        backward_weight=half_weight.finish([]),
        saved=tuple(saved),
        held=tuple(held),
        dropped=frozenset(less),
        accumulated=tuple(joint.parameter_grads),
        random_layers=random_layers,
    )


def _forwards(
    joint: JointGraph,
    nodes: Sequence[fx.Node],
    shipped: Sequence[fx.Node],
    random_layers: frozenset[int],
    reseed: Callable[[int, int], None],
) -> tuple[GraphPart, GraphPart, GraphPart | None]:
    """F, F without its stash, and R, if there can be one (see `Split`)."""
    placeholders = [*joint.parameters.values(), *joint.buffers.values(), *joint.inputs]
    placeholders += [] if joint.target is None else [joint.target]
    forward, forward_only, remake = (_Builder(joint, placeholders) for _ in range(3))
    forward.copy_reseeding(nodes, random_layers, reseed)
    needed = _closure([*joint.outputs, *_stateful(joint, nodes)], nodes)
    forward_only.copy_reseeding([node for node in nodes if node in needed], random_layers, reseed)
    parts = forward.finish([*joint.outputs, *shipped]), forward_only.finish(joint.outputs)
    found = _remade(joint, nodes, shipped)
    if found is None:
        return *parts, None
    again, counting = found
    remake.copy_reseeding(again, random_layers, reseed)
    for node in counting:
        copied = remake.copies[node]
        copied.args = (*copied.args[:3], None, None, *copied.args[5:])
    return *parts, remake.finish(shipped)


def _in_part(
    joint: JointGraph,
    nodes: Sequence[fx.Node],
    saved: Sequence[fx.Node],
    less: Sequence[fx.Node],
    seeding: tuple[frozenset[int], Callable[[int, int], None]],
) -> tuple[GraphPart | None, GraphPart | None]:
    """F without a part of its stash, and the R that makes it again."""
    if not less:
        return None, None
    placeholders = [*joint.parameters.values(), *joint.buffers.values()]
    given = [*placeholders, *joint.inputs, *([] if joint.target is None else [joint.target])]
    kept = [node for node in saved if node not in less]
    forward = _Builder(joint, given)
    made = [node for node in kept if node.op != "placeholder"]
    needed = _closure([*joint.outputs, *made, *_stateful(joint, nodes)], nodes)
    forward.copy_reseeding([node for node in nodes if node in needed], *seeding)
    remake = _Builder(joint, [*placeholders, *(node for node in kept if node not in placeholders)])
    remake.copy(between(less, kept, nodes))
    return forward.finish([*joint.outputs, *made]), remake.finish(less)


class _Builder:
    """Copies nodes of the joint graph into a new one."""

    def __init__(self, joint: JointGraph, inputs: Sequence[fx.Node]) -> None:
        self.joint = joint
        self.graph = fx.Graph()
        self.inputs = tuple(inputs)
        self.copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            self.copies[node] = self.graph.placeholder(node.name)
            self.copies[node].meta = dict(node.meta)

    def copy(self, nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            self._copy(node)

    def _copy(self, node: fx.Node) -> None:
        self.copies[node] = self.graph.node_copy(node, self._copied)

    def _copied(self, node: fx.Node) -> fx.Node:
        if node not in self.copies and node.op == "get_attr":
            self._copy(node)
        return self.copies[node]

    def copy_reseeding(
        self, nodes: Iterable[fx.Node], layers: frozenset[int], reseed: Callable[[int, int], None]
    ) -> None:
        """Copy; before the first node of each random layer, call reseed(seed, layer)."""
        seed = self.graph.placeholder("seed")
        current: int | None = None
        for node in nodes:
            layer = self.joint.layer_of[node.name]
            if layer != current and layer in layers:
                self.graph.call_function(reseed, (seed, layer))
            current = layer
            self._copy(node)

    def copy_accumulating(self, nodes: Iterable[fx.Node]) -> None:
        """Copy; add each gradient to its accumulator at once, so that only one is temporary."""
        targets: dict[fx.Node, list[fx.Node]] = {}
        for index, grad in enumerate(self.joint.parameter_grads.values()):
            accumulator = self.graph.placeholder(f"accumulator{index}")
            accumulator.meta = dict(grad.meta)
            targets.setdefault(grad, []).append(accumulator)
        for grad in [grad for grad in targets if grad in self.copies]:
            self._accumulate(grad, targets.pop(grad))
        for node in nodes:
            self._copy(node)
            self._accumulate(node, targets.pop(node, []))
        assert not targets, f"gradients never computed: {list(targets)}"

    def _accumulate(self, grad: fx.Node, accumulators: list[fx.Node]) -> None:
        for accumulator in accumulators:
            self.graph.call_function(_aten.add_.Tensor, (accumulator, self.copies[grad]))

    def finish(self, outputs: Sequence[fx.Node]) -> GraphPart:
        self.graph.output(tuple(self._copied(node) for node in outputs))
        self.graph.set_codegen(BoxedCodeGen())
        self.graph.lint()
        return GraphPart(fx.GraphModule(self.joint.module, self.graph), self.inputs, tuple(outputs))


def storages(value: object) -> dict[int, int]:
    """The storages of a fake value, by identity: their bytes."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        return {storage._cdata: storage.nbytes()}
    if isinstance(value, (tuple, list)):
        return {key: size for item in value for key, size in storages(item).items()}
    return {}


def _storages(node: fx.Node) -> dict[int, int]:
    return storages(node.meta.get("val"))


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_fixed(node: fx.Node) -> bool:
    """Whether it runs once: it changes something, or draws random numbers."""
    return _is_mutable(node) or _is_random(node)


def _is_random(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    # Attention kernels carry the tag whether or not they drop anything.
    names = [argument.name for argument in node.target._schema.arguments]
    if "dropout_p" not in names:
        return True
    index = names.index("dropout_p")
    probability = node.args[index] if index < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(probability != 0.0)


def _is_view(node: fx.Node) -> bool:
    """Whether the node only looks at its first argument's storage: replaying it costs nothing."""
    if node.op != "call_function" or _is_mutable(node) or not node.all_input_nodes:
        return False
    base = node.all_input_nodes[0]
    if node.target is operator.getitem and not _is_view(base):
        return False  # a member of an operator with several results
    own = _storages(node)
    return bool(own) and own.keys() <= _storages(base).keys()


def _closure(wanted: Iterable[fx.Node], nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Those of `nodes` that the wanted ones need, themselves included, through `nodes` alone."""
    allowed, found = set(nodes), set[fx.Node]()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node in allowed and node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _phases(joint: JointGraph) -> tuple[list[fx.Node], list[fx.Node]]:
    """Nodes of F and of B, in order, without what nobody needs."""
    body = [node for node in joint.module.graph.nodes if node.op == "call_function"]
    early = {node for node in body if node.name in joint.layer_of}
    for node in body:  # members of F's operators, even if only the gradients ask for them
        if node.target is operator.getitem and node.args[0] in early:
            early.add(node)
            joint.layer_of.setdefault(node.name, joint.layer_of[node.all_input_nodes[0].name])
    forward = [node for node in body if node in early]
    backward = [node for node in body if node not in early]
    grads = [*joint.parameter_grads.values(), *joint.boundary]
    needed = _closure([*grads, *filter(_is_mutable, backward)], backward)
    backward = [node for node in backward if node in needed]
    borrowed = [used for node in backward for used in node.all_input_nodes]
    needed = _closure([*joint.outputs, *grads, *borrowed, *_stateful(joint, forward)], forward)
    return [node for node in forward if node in needed], backward


def _stateful(joint: JointGraph, forward: Sequence[fx.Node]) -> list[fx.Node]:
    """Nodes of F that must run whoever reads them: they change something, or advance the random state."""
    touched = set(joint.buffers.values())
    return [n for n in forward if _is_mutable(n) or _is_random(n) or not touched.isdisjoint(n.all_input_nodes)]


def _remade(
    joint: JointGraph, forward: Sequence[fx.Node], shipped: Sequence[fx.Node]
) -> tuple[list[fx.Node], set[fx.Node]] | None:
    """F's nodes that make the stash once more, and those of them that would count BatchNorm statistics again.

    None where a buffer that F changes decides what the stash holds.
    """
    buffers = set(joint.buffers.values())
    changing = {node for node in forward if not buffers.isdisjoint(_written(node))}
    roots = [node for node in forward if node not in changing and (_is_mutable(node) or _is_random(node))]
    nodes = _closure([*shipped, *roots], forward)
    counting = {node for node in nodes if node.target in _UPDATES_STATISTICS and node.args[5] is True}
    written = {base for node in changing for base in _written(node)}
    written |= {used for node in counting for used in node.args[3:5] if isinstance(used, fx.Node)}
    read = {used for node in nodes - counting for used in node.all_input_nodes}
    if nodes & changing or read & written:
        return None
    return [node for node in forward if node in nodes], counting


def _written(node: fx.Node) -> set[fx.Node]:
    """The nodes whose storages the node changes, views followed to what they look at."""
    if not _is_mutable(node):
        return set()
    assert isinstance(node.target, torch._ops.OpOverload)
    found = set()
    for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            bases = value if isinstance(value, (list, tuple)) else [value]
            for base in bases:
                while isinstance(base, fx.Node) and (_is_view(base) or _written(base)):
                    base = base.all_input_nodes[0]
                if isinstance(base, fx.Node):
                    found.add(base)
    return found


def _crossing(
    wanted: Sequence[fx.Node], later: Sequence[fx.Node], earlier: Sequence[fx.Node], given: set[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """What the later program must be handed: (values to save, views of them to replay)."""
    inside, producers = set(later), set(earlier)
    saved: dict[fx.Node, None] = {}
    replayed: dict[fx.Node, None] = {}

    def hand_over(node: fx.Node) -> None:
        if node in given or node in saved or node in replayed or node.op == "get_attr":
            return
        if node in producers and _is_view(node):
            for base in node.all_input_nodes:
                hand_over(base)
            replayed[node] = None
        else:
            saved[node] = None

    for node in later:
        for used in node.all_input_nodes:
            if used not in inside:
                hand_over(used)
    for node in wanted:
        if node not in inside:
            hand_over(node)
    return list(saved), list(replayed)


def _halves(joint: JointGraph, backward: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """B's nodes cut into I, what the input gradient needs, and W, the rest."""
    wanted = joint.boundary or joint.inner_grads
    early = _closure([*wanted, *filter(_is_mutable, backward)], backward)
    for node in backward:
        if node.target is operator.getitem and node.args[0] in early:
            early.add(node)
    second = [node for node in backward if node not in early]
    needed = _closure(joint.parameter_grads.values(), second)
    return [node for node in backward if node in early], [node for node in second if node in needed]


def _split_masked(joint: JointGraph, backward: Sequence[fx.Node]) -> list[fx.Node]:
    """Turn one convolution_backward into one for the input and one for weight and bias, by output mask."""
    result = []
    for node in backward:
        mask = node.args[-1] if node.target in _WEIGHT_MASKED else ()
        if not (isinstance(mask, (list, tuple)) and mask and mask[0] and any(mask[1:])):
            result.append(node)
            continue
        halves = []
        for half in ([True, False, False], [False, *mask[1:]]):
            with joint.module.graph.inserting_before(node):
                copied = joint.module.graph.create_node("call_function", node.target, (*node.args[:-1], half))
            copied.meta = dict(node.meta)
            halves.append(copied)
        for member in list(node.users):
            index = member.args[1]
            member.args = (halves[0] if index == 0 else halves[1], index)
        result += halves
    return result


def _drop_unread_statistics(joint: JointGraph) -> None:
    """BatchNorm's running statistics change with every forward; keep B from holding on to them."""
    for node in joint.module.graph.nodes:
        indices = _READS_NO_STATISTICS.get(node.target, ())
        training = node.target is _aten.cudnn_batch_norm_backward.default or (
            len(node.args) > 7 and node.args[7] is True
        )
        if indices and training:
            node.args = tuple(None if i in indices else value for i, value in enumerate(node.args))
