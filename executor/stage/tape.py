"""What an eager forward leaves behind: torch's autograd graph, its saved tensors taken out into a stash.

Saved-tensor hooks put an empty slot into the graph in place of every tensor that autograd saves. So the graph of a
micro-batch, kept as a `Tape`, holds no memory; its tensors may be at the host or on another device until a backward
lays them back into the slots. Saved parameters are references: name and view, taken from the parameters that the
backward is given. A tape belongs to one micro-batch: the next may take another path through the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge, saved_tensors_hooks

from ...models.wiring import Carried, carried, tensors_of
from .protocol import Gradients
from .statistics import StandIns
from .tracing import StageLayers

BeforeLayer = Callable[[int], None]
"""Called with a layer's id (-1: the loss) before the layer runs."""


class Slot:
    """Where the graph looks for one saved tensor. With `once`, it is let go of as soon as it has been looked at."""

    __slots__ = ("once", "tensor")

    def __init__(self) -> None:
        self.tensor: Tensor | None = None
        self.once = False


class ParameterView(NamedTuple):
    """A saved parameter, or a view of one: `offset` elements behind its first."""

    slot: Slot
    name: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass
class Tape:
    """The autograd graph of one forward, without its tensors.

    Attributes:
        output: the node where gradients enter; None if nothing that is trained decides what the stage gives. entering:
            by its outputs, which of the gradients that come enters there.
        slots: of the stash's tensors, in its order. parameters: of the saved parameters.
        leaves: where a trained parameter's gradient arrives, by name. trained: these parameters as the graph, which
            holds them, knows them: empty until a backward lays its own values into them.
        entry: the node where the inputs' gradients arrive, in `arrived`; None where nobody wants one. numbers: by its
            outputs, of the gradients that are handed back. wanted: how many are.
        inner: the first tensor between layers that has a gradient.
        arrived: by number, the gradients of inputs.
        staying: keys of the buffers' storages, which belong to the device and not to the stash.
    """

    output: Node | None
    entering: tuple[tuple[int, int], ...]
    slots: list[Slot]
    parameters: list[ParameterView]
    leaves: dict[str, GradientEdge]
    trained: dict[str, Tensor]
    entry: Node | None
    numbers: tuple[int, ...]
    inner: GradientEdge | None
    arrived: dict[int, Tensor]
    wanted: int
    staying: frozenset[int]

    def load(self, tensors: list[Tensor], parameters: Mapping[str, Tensor]) -> None:
        """Lays a stash's tensors, which it takes out of the list, and the parameters into the slots."""
        for slot, tensor in zip(self.slots, tensors, strict=True):
            slot.tensor = tensor
        tensors.clear()
        for view in self.parameters:
            base = parameters[view.name]
            slot, offset = view.slot, int(base.storage_offset()) + view.offset
            slot.tensor = base.detach().as_strided(view.shape, view.stride, offset)
        for name, leaf in self.trained.items():
            leaf.data = parameters[name].detach()

    def clear(self) -> None:
        """Forgets the graph."""
        self.output = self.entry = self.inner = None
        self.slots.clear()
        self.parameters.clear()
        self.leaves.clear()
        self.trained.clear()


class _Enter(torch.autograd.Function):
    """The stage's inputs as the graph sees them: nothing of them is kept, and their gradients are put aside."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, numbers: tuple[int, ...], arrived: dict[int, Tensor], *xs: Tensor) -> Any:
        ctx.numbers, ctx.arrived = numbers, arrived
        ctx.set_materialize_grads(False)
        return tuple(x.detach() for x in xs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.arrived.update((n, grad) for n, grad in zip(ctx.numbers, grads, strict=True) if grad is not None)
        return None, None, None, *[None] * len(grads)


class _Leave(torch.autograd.Function):
    """Several tensors that a stage gives, as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


class Recording:
    """One forward of a stage under hooks; for one use.

    Attributes:
        tensors: what was saved beside parameters, in the order of the tape's slots.
    """

    def __init__(self, parameters: Mapping[str, Tensor], trained: frozenset[str]) -> None:
        self.tensors: list[Tensor] = []
        self._slots: list[Slot] = []
        self._views: list[ParameterView] = []
        self._aliases: dict[int, tuple[Tensor, Tensor]] = {}
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in parameters.items()}
        self._parameters = parameters
        self._trained = trained

    def run(
        self,
        layers: StageLayers,
        buffers: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None,
        before_layer: BeforeLayer,
        remake: bool = False,
    ) -> tuple[Carried, Tape]:
        """(the outputs, detached; the tape). With `remake`, copies of the buffers change in their place.

        What is saved of buffers are the live ones, whatever stood in for them. Raises ValueError where a layer changes
        the stage's input in place.
        """
        leaves = {n: t.detach().requires_grad_(n in self._trained) for n, t in self._parameters.items()}
        values = {**leaves, **buffers}
        if isinstance(buffers, StandIns):
            self._aliases = {t.untyped_storage()._cdata: (t, buffers.live[name]) for name, t in buffers.items()}
            buffers = buffers.live
        xs, arrived, inner = tensors_of(x), dict[int, Tensor](), list[GradientEdge]()
        entered, entry = [tensor.detach() for tensor in xs], None
        versions = [tensor._version for tensor in xs]

        def enter(layer_id: int, entering: tuple[Tensor, ...]) -> None:
            if not inner:
                inner.extend(
                    get_gradient_edge(t) for t in entering if t.requires_grad and not any(t is own for own in entered)
                )
            if remake:
                self._copy_buffers(values, buffers, f"{layer_id}.")
            before_layer(layer_id)

        with torch.enable_grad(), saved_tensors_hooks(self._pack, _unpack):
            wanted = [k for k, flag in enumerate(layers.wanted) if flag]
            floating = [k for k in wanted if xs[k].is_floating_point()]
            if floating:
                token = torch.empty(0, device=xs[0].device, requires_grad=True)
                numbers = tuple(wanted.index(k) for k in floating)
                made = _Enter.apply(token, numbers, arrived, *(xs[k] for k in floating))  # type: ignore[no-untyped-call]
                for k, tensor in zip(floating, made, strict=True):
                    entered[k] = tensor
                entry = get_gradient_edge(made[0]).node
                del made, tensor
            outputs = tensors_of(layers.run(values, carried(entered), target, enter))
            output, entering = _left(outputs, layers.returned)
        self._aliases.clear()
        if [tensor._version for tensor in xs] != versions:
            raise ValueError(f"{layers.label}: its first layer changes its input in place")
        trained = {name: leaves[name] for name in self._parameters if name in self._trained}
        edges = {name: get_gradient_edge(leaf) for name, leaf in trained.items()}
        for leaf in trained.values():
            leaf.data = leaf.new_empty(0)
        self._parameters = {}  # the graph holds its hooks, and they this
        first = inner[0] if inner else None
        staying = frozenset(tensor.untyped_storage()._cdata for tensor in buffers.values())
        left = carried([tensor.detach() for tensor in outputs])
        return left, Tape(
            output=output,
            entering=entering,
            slots=self._slots,
            parameters=self._views,
            leaves=edges,
            trained=trained,
            entry=entry,
            numbers=tuple(wanted.index(k) for k in floating),
            inner=first,
            arrived=arrived,
            wanted=len(wanted),
            staying=staying,
        )

    def _copy_buffers(self, values: dict[str, Tensor], buffers: Mapping[str, Tensor], prefix: str) -> None:
        """Lets the layer of this prefix run on copies, the one before on none any more."""
        self._aliases.clear()
        values.update(buffers)
        for name, buffer in buffers.items():
            if name.startswith(prefix):
                values[name] = buffer.clone()
                self._aliases[values[name].untyped_storage()._cdata] = values[name], buffer

    def _pack(self, tensor: Tensor) -> Slot:
        slot, key = Slot(), tensor.untyped_storage()._cdata
        name = self._names.get(key)
        if name is not None:
            offset = int(tensor.storage_offset() - self._parameters[name].storage_offset())
            self._views.append(ParameterView(slot, name, offset, tuple(tensor.shape), tuple(tensor.stride())))
            return slot
        kept = tensor.detach()
        if key in self._aliases:
            copy, original = self._aliases[key]
            offset = int(tensor.storage_offset() - copy.storage_offset() + original.storage_offset())
            kept = original.detach().as_strided(tensor.shape, tensor.stride(), offset)
        self._slots.append(slot)
        self.tensors.append(kept)
        return slot


def _unpack(slot: Slot) -> Tensor:
    tensor = slot.tensor
    assert tensor is not None, "a saved tensor is looked at without a stash"
    if slot.once:
        slot.tensor = None
    return tensor


def _left(outputs: Sequence[Tensor], returned: Sequence[bool]) -> tuple[Node | None, tuple[tuple[int, int], ...]]:
    """The node that gradients enter, and by its outputs the numbers of the gradients that do."""
    flagged = [tensor for tensor, flag in zip(outputs, returned, strict=True) if flag]
    there = [number for number, tensor in enumerate(flagged) if tensor.requires_grad]
    if not there:
        return None, ()
    if len(there) == 1:
        edge = get_gradient_edge(flagged[there[0]])
        return edge.node, ((edge.output_nr, there[0]),)
    left = _Leave.apply(*(flagged[number] for number in there))  # type: ignore[no-untyped-call]
    return get_gradient_edge(left[0]).node, tuple(enumerate(there))


def roots(tape: Tape, gradient: Carried) -> tuple[list[GradientEdge], list[Tensor]]:
    """Where gradients enter, and those that do."""
    assert tape.output is not None
    gradients = tensors_of(gradient)
    edges = [GradientEdge(tape.output, number) for number, _ in tape.entering]
    return edges, [gradients[place] for _, place in tape.entering]


def run_backward(tape: Tape, gradient: Carried, accumulators: Mapping[str, Tensor]) -> Gradients:
    """Add every parameter's gradient to its accumulator as soon as it is complete; return the inputs'.

    Saved tensors are freed as their nodes have run. The tape is used up.
    """
    if tape.output is None:
        return handed_back(tape.wanted, {})
    hooks = [edge.node.register_prehook(_adding(name, accumulators)) for name, edge in tape.leaves.items()]
    wanted = list(tape.leaves.values()) + ([] if tape.entry is None else [_token(tape.entry)])
    edges, gradients = roots(tape, gradient)
    arrived = tape.arrived
    del gradient
    tape.clear()
    with torch.no_grad():
        torch.autograd.backward(edges, gradients, inputs=wanted)
    for hook in hooks:
        hook.remove()
    found = handed_back(tape.wanted, arrived)
    arrived.clear()
    return found


def handed_back(wanted: int, found: Mapping[int, Tensor]) -> Gradients:
    """A gradient, or None, for everything that wants one."""
    grads = tuple(found.get(number) for number in range(wanted))
    return grads if wanted > 1 else grads[0] if grads else None


def _token(entry: Node) -> GradientEdge:
    """What lies behind the entry: asking for its gradient makes the entry run."""
    return next(GradientEdge(node, number) for node, number in entry.next_functions if node is not None)


def _adding(name: str, accumulators: Mapping[str, Tensor]) -> Callable[[Sequence[Tensor | None]], tuple[None]]:
    def add(gradients: Sequence[Tensor | None]) -> tuple[None]:
        accumulate(name, gradients[0], accumulators)
        return (None,)

    return add


def accumulate(name: str, gradient: Tensor | None, accumulators: Mapping[str, Tensor]) -> None:
    """Adds a gradient, if there is one. Raises ValueError: a parameter without an accumulator."""
    if gradient is None:
        return
    if name not in accumulators:
        raise ValueError(f"parameter {name} gets a gradient, but did not when the stage was checked")
    accumulators[name].add_(gradient)
