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
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

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
        output: where gradients enter; None if nothing that is trained decides the output.
        slots: of the stash's tensors, in its order. parameters: of the saved parameters.
        leaves: where a trained parameter's gradient arrives, by name. trained: these parameters as the graph, which
            holds them, knows them: empty until a backward lays its own values into them.
        entry: where the input's gradient arrives, in `arrived`; None where nobody wants it.
        inner: the first tensor between layers that has a gradient.
        arrived: a list that is given the input's gradient.
        staying: keys of the buffers' storages, which belong to the device and not to the stash.
    """

    output: GradientEdge | None
    slots: list[Slot]
    parameters: list[ParameterView]
    leaves: dict[str, GradientEdge]
    trained: dict[str, Tensor]
    entry: GradientEdge | None
    inner: GradientEdge | None
    arrived: list[Tensor]
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
    """The stage's input as the graph sees it: its storage is not kept, and its gradient is put into a list."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, arrived: list[Tensor]) -> Tensor:
        ctx.arrived = arrived
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.arrived.append(grads[0])
        return None, None, None


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
        x: Tensor,
        target: Tensor | None,
        before_layer: BeforeLayer,
        remake: bool = False,
    ) -> tuple[Tensor, Tape]:
        """(the output, detached; the tape). With `remake`, copies of the buffers change in their place.

        What is saved of buffers are the live ones, whatever stood in for them. Raises ValueError where a layer changes
        the stage's input in place.
        """
        leaves = {n: t.detach().requires_grad_(n in self._trained) for n, t in self._parameters.items()}
        values = {**leaves, **buffers}
        if isinstance(buffers, StandIns):
            self._aliases = {t.untyped_storage()._cdata: (t, buffers.live[name]) for name, t in buffers.items()}
            buffers = buffers.live
        arrived: list[Tensor] = []
        entered, entry, inner = x.detach(), None, list[GradientEdge | None]()
        version = x._version

        def enter(layer_id: int, entering: Tensor) -> None:
            if entering is not entered and not inner and entering.requires_grad:
                inner.append(_edge(entering))
            if remake:
                self._copy_buffers(values, buffers, f"{layer_id}.")
            before_layer(layer_id)

        with torch.enable_grad(), saved_tensors_hooks(self._pack, _unpack):
            if layers.needs_input_grad and x.is_floating_point():
                token = torch.empty(0, device=x.device, requires_grad=True)
                entered = _Enter.apply(x, token, arrived)  # type: ignore[no-untyped-call]
                entry = get_gradient_edge(entered)
            output = layers.run(values, entered, target, enter)
        self._aliases.clear()
        if x._version != version:
            raise ValueError(f"{layers.label}: its first layer changes its input in place")
        trained = {name: leaves[name] for name in self._parameters if name in self._trained}
        edges = {name: get_gradient_edge(leaf) for name, leaf in trained.items()}
        for leaf in trained.values():
            leaf.data = leaf.new_empty(0)
        self._parameters = {}  # the graph holds its hooks, and they this
        first = inner[0] if inner else None
        staying = frozenset(tensor.untyped_storage()._cdata for tensor in buffers.values())
        left = output.detach()
        return left, Tape(_edge(output), self._slots, self._views, edges, trained, entry, first, arrived, staying)

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


def _edge(tensor: Tensor) -> GradientEdge | None:
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def run_backward(tape: Tape, gradient: Tensor, accumulators: Mapping[str, Tensor]) -> Tensor | None:
    """Add every parameter's gradient to its accumulator as soon as it is complete; return the input's.

    Saved tensors are freed as their nodes have run. The tape is used up.
    """
    if tape.output is None:
        return None
    hooks = [edge.node.register_prehook(_adding(name, accumulators)) for name, edge in tape.leaves.items()]
    wanted = list(tape.leaves.values()) + ([] if tape.entry is None else [_token(tape.entry)])
    root, arrived = tape.output, tape.arrived
    tape.clear()
    with torch.no_grad():
        torch.autograd.backward([root], [gradient], inputs=wanted)
    for hook in hooks:
        hook.remove()
    return arrived.pop() if arrived else None


def _token(entry: GradientEdge) -> GradientEdge:
    """What lies behind the entry: asking for its gradient makes the entry run."""
    return next(GradientEdge(node, number) for node, number in entry.node.next_functions if node is not None)


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
