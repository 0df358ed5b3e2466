"""Traces a stage: one graph of its forward and its gradients, as plain aten operators."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from ...models.protocol import Loss
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
        modules: the chain, each Tensor -> Tensor.
        layer_ids: the layers' positions in the model; they prefix parameter names and seed random layers.
        loss: applied to the last layer's output if this is the last stage.
        needs_input_grad: whether somebody wants the gradient of the stage's input.
        label: how errors call the stage.
        half: the 16-bit type of mixed precision, None without.
    """

    modules: Sequence[nn.Module]
    layer_ids: Sequence[int]
    loss: Loss | None
    needs_input_grad: bool
    label: str
    half: torch.dtype | None = None

    def run(
        self,
        values: Mapping[str, Tensor],
        x: Tensor,
        target: Tensor | None,
        before_layer: Callable[[int, Tensor], None],
    ) -> Tensor:
        """The stage in plain torch; `before_layer` gets each layer's id, -1 for the loss, and its input."""
        with autocasting(self.half, x.device):
            return self._run(values, x, target, before_layer)

    def _run(
        self,
        values: Mapping[str, Tensor],
        x: Tensor,
        target: Tensor | None,
        before_layer: Callable[[int, Tensor], None],
    ) -> Tensor:
        for layer_id, module in zip(self.layer_ids, self.modules, strict=True):
            before_layer(layer_id, x)
            prefix = f"{layer_id}."
            own = {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}
            x = functional_call(module, own, (x,))
            if not isinstance(x, Tensor):
                raise TraceError(f"{self.label}: layer {layer_id} returns a {type(x).__name__}, not a tensor")
        if self.loss is not None:
            before_layer(-1, x)
            if target is None:
                raise TraceError(f"{self.label}: a stage with a loss needs a target")
            x = self.loss(x if self.half is None else x.float(), target)
        return x


@dataclass(frozen=True)
class JointGraph:
    """One graph of forward and gradients. Every node carries its fake tensor in meta["val"].

    Attributes:
        module: owns the graph; placeholders in the order of the fields below.
        layer_of: for every node of the forward, by name, the layer it came from (-1: the loss).
        parameter_grads: by parameter name, for the parameters that have one.
        inner_grad: where nobody wants the input's gradient, that of the first tensor between layers that has one: how
            far back the input half of the backward goes.
    """

    module: fx.GraphModule
    parameters: dict[str, fx.Node]
    buffers: dict[str, fx.Node]
    input: fx.Node
    target: fx.Node | None
    grad_output: fx.Node
    layer_of: dict[str, int]
    output: fx.Node
    parameter_grads: dict[str, fx.Node]
    input_grad: fx.Node | None
    inner_grad: fx.Node | None


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


def trace_joint(layers: StageLayers, example_input: Tensor, example_target: Tensor | None) -> JointGraph:
    """Trace forward and `autograd.grad` of the stage on fake tensors of the examples' shapes.

    Nothing is computed and no parameter is touched. `make_fx` records what the autograd engine runs, so
    the gradients are torch's own formulas.

    Raises:
        TraceError: the stage does something a graph cannot hold (data-dependent control flow, a layer
            that does not return a tensor, an in-place change of the stage's input).
    """
    with _TRACE_LOCK:
        try:
            return _trace(layers, example_input, example_target)
        except TraceError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise TraceError(f"{layers.label} cannot be traced: {reason[0]}") from error


def _trace(layers: StageLayers, example_input: Tensor, example_target: Tensor | None) -> JointGraph:
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def imitate(tensor: Tensor, requires_grad: bool = False) -> Tensor:
        with fake:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return empty.requires_grad_(requires_grad)

    real = named_parameters(layers.modules, layers.layer_ids)
    parameters = {name: imitate(tensor, tensor.requires_grad) for name, tensor in real.items()}
    differentiated = [name for name, tensor in parameters.items() if tensor.requires_grad]
    named = named_buffers(layers.modules, layers.layer_ids)
    buffers = {name: imitate(tensor) for name, tensor in named.items()}
    x = imitate(example_input, layers.needs_input_grad)
    targets = [] if example_target is None else [imitate(example_target)]
    with fake:
        output = layers.run({**parameters, **buffers}, x, _first(targets), lambda *_: None)
    grad_output = imitate(output.detach())
    recorder = _LayerRecorder()

    def joint(*flat: Tensor) -> list[Tensor | None]:
        values = dict(zip([*parameters, *buffers], flat, strict=False))
        inner_x, *rest = flat[len(values) :]
        between: list[Tensor] = []

        def enter(layer_id: int, entering: Tensor) -> None:
            recorder.enter(layer_id)
            between.append(entering)

        result = layers.run(values, inner_x, _first(rest[:-1]), enter)
        recorder.enter(None)
        trained = [entering for entering in between[1:] if entering.requires_grad]
        boundary = inner_x if layers.needs_input_grad else _first(trained)
        leaves = [values[name] for name in differentiated]
        if result.requires_grad and boundary is not None and boundary.requires_grad:
            *grads, last = torch.autograd.grad([result], [*leaves, boundary], [rest[-1]], allow_unused=True)
            return [result, *grads, last]
        if not leaves or not result.requires_grad:
            return [result, *[None] * len(leaves), None]
        return [result, *torch.autograd.grad([result], leaves, [rest[-1]], allow_unused=True), None]

    with fake, torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        arguments = (*parameters.values(), *buffers.values(), x, *targets, grad_output)
        module = make_fx(joint)(*arguments)
    return _describe(module, list(parameters), list(buffers), differentiated, len(targets), recorder.layer_of, layers)


def _describe(
    module: fx.GraphModule,
    parameters: list[str],
    buffers: list[str],
    differentiated: list[str],
    targets: int,
    layer_of: dict[str, int],
    layers: StageLayers,
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
    output, *grads, boundary = nodes[-1].args[0]
    parameter_grads = dict(zip(differentiated, grads, strict=False))
    return JointGraph(
        module=module,
        parameters=dict(zip(parameters, values, strict=False)),
        buffers=dict(zip(buffers, values[len(parameters) :], strict=True)),
        input=rest[0],
        target=rest[1] if targets else None,
        grad_output=rest[-1],
        layer_of=layer_of,
        output=output,
        parameter_grads={name: grad for name, grad in parameter_grads.items() if grad is not None},
        input_grad=boundary if layers.needs_input_grad else None,
        inner_grad=None if layers.needs_input_grad else boundary,
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
