"""Traces a stage: one graph of its forward and its gradients, as plain aten operators."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from ...models.protocol import Loss
from ...models.wiring import Carried, Flow, Part, carried, outputs_of, tensors_of
from .precision import autocasting

_TRACE_LOCK = threading.Lock()  # make_fx patches process-wide state
_STRICT_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


class TraceError(RuntimeError):
    """A stage that cannot be turned into a graph; the message names the stage and the reason."""


def named_parameters(modules: Sequence[nn.Module], layer_ids: Sequence[int]) -> dict[str, nn.Parameter]:
    """A stage's parameters by "<layer id>.<name in the layer>"; one tied within a layer appears once."""
    named = zip(layer_ids, modules, strict=True)
    return {f"{i}.{name}": tensor for i, module in named for name, tensor in module.named_parameters()}


def named_buffers(modules: Sequence[nn.Module], layer_ids: Sequence[int]) -> dict[str, Tensor]:
    """A stage's buffers, named as its parameters are."""
    named = zip(layer_ids, modules, strict=True)
    return {f"{i}.{name}": buffer for i, module in named for name, buffer in module.named_buffers()}


@dataclass(frozen=True)
class StageLayers:
    """The layers of one stage with everything that is traced besides them.

    Attributes:
        modules: the layers, in order.
        layer_ids: the layers' positions in the model; they prefix parameter names and seed random layers.
        loss: applied to the last layer's output if this is the last stage.
        needs_input_grad: whether somebody wants the gradient of anything that the stage takes.
        label: how errors call the stage.
        half: the 16-bit type of mixed precision, None without.
        part: what the layers take and give. None: each takes what the one before it gives.
        strides: of the gradient that the only output gets; None: of all as of the outputs.
    """

    modules: Sequence[nn.Module]
    layer_ids: Sequence[int]
    loss: Loss | None
    needs_input_grad: bool
    label: str
    half: torch.dtype | None = None
    part: Part | None = None
    strides: tuple[int, ...] | None = None

    @cached_property
    def wires(self) -> Part:
        """What the layers take and give."""
        return self.part or Part.chain(tuple(self.layer_ids), self.needs_input_grad)

    @property
    def wanted(self) -> tuple[bool, ...]:
        """Of what the stage takes, the tensors whose gradients somebody wants."""
        return tuple(self.needs_input_grad and wanted for wanted in self.wires.wanted)

    @property
    def returned(self) -> tuple[bool, ...]:
        """Of what `run` returns, the tensors whose gradients come back."""
        return (True,) if self.loss is not None else self.wires.returned

    @cached_property
    def recurrent(self) -> tuple[tuple[nn.RNNBase, ...], ...]:
        """The recurrent modules of every layer."""
        return tuple(tuple(p for p in module.modules() if isinstance(p, nn.RNNBase)) for module in self.modules)

    def run(
        self,
        values: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None,
        before_layer: Callable[[int, tuple[Tensor, ...]], None],
    ) -> Carried:
        """The stage in plain torch: the loss, or what it gives.

        `before_layer` gets each layer's id, -1 for the loss, and its inputs.
        """
        with autocasting(self.half, tensors_of(x)[0].device):
            return self._run(values, x, target, before_layer)

    def _run(
        self,
        values: Mapping[str, Tensor],
        x: Carried,
        target: Tensor | None,
        before_layer: Callable[[int, tuple[Tensor, ...]], None],
    ) -> Carried:
        flow = Flow(self.wires, x)
        del x
        for place, (layer_id, module) in enumerate(zip(self.layer_ids, self.modules, strict=True)):
            taken = flow.arguments(place)
            before_layer(layer_id, taken)
            prefix = f"{layer_id}."
            own = {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}
            versions = [(tensor, tensor._version) for tensor in flow.waiting]
            with _given_back(self.recurrent[place]):
                result = functional_call(module, own, taken)
            if any(tensor._version != version for tensor, version in versions):
                raise TraceError(f"{self.label}: layer {layer_id} changes in place what another layer takes")
            del taken, versions
            if self.loss is not None and place == len(self.modules) - 1:
                return self._lost(result, target, before_layer)
            try:
                flow.returned(place, result)
            except ValueError as error:
                raise TraceError(f"{self.label}: layer {layer_id} {error}") from None
            del result
        return flow.given()

    def _lost(
        self, result: object, target: Tensor | None, before_layer: Callable[[int, tuple[Tensor, ...]], None]
    ) -> Tensor:
        """The loss of what the last layer returns."""
        assert self.loss is not None
        try:
            found = outputs_of(result, self.wires.outputs[-1])
        except ValueError as error:
            raise TraceError(f"{self.label}: layer {self.layer_ids[-1]} {error}") from None
        before_layer(-1, found)
        if target is None:
            raise TraceError(f"{self.label}: a stage with a loss needs a target")
        wide = tuple(t.float() if self.half is not None and t.is_floating_point() else t for t in found)
        return self.loss(carried(wide), target)


@contextmanager
def _given_back(modules: Sequence[nn.RNNBase]) -> Iterator[None]:
    """Recurrent modules keep the weights of their last forward, a version that may be in nobody's plan any more."""
    own = [(module._flat_weights, module._flat_weight_refs) for module in modules]
    try:
        yield
    finally:
        for module, (weights, refs) in zip(modules, own, strict=True):
            module._flat_weights, module._flat_weight_refs = weights, refs


@dataclass(frozen=True)
class JointGraph:
    """One graph of forward and gradients. Every node carries its fake tensor in meta["val"].

    Attributes:
        module: owns the graph; placeholders in the order of the fields below.
        grad_outputs: of the outputs whose gradients come.
        layer_of: for every node of the forward, by name, the layer it came from (-1: the loss).
        parameter_grads: by parameter name, for the parameters that have one.
        input_grads: of the inputs whose gradients somebody wants; None where one has none.
        inner_grads: where nobody wants an input's gradient, those of the first tensors between layers that have one:
            how far back the input half of the backward goes.
    """

    module: fx.GraphModule
    parameters: dict[str, fx.Node]
    buffers: dict[str, fx.Node]
    inputs: tuple[fx.Node, ...]
    target: fx.Node | None
    grad_outputs: tuple[fx.Node, ...]
    layer_of: dict[str, int]
    outputs: tuple[fx.Node, ...]
    parameter_grads: dict[str, fx.Node]
    input_grads: tuple[fx.Node | None, ...]
    inner_grads: tuple[fx.Node, ...]

    @property
    def boundary(self) -> list[fx.Node]:
        """The gradients of inputs that there are."""
        return [node for node in self.input_grads if node is not None]


class _LayerRecorder:
    """Notes which layer every node of the graph under construction belongs to."""

    def __init__(self) -> None:
        self.layer_of: dict[str, int] = {}
        self._layer: int | None = None
        self._last: fx.Node | None = None

    def enter(self, layer_id: int | None) -> None:
        mode = get_proxy_mode()
        assert mode is not None
        nodes = []
        for node in reversed(mode.tracer.graph.nodes):
            if node is self._last:
                break
            nodes.append(node)
        if nodes:
            self._last = nodes[0]
        if self._layer is not None:
            self.layer_of.update((node.name, self._layer) for node in nodes)
        self._layer = layer_id


def trace_joint(layers: StageLayers, example_input: Carried, example_target: Tensor | None) -> JointGraph:
    """Trace forward and `autograd.grad` of the stage on fake tensors of the examples' shapes.

    Nothing is computed and no parameter is touched. `make_fx` records what the autograd engine runs, so
    the gradients are torch's own formulas.

    Raises:
        TraceError: the stage does something a graph cannot hold (data-dependent control flow, a layer
            that does not return what it says, an in-place change of the stage's input).
    """
    with _TRACE_LOCK:
        try:
            return _trace(layers, example_input, example_target)
        except TraceError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise TraceError(f"{layers.label} cannot be traced: {reason[0]}") from error


def _trace(layers: StageLayers, example_input: Carried, example_target: Tensor | None) -> JointGraph:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    if any(layers.recurrent):
        fake.cache_enabled = False  # what it remembers of their backward forgets that two biases have one gradient

    def imitate(tensor: Tensor, requires_grad: bool = False, strides: tuple[int, ...] | None = None) -> Tensor:
        with fake:
            laid = strides or tensor.stride()
            empty = torch.empty_strided(tensor.shape, laid, dtype=tensor.dtype, device=tensor.device)
        return empty.requires_grad_(requires_grad)

    real = named_parameters(layers.modules, layers.layer_ids)
    parameters = {name: imitate(tensor, tensor.requires_grad) for name, tensor in real.items()}
    differentiated = [name for name, tensor in parameters.items() if tensor.requires_grad]
    named = named_buffers(layers.modules, layers.layer_ids)
    buffers = {name: imitate(tensor) for name, tensor in named.items()}
    wanted, returned = layers.wanted, layers.returned
    xs = [imitate(x, flag and x.is_floating_point()) for x, flag in zip(tensors_of(example_input), wanted, strict=True)]
    targets = [] if example_target is None else [imitate(example_target)]
    with fake:
        output = tensors_of(layers.run({**parameters, **buffers}, carried(xs), _first(targets), lambda *_: None))
    with_gradients = (tensor for tensor, flag in zip(output, returned, strict=True) if flag)
    grad_outputs = [imitate(tensor.detach(), strides=layers.strides) for tensor in with_gradients]
    recorder = _LayerRecorder()

    def joint(*flat: Tensor) -> list[Tensor | None]:
        values = dict(zip([*parameters, *buffers], flat, strict=False))
        rest = flat[len(values) :]
        inner_xs, given, gradients = rest[: len(xs)], rest[len(xs) :][: len(targets)], rest[len(xs) + len(targets) :]
        between: list[list[Tensor]] = []

        def enter(layer_id: int, entering: tuple[Tensor, ...]) -> None:
            recorder.enter(layer_id)
            between.append([tensor for tensor in entering if tensor.requires_grad])

        results = tensors_of(layers.run(values, carried(inner_xs), _first(given), enter))
        recorder.enter(None)
        ends = [x for x, flag in zip(inner_xs, wanted, strict=True) if flag]
        inner = [] if layers.needs_input_grad else next(filter(None, between), [])
        leaves = [values[name] for name in differentiated]
        paired = zip((r for r, flag in zip(results, returned, strict=True) if flag), gradients, strict=True)
        grads = _gradients([(r, g) for r, g in paired if r.requires_grad], [*leaves, *ends, *inner])
        return [*results, *grads]

    with fake, torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        arguments = (*parameters.values(), *buffers.values(), *xs, *targets, *grad_outputs)
        module = make_fx(joint)(*arguments)
    counts = _Counts(len(xs), len(targets), len(output), sum(wanted))
    return _describe(module, list(parameters), list(buffers), differentiated, counts, recorder.layer_of)


def _gradients(roots: Sequence[tuple[Tensor, Tensor]], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Of every leaf, None where it has none; roots with the gradients that enter them."""
    asked = [leaf for leaf in leaves if leaf.requires_grad]
    if not roots or not asked:
        return [None] * len(leaves)
    entering = [gradient for _, gradient in roots]
    found = iter(torch.autograd.grad([root for root, _ in roots], asked, entering, allow_unused=True))
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


class _Counts(NamedTuple):
    inputs: int
    targets: int
    outputs: int
    wanted: int


def _describe(
    module: fx.GraphModule,
    parameters: list[str],
    buffers: list[str],
    differentiated: list[str],
    counts: _Counts,
    layer_of: dict[str, int],
) -> JointGraph:
    """Name the placeholders and outputs, and make views tolerant of strides that differ at run time."""
    for node in module.graph.nodes:
        if node.target in _STRICT_VIEWS:
            node.target = torch.ops.aten.reshape.default
        elif node.target is torch.ops.aten.detach.default:  # there is no autograd when programs run
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        elif node.target is torch.ops.aten.native_batch_norm.default:
            _correct_statistics(node)
    nodes = list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    values, rest = placeholders[: len(parameters) + len(buffers)], placeholders[len(parameters) + len(buffers) :]
    results = nodes[-1].args[0]
    grads, ends = results[counts.outputs :][: len(differentiated)], results[counts.outputs + len(differentiated) :]
    parameter_grads = dict(zip(differentiated, grads, strict=True))
    first_grad = counts.inputs + counts.targets
    return JointGraph(
        module=module,
        parameters=dict(zip(parameters, values, strict=False)),
        buffers=dict(zip(buffers, values[len(parameters) :], strict=True)),
        inputs=tuple(rest[: counts.inputs]),
        target=rest[counts.inputs] if counts.targets else None,
        grad_outputs=tuple(rest[first_grad:]),
        layer_of=layer_of,
        outputs=tuple(results[: counts.outputs]),
        parameter_grads={name: grad for name, grad in parameter_grads.items() if grad is not None},
        input_grads=tuple(ends[: counts.wanted]),
        inner_grads=tuple(node for node in ends[counts.wanted :] if node is not None),
    )


def _correct_statistics(batch_norm: fx.Node) -> None:
    """A CPU keeps the batch's mean and deviation in the weight's type; fake tensors have them in the input's."""
    weight = batch_norm.args[1]
    if isinstance(weight, fx.Node):
        for member in batch_norm.users:
            if member.target is operator.getitem and member.args[1] in (1, 2):
                value = member.meta["val"]
                member.meta["val"] = value.new_empty(value.shape, dtype=weight.meta["val"].dtype)


def _first(tensors: Sequence[Tensor]) -> Tensor | None:
    return tensors[0] if tensors else None
