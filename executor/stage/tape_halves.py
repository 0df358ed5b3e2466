"""A tape's backward in two halves: I, what the input's gradient needs, and W, the parameters' gradients.

Torch's nodes compute only the gradients that are asked for. I therefore asks for the input's gradient alone, and on
the way takes down the gradient that enters every node from which a trained parameter branches off; W starts again at
those nodes, from their saved tensors. Only what one kernel computes at once (norms, fused recurrent layers, custom
functions) has its parameters' gradients computed in I already; everything else has none in I, no input gradient twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from ...models.wiring import Carried
from .protocol import Gradients
from .tape import Slot, Tape, accumulate, handed_back, roots

_FUSED = ("Rnn", "CppFunction")
"""In the types of nodes that compute all gradients at once: recurrent kernels, scripted and C++ functions."""


@dataclass(eq=False)
class Branch:
    """A node whose W is still to come.

    Attributes:
        inputs: which gradients enter the node.
        leaves: the parameters that it alone leads to, without passing the path to the input.
        doubled: whether a path through the input's side leads to one of them as well: a parameter used twice.
        at_once: whether its parameters' gradients come with the input's at no cost.
        edges: by position in `next_functions`, those that lead to them.
        slots: what it and the nodes between it and the parameters have saved.
        entered: whether a gradient enters, for each of `inputs`; filled by I.
    """

    node: Node
    inputs: tuple[int, ...]
    leaves: dict[str, GradientEdge]
    doubled: bool
    at_once: bool
    edges: dict[int, GradientEdge]
    slots: list[Slot]
    entered: list[bool]


@dataclass
class Cut:
    """Where one tape's backward comes apart.

    Attributes:
        boundary: how far back I goes, the node of the stage's inputs or of the first layer's output, with the numbers
            of the gradients that arrive there; None: there is no I.
        early: parameters whose gradients I computes.
        branches: what W does, from the output back.
        held: the slots W reads. once: those that are looked at in I and never again. often: by custom autograd
            functions, whose backward may look twice, the slots that nobody else does.
    """

    boundary: tuple[Node, tuple[int, ...]] | None
    early: dict[str, GradientEdge]
    branches: list[Branch]
    held: list[Slot]
    once: list[Slot]
    often: list[tuple[Node, list[Slot]]]


class _Graph:
    """The nodes of a tape, consumers before producers, with what each leads to."""

    def __init__(self, tape: Tape, stop: Node | None) -> None:
        assert tape.output is not None
        self.names = {edge.node: name for name, edge in tape.leaves.items()}
        self.bits = {node: 1 << position for position, node in enumerate(self.names)}
        self.stop = stop
        self.order = _consumers_first(tape.output)
        self.entering: dict[Node, set[int]] = {node: set() for node in self.order}
        self.entering[tape.output].update(number for number, _ in tape.entering)
        self.mask: dict[Node, int] = {}
        self.on_path: set[Node] = set()
        for node in reversed(self.order):
            nexts = [(other, number) for other, number in node.next_functions if other is not None]
            for other, number in nexts:
                self.entering[other].add(number)
            self.mask[node] = self.bits.get(node, 0)
            for other, _ in nexts:
                self.mask[node] |= self.mask[other]
            if any(other is self.stop or other in self.on_path for other, _ in nexts):
                self.on_path.add(node)

    def side(self, node: Node) -> tuple[dict[int, GradientEdge], int]:
        """(edges off the path to the input that lead to parameters, the parameters behind the path)."""
        off, behind = dict[int, GradientEdge](), 0
        for position, (other, number) in enumerate(node.next_functions):
            if other is None:
                continue
            if other in self.on_path or other is self.stop:
                behind |= self.mask[other]
            elif self.mask[other]:
                off[position] = GradientEdge(other, number)
        return off, behind


def leads_to(tape: Tape) -> tuple[tuple[str, ...], bool]:
    """(the trained parameters that decide what the stage gives, whether an input does)."""
    if tape.output is None:
        return (), False
    nodes = set(_consumers_first(tape.output))
    names = tuple(name for name, edge in tape.leaves.items() if edge.node in nodes)
    return names, tape.entry is not None and tape.entry in nodes


def cut(tape: Tape) -> Cut:
    """Find where the tape's backward comes apart."""
    if tape.output is None:
        return Cut(None, {}, [], [], list(tape.slots), [])
    boundary: tuple[Node, tuple[int, ...]] | None = None
    if tape.entry is not None:
        boundary = tape.entry, tuple(range(len(tape.numbers)))
    elif tape.inner is not None:
        boundary = tape.inner.node, (tape.inner.output_nr,)
    graph = _Graph(tape, None if boundary is None else boundary[0])
    if graph.stop not in graph.mask:
        boundary = graph.stop = None
    branches = []
    for node in graph.order:
        if node in graph.on_path:
            edges, behind = graph.side(node)
            if edges:
                inputs = tuple(sorted(graph.entering[node]))
                branches.append(_branch(tape, graph, node, inputs, edges, behind))
    last, numbers = (tape.output, tuple(n for n, _ in tape.entering)) if boundary is None else boundary
    if graph.mask[last]:  # what lies behind the first layer's output, or everything
        branches.append(_branch(tape, graph, last, numbers, {}, 0))
    early, late = _early(branches, tape)
    return _with_slots(tape, graph, boundary, early, late)


def _early(branches: list[Branch], tape: Tape) -> tuple[dict[str, GradientEdge], list[Branch]]:
    """(the parameters whose gradients come with the input's at no cost, the branches of the others)."""
    late = [branch for branch in branches if not branch.at_once]
    waiting = [branch for branch in branches if branch.at_once]
    while True:  # a parameter is early only if all that is known of it is
        names = {name for branch in late for name in branch.leaves}
        shared = [branch for branch in waiting if not names.isdisjoint(branch.leaves)]
        if not shared:
            break
        waiting = [branch for branch in waiting if branch not in shared]
        late += shared
    kept = [branch for branch in branches if branch in late]
    return {name: tape.leaves[name] for branch in waiting for name in branch.leaves}, kept


def _branch(
    tape: Tape, graph: _Graph, node: Node, inputs: tuple[int, ...], edges: dict[int, GradientEdge], behind: int
) -> Branch:
    """The branch at a node: along `edges`, or along all of the node's if there are none."""
    slots, seen, mask = list(_slots(node)), {node}, 0
    starts = [edge.node for edge in edges.values()] or [node]
    for start in starts:
        mask |= graph.mask[start]
        for other in _consumers_first(start):
            if other not in seen and graph.mask[other]:
                seen.add(other)
                slots += _slots(other)
    leaves = {name: tape.leaves[name] for other, name in graph.names.items() if graph.bits[other] & mask}
    at_once = bool(edges) and _computes_all(node, leaves)
    return Branch(node, inputs, leaves, bool(mask & behind), at_once, edges, slots, [])


def _computes_all(node: Node, leaves: Mapping[str, GradientEdge]) -> bool:
    """Whether the node computes its parameters' gradients with the input's, or in one more pass over it."""
    if _is_python(node) or any(part in type(node).__name__ for part in _FUSED):
        return True
    variables = [getattr(edge.node, "variable", None) for edge in leaves.values()]
    return all(isinstance(v, Tensor) and v.dim() <= 1 for v in variables)


def _with_slots(
    tape: Tape,
    graph: _Graph,
    boundary: tuple[Node, tuple[int, ...]] | None,
    early: dict[str, GradientEdge],
    branches: list[Branch],
) -> Cut:
    """Sort the slots: W's, and those that a node of torch's own looks at once, in I."""
    own = set(tape.slots)
    held = {slot for branch in branches for slot in branch.slots} & own
    known: set[Slot] = set()
    once: set[Slot] = set()
    often: list[tuple[Node, list[Slot]]] = []
    for node in graph.order:
        found = set(_slots(node)) & own
        known |= found
        if _is_python(node):
            often.append((node, list(found - held)))
        else:
            once |= found
    held |= own - known  # of nodes that do not say what they have saved
    return Cut(boundary, early, branches, [s for s in tape.slots if s in held], list(once - held), often)


def run_input(tape: Tape, parts: Cut, gradient: Carried) -> tuple[Gradients, list[Tensor]]:
    """Run I on a loaded tape: (the inputs' gradients, the gradients that `run_weight` starts from)."""
    if tape.output is None:
        return handed_back(tape.wanted, {}), []
    wanted = [*parts.early.values()]
    wanted += [GradientEdge(branch.node, number) for branch in parts.branches for number in branch.inputs]
    ends: tuple[int, ...] = ()
    if tape.entry is not None and parts.boundary is not None:
        ends = parts.boundary[1]
        wanted += [GradientEdge(parts.boundary[0], number) for number in ends]
    for slot in parts.once:
        slot.once = True
    found: list[Tensor | None] = []
    if wanted:
        with torch.no_grad(), _let_go(parts.often):
            edges, gradients = roots(tape, gradient)
            found += torch.autograd.grad(edges, wanted, gradients, retain_graph=True, allow_unused=True)
    taken = found[len(found) - len(ends) :]
    del found[len(found) - len(ends) :]
    numbered = zip(tape.numbers, taken, strict=True) if ends else ()
    grad = handed_back(tape.wanted, {number: g for number, g in numbered if g is not None})
    del taken
    parts.early = {name: edge for (name, edge), g in zip(parts.early.items(), found, strict=False) if g is not None}
    position = len(wanted) - len(ends) - sum(len(branch.inputs) for branch in parts.branches)
    for branch in parts.branches:
        branch.entered = [value is not None for value in found[position : position + len(branch.inputs)]]
        position += len(branch.inputs)
    return grad, [value for value in found if value is not None]


@contextmanager
def _let_go(often: Sequence[tuple[Node, list[Slot]]]) -> Iterator[None]:
    """What nodes have saved goes as soon as they have run."""

    def empty(slots: list[Slot], *_: object) -> None:
        for slot in slots:
            slot.tensor = None

    handles = [node.register_hook(partial(empty, slots)) for node, slots in often if slots]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_weight(parts: Cut, gradients: list[Tensor], accumulators: Mapping[str, Tensor]) -> None:
    """Run W from what `run_input` left; empties the list and the cut, and frees what is used up as it goes."""
    uses: dict[Slot, int] = {}
    for branch in parts.branches:
        for slot in branch.slots:
            uses[slot] = uses.get(slot, 0) + 1
    given = deque(gradients)
    gradients.clear()
    with torch.no_grad():
        for name in parts.early:
            accumulate(name, given.popleft(), accumulators)
        while parts.branches:
            branch = parts.branches.pop(0)
            entering = [given.popleft() if entered else None for entered in branch.entered]
            for name, gradient in _leaf_gradients(branch, entering):
                accumulate(name, gradient, accumulators)
            del entering
            for slot in branch.slots:
                uses[slot] -= 1
                if not uses[slot]:
                    slot.tensor = None


def _leaf_gradients(branch: Branch, entering: list[Tensor | None]) -> Iterator[tuple[str, Tensor | None]]:
    """Name and gradient of the parameters that branch off."""
    roots = [GradientEdge(branch.node, n) for n, g in zip(branch.inputs, entering, strict=True) if g is not None]
    values = [gradient for gradient in entering if gradient is not None]
    if branch.doubled:
        roots, values = _directly(branch, entering)
    leaves = list(branch.leaves.values())
    if roots:
        found = torch.autograd.grad(roots, leaves, values, retain_graph=True, allow_unused=True)
        values.clear()
        yield from zip(branch.leaves, found, strict=True)


def _directly(branch: Branch, entering: list[Tensor | None]) -> tuple[list[GradientEdge], list[Tensor]]:
    """Run the branch's node by itself: torch would follow the path to the input to the parameter's other use."""
    arguments: list[Any] = [None] * (max(branch.inputs) + 1)
    for number, gradient in zip(branch.inputs, entering, strict=True):
        arguments[number] = gradient
    node: Any = branch.node
    found = node.apply(*arguments) if _is_python(node) else node(*arguments)
    found = found if isinstance(found, tuple) else (found,)
    pairs = [
        (edge, _shaped(found[position], edge)) for position, edge in branch.edges.items() if found[position] is not None
    ]
    return [edge for edge, _ in pairs], [gradient for _, gradient in pairs]


def _shaped(gradient: Tensor, edge: GradientEdge) -> Tensor:
    """The gradient as the edge's node takes it: torch itself sums where a tensor was broadcast."""
    metadata: Any = edge.node._input_metadata[edge.output_nr]
    return gradient.sum_to_size(tuple(metadata.shape))


def _consumers_first(start: Node) -> list[Node]:
    """The nodes behind `start`, itself first, every node before those its gradients go to."""
    done: list[Node] = []
    state: dict[Node, Iterator[tuple[Node | None, int]]] = {start: iter(start.next_functions)}
    stack = [start]
    while stack:
        for other, _ in state[stack[-1]]:
            if other is not None and other not in state:
                state[other] = iter(other.next_functions)
                stack.append(other)
                break
        else:
            done.append(stack.pop())
    done.reverse()
    return done


@cache
def _saved_names(kind: type) -> tuple[str, ...]:
    """The attributes under which nodes of a type show what they have saved."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved"))


def _slots(node: Node) -> Iterator[Slot]:
    """The slots in a node, as far as it shows them: a scripted function's does not."""
    for name in _saved_names(type(node)):
        saved = getattr(node, name)
        for member in saved if isinstance(saved, (tuple, list)) else (saved,):
            if member is not None and isinstance(member.data, Slot):
                yield member.data


def _is_python(node: Node) -> bool:
    """Whether the node is a custom autograd function of Python, whose backward may look at a tensor twice."""
    return issubclass(type(node), BackwardCFunction)
