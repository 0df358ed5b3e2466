"""Users' layers on a team, divided as torch's `parallelize_module` divides them: by styles, named for their modules.

A style says how a module's parameters are cut and how its inputs and outputs lie on the lanes. torch keeps that in
DTensors; here tensors stay plain, and the same transfers are made by `collectives`, so that a stage's graph holds them
and they are priced, watched and measured like those of the zoo's models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.func import functional_call

from .collectives import copied
from .lanes import Lane, NoParallelForm
from .lanes import Shard as Cut
from .layouts import Flow, layout_named, moved
from .parallel import dropped, require_multiple

TAKEN = (
    ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput, PrepareModuleOutput,
    PrepareModuleInputOutput,
)  # fmt: skip
"""The styles that are executed; nothing that is derived from them."""

ParallelPlan = Mapping[str, ParallelStyle]
"""What `parallelize_module` takes: styles by the paths of modules, each part of a path a pattern for fnmatch."""


def matched(paths: Iterable[str], pattern: str) -> list[str]:
    """The paths that a pattern means, part by part."""
    parts = pattern.split(".")
    cut = ((path, path.split(".")) for path in paths)
    return [p for p, own in cut if len(own) == len(parts) and all(map(fnmatchcase, own, parts))]


def divided_plan(plan: object, layers: Mapping[str, nn.Module]) -> dict[str, ParallelPlan]:
    """Every layer's part of the plan of a model whose children the layers are, by paths without patterns.

    Raises NoParallelForm: no mapping of names to styles, a path that no module has, or two that one has.
    """
    if not isinstance(plan, Mapping):
        raise NoParallelForm(f"a {type(plan).__name__}, not styles by the paths of modules")
    homes: dict[str, tuple[str, str]] = {}
    for layer, module in layers.items():
        for path, _ in module.named_modules():
            homes[f"{layer}.{path}" if path else layer] = layer, path
    parts: dict[str, dict[str, ParallelStyle]] = {layer: {} for layer in layers}
    for pattern, style in plan.items():
        _require_style(pattern, style)
        found = matched(homes, pattern)
        if not found:
            raise NoParallelForm(f"{pattern!r} matches no module of the layers {', '.join(layers)}")
        for layer, path in map(homes.__getitem__, found):
            if path in parts[layer]:
                raise NoParallelForm(f"layer {layer!r}: {_named(path)} is named twice")
            parts[layer][path] = style
    return dict(parts)


def _require_style(pattern: object, style: object) -> None:
    if not isinstance(pattern, str) or not isinstance(style, ParallelStyle):
        raise NoParallelForm(f"{pattern!r} is given {style!r}, which is no ParallelStyle")


def _named(path: str) -> str:
    return repr(path) if path else "the layer itself"


def parallelize(module: nn.Module, lane: Lane, plan: ParallelPlan) -> None:
    """Makes a layer the part of a lane; what the plan does not name, every lane has and does whole.

    Raises NoParallelForm naming module and style: it matches no module, is not taken, or cannot be done with it.
    """
    paths = dict(module.named_modules())
    styled: dict[str, str] = {}
    cutting = _Cutting(lane)
    for pattern, style in plan.items():
        _require_style(pattern, style)
        found = matched(paths, pattern)
        if not found:
            raise NoParallelForm(f"its parallel plan names {pattern!r}, which none of its modules is")
        for path in found:
            what = f"{type(style).__name__} of {_named(path)}"
            if path in styled:
                raise NoParallelForm(f"{what}, which has {styled[path]} already")
            styled[path] = type(style).__name__
            try:
                _attach(paths[path], _Styled(lane, _way_of(paths[path], style, cutting), what))
            except NoParallelForm as error:
                raise NoParallelForm(f"{what}: {error}") from None
    cutting.require_whole(module)
    if "forward" not in vars(module):
        _attach(module, _Styled(lane, _Way()))


class _Refused(NoParallelForm):
    """One that names the module."""


class _Way:
    """What a style does around a module's own forward; by itself nothing."""

    def run(self, module: nn.Module, lane: Lane, flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's output on this lane."""
        return type(module).forward(module, *args, **kwargs)


@dataclass(frozen=True)
class _Styled:
    lane: Lane
    way: _Way
    what: str = ""


def _attach(module: nn.Module, styled: _Styled) -> None:
    module.styled = styled  # type: ignore[assignment]
    module.forward = MethodType(_in_team, module)  # bound anew where the module is copied


def _in_team(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    styled: _Styled = module.styled  # type: ignore[assignment]
    with Flow.current() as flow:
        try:
            return styled.way.run(module, styled.lane, flow, args, kwargs)
        except _Refused:
            raise
        except NoParallelForm as error:
            raise _Refused(f"{styled.what}: {error}") from None


def _way_of(module: nn.Module, style: ParallelStyle, cutting: _Cutting) -> _Way:
    """Cuts the module's parameters. Raises NoParallelForm."""
    if type(style) not in TAKEN:
        raise NoParallelForm(f"not executed; {', '.join(kind.__name__ for kind in TAKEN)} are")
    if isinstance(style, ColwiseParallel):
        return _column(module, style, cutting)
    if isinstance(style, RowwiseParallel):
        return _row(module, style, cutting)
    if isinstance(style, SequenceParallel):
        return _OnShards(style.sequence_sharding[0])
    if isinstance(style, PrepareModuleInputOutput):
        return _Prepared(style.prepare_module_input, style.prepare_module_output)
    if isinstance(style, PrepareModuleInput):
        return _Prepared(style, None)
    assert isinstance(style, PrepareModuleOutput)
    return _Prepared(None, style)


class _Cutting:
    """Parameters of one layer that have been cut: what is one in several modules stays one."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._parts: dict[int, tuple[nn.Parameter, Cut, nn.Parameter]] = {}

    def cut(self, module: nn.Module, dims: Mapping[str, int]) -> None:
        """Along these dimensions, by name. Raises NoParallelForm: not there, or cut otherwise elsewhere."""
        shards: dict[str, Cut] = {}
        own = dict(module.named_parameters(recurse=False))
        for name, dim in dims.items():
            if name not in own:
                raise NoParallelForm(f"{type(module).__name__} has no parameter {name!r} of its own")
            whole = own[name]
            shards[name] = Cut(dim, whole.shape[dim])
            if id(whole) not in self._parts:
                part = nn.Parameter(shards[name].part(whole.detach(), self.lane), whole.requires_grad)
                self._parts[id(whole)] = whole, shards[name], part
            _, known, part = self._parts[id(whole)]
            if known != shards[name]:
                raise NoParallelForm(f"its {name} is cut along dimension {known.dim} elsewhere, here along {dim}")
            setattr(module, name, part)
        module.shards = shards  # type: ignore[assignment]

    def require_whole(self, layer: nn.Module) -> None:
        """Raises NoParallelForm naming a parameter that is cut in one module of the layer and whole in another."""
        for name, parameter in layer.named_parameters(remove_duplicate=False):
            if id(parameter) in self._parts:
                raise NoParallelForm(f"its {name} is the same parameter as one that its parallel plan cuts elsewhere")


def _plain_kind(module: nn.Module) -> type[nn.Linear] | type[nn.Embedding]:
    """Which of torch's two it computes. Raises NoParallelForm."""
    kinds: tuple[type[nn.Linear], type[nn.Embedding]] = (nn.Linear, nn.Embedding)
    for kind in kinds:
        if isinstance(module, kind) and type(module).forward is kind.forward:
            if isinstance(module, nn.Embedding):
                _require_plain(module)
            return kind
    raise NoParallelForm(f"it takes Linear and Embedding, not {type(module).__name__}")


def _require_plain(module: nn.Embedding) -> None:
    for name in ("max_norm", "scale_grad_by_freq", "sparse"):
        if getattr(module, name):
            raise NoParallelForm(f"an Embedding with {name} cannot be divided")


def _biased(module: nn.Module, names: Mapping[str, int]) -> dict[str, int]:
    return {name: dim for name, dim in names.items() if name != "bias" or getattr(module, "bias", None) is not None}


@dataclass(frozen=True)
class _Column(_Way):
    """Output features are cut. `whole`: how many all lanes have together."""

    source: Placement
    target: Placement
    known: bool
    whole: int

    def run(self, module: nn.Module, lane: Lane, flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = flow.for_parts(args[0], self.source, lane)
        y: Tensor = type(module).forward(module, x, *args[1:], **kwargs)
        y = moved(y, Shard(-1), self.target, lane)
        if isinstance(self.target, Replicate) and y.shape[-1] > self.whole:
            y = y.narrow(-1, 0, self.whole)
        return flow.noted(y, self.target) if self.known else y


def _column(module: nn.Module, style: ColwiseParallel, cutting: _Cutting) -> _Way:
    source, target = layout_named(style.input_layouts[0]), layout_named(style.output_layouts[0])
    linear = _plain_kind(module) is nn.Linear
    whole: int = module.out_features if isinstance(module, nn.Linear) else module.embedding_dim  # type: ignore[assignment]
    if not isinstance(target, Replicate):  # where all lanes get all, what is missing in the last part is left out
        require_multiple(whole, "output features" if linear else "columns", cutting.lane)
    cutting.cut(module, _biased(module, {"weight": 0, "bias": 0}) if linear else {"weight": 1})
    return _Column(source, target, not style.use_local_output, whole)


@dataclass(frozen=True)
class _Summed(_Way):
    """A module whose input lies as `source`, and whose lanes' outputs are summed into `target`."""

    source: Placement
    target: Placement
    known: bool
    """Whether what follows is told how the output lies."""

    def noted(self, y: Tensor, flow: Flow) -> Tensor:
        return flow.noted(y, self.target) if self.known else y


class _Row(_Summed):
    """Input features are cut."""

    def run(self, module: nn.Module, lane: Lane, flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert isinstance(module, nn.Linear)
        x = flow.moved(args[0], self.source, Shard(-1), lane)
        y = flow.summed(F.linear(x, module.weight), self.target, lane)
        if module.bias is not None:
            y = y + (module.bias if isinstance(self.target, Replicate) else copied(module.bias))
        return self.noted(y, flow)


class _Rows(_Summed):
    """An embedding's rows are cut: zeros for what others have."""

    def run(self, module: nn.Module, lane: Lane, flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert isinstance(module, nn.Embedding)
        tokens = flow.moved(args[0], self.source, Replicate(), lane)
        rows, padding = module.weight.shape[0], module.padding_idx
        own = tokens - lane.number * rows
        others = (own < 0) | (own >= rows)
        mine = None if padding is None or padding // rows != lane.number else padding % rows
        found = F.embedding(own.masked_fill(others, 0), module.weight, mine)
        return self.noted(flow.summed(found.masked_fill(others.unsqueeze(-1), 0.0), self.target, lane), flow)


def _row(module: nn.Module, style: RowwiseParallel, cutting: _Cutting) -> _Way:
    source, target = layout_named(style.input_layouts[0]), layout_named(style.output_layouts[0])
    known = not style.use_local_output
    if _plain_kind(module) is nn.Embedding:
        cutting.cut(module, {"weight": 0})
        return _Rows(source, target, known)
    assert isinstance(module, nn.Linear)
    require_multiple(module.in_features, "input features", cutting.lane)
    if target == Shard(-1) and module.bias is not None:
        raise NoParallelForm("its output cannot be cut along its last dimension: the bias is whole")
    cutting.cut(module, {"weight": 1})
    return _Row(source, target, known)


class _Bare(nn.Module):
    """A module's own forward, whatever stands around it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)


@dataclass(frozen=True)
class _OnShards(_Way):
    """Every lane sees its own part of what flows: gradients of parameters are summed, dropouts are one device's."""

    layout: Placement

    def run(self, module: nn.Module, lane: Lane, flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, *others = args
        x = flow.moved(x, self.layout, self.layout, lane)
        if type(module) is nn.Dropout:
            y: Tensor = self._dropped(module, x, lane)
        else:
            seen = {f"module.{name}": copied(own) for name, own in module.named_parameters()}
            y = functional_call(_Bare(module), seen, (x, *others), kwargs)
        return flow.noted(y, self.layout)

    def _dropped(self, module: nn.Dropout, x: Tensor, lane: Lane) -> Tensor:
        assert isinstance(self.layout, Shard)
        drops = module.training and module.p > 0
        return x * dropped(x, self.layout.dim % x.dim(), module.p, lane) if drops else x


@dataclass(frozen=True)
class _Prepared(_Way):
    """Inputs and outputs change how they lie on the lanes; the module does what it does."""

    inputs: PrepareModuleInput | None
    outputs: PrepareModuleOutput | None

    def run(self, module: nn.Module, lane: Lane, flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.inputs is not None:
            args, kwargs = self._entered(self.inputs, lane, flow, args, kwargs)
        found = type(module).forward(module, *args, **kwargs)
        return found if self.outputs is None else self._left(self.outputs, lane, flow, found)

    @staticmethod
    def _entered(
        how: PrepareModuleInput, lane: Lane, flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        known = not how.use_local_output
        sources, targets = how.input_layouts or (), how.desired_input_layouts or ()
        if sources and len(sources) != len(args):
            raise NoParallelForm(f"{len(sources)} input layouts for {len(args)} inputs")
        pairs = list(zip(sources, targets, strict=True)) or [(None, None)] * len(args)
        entered = tuple(flow.prepared(x, *pair, lane, known=known) for x, pair in zip(args, pairs, strict=True))
        named = {
            name: flow.prepared(
                x, how.input_kwarg_layouts.get(name), how.desired_input_kwarg_layouts.get(name), lane, known=known
            )
            for name, x in kwargs.items()
        }
        return entered, named

    @staticmethod
    def _left(how: PrepareModuleOutput, lane: Lane, flow: Flow, found: Any) -> Any:
        outputs = found if isinstance(found, tuple) else (found,)
        if len(outputs) != len(how.output_layouts):
            raise NoParallelForm(f"{len(how.output_layouts)} output layouts for {len(outputs)} outputs")
        known = not how.use_local_output
        left = tuple(
            flow.prepared(y, source, target, lane, known=known)
            for y, source, target in zip(outputs, how.output_layouts, how.desired_output_layouts, strict=True)
        )
        return left if isinstance(found, tuple) else left[0]
