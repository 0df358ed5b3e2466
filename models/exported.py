"""Any module of torch as layers: exported to one graph of operators, folded along its modules into pieces of that.

`torch.export` traces the module once, with any number of samples. Blocks that repeat (children of one kind in a list)
become layers, each of two halves where one tensor passes between these; what is before, between and behind them are
layers too where they have parameters. What several layers use and no parameter decides, such as masks, positions and
rotary tables, each makes again from the data; what parameters decide is sent to everybody who takes it.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import UserError
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_unflatten

from .deferred import Record, filled, require_known, with_values
from .exported_graph import Cutting, Segment, blocks_of, segments_of
from .exported_layers import PATHS, layer_of, loss_of, with_at_most
from .exported_nodes import cheap_nodes, is_tensor
from .exported_opaque import note_calls, part_at_fault, standing_in, with_fault
from .once import Built, build, drawing
from .sample_row import TARGETS

Made = tuple[nn.Module, Any]


@runtime_checkable
class Loadable(Protocol):
    """A function whose module starts from values of its own."""

    def fill(self, module: nn.Module, record: Record | None) -> None:
        """Gives them to the module that it has made; where that has no memory yet, to its record."""


class NotExported(ValueError):
    """A module that cannot be one graph of operators; names module and line."""


@dataclass(frozen=True)
class Entry:
    """One layer: its module, what it takes and gives by name, and the block that it is half of."""

    name: str
    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    block: str | None


def is_module(made: object) -> bool:
    """Whether a user's function has returned a module with example inputs."""
    return isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module) and not _is_entry(made)


def _is_entry(made: tuple[Any, Any]) -> bool:
    return isinstance(made[1], nn.Module) or (
        isinstance(made[1], tuple | list) and len(made[1]) == 2 and isinstance(made[1][1], nn.Module)
    )


@dataclass(frozen=True, eq=False)
class Folded:
    """A user's function that returns a module with example inputs, as one that returns layers."""

    factory: Callable[[], Made]

    def __call__(self) -> tuple[Entry, ...]:
        return self._folded(Built(self.factory(), None, drew=True))

    def under(self, seed: int) -> Built:
        """What a call gives under that seed, without memory where that can be."""
        return self.of(build(self.factory, seed), seed)

    def of(self, built: Built, seed: int) -> Built:
        """The layers of what the function returned under that seed. Raises NotExported."""
        if built.record is not None:
            try:
                self._fill(built)
                entries = self._folded(built)
                require_known((entry.module for entry in entries), built.record)
                return Built(entries, built.record, drew=True)
            except Exception:  # what is wrong with it, is wrong in memory too, and said there
                with drawing(seed):
                    built = Built(self.factory(), None, drew=True)
        self._fill(built)
        return Built(self._folded(built), None, drew=True)

    def _fill(self, built: Built) -> None:
        factory: object = self.factory
        if isinstance(factory, Loadable):
            factory.fill(built.made[0], built.record)

    def _folded(self, built: Built) -> tuple[Entry, ...]:
        module, example = built.made
        with _disable_current_modes():  # what has no memory is nobody's memory
            example = with_values(example, built.record)
            entries, loss = _folded(module, example, built.record)
            loss = loss if loss is None or built.record is None else filled(loss, built.record)
        _LOSSES.setdefault(self, loss)
        return entries

    def __reduce__(self) -> Any:
        return folded, (self.factory,)

    def loss(self) -> OwnLoss | None:
        """The module's own; None: it has none."""
        return None if _LOSSES[self] is None else OwnLoss(self)


_LOSSES: dict[Folded, nn.Module | None] = {}


@cache
def folded(factory: Callable[[], Made]) -> Folded:
    """One object for a function: what is kept of its calls is found by it."""
    return Folded(factory)


@dataclass(frozen=True)
class OwnLoss:
    """The loss that a module computes of its targets."""

    of: Folded

    def __call__(self, found: Any, target: Tensor) -> Tensor:
        if self.of not in _LOSSES:
            self.of()
        graph = _LOSSES[self.of]
        assert graph is not None
        loss: Tensor = graph(*(found if isinstance(found, tuple) else (found,)), target)
        return loss


def _folded(module: nn.Module, example: Any, record: Record | None) -> tuple[tuple[Entry, ...], nn.Module | None]:
    args, kwargs = _arguments(example)
    try:
        exported, whole = _graph_of(module.train(), args, kwargs, record)
    except NotExported:
        if isinstance(module, nn.Sequential) and len(args) == 1 and len(module) > 1:
            return tuple(_in_sequence(module)), None
        raise
    graph = whole.graph
    flat = next(node for node in graph.nodes if node.op == "output").args[0]
    result = tree_unflatten(list(flat), exported.call_spec.out_spec) if exported.call_spec.out_spec else flat[0]
    given = [node for node in graph.nodes if node.op == "placeholder"]
    label = next((node for node in given if node.name in TARGETS), None)
    tail: set[fx.Node] = set() if label is None else _behind(label)
    ends = [_output(result, label is not None)]
    loss = None
    if label is not None and ends[0] in tail:
        loss, ends = loss_of(whole, ends[0], label, tail)
        if any(True for _ in loss.parameters()):
            raise NotExported(
                f"{type(module).__name__}: its {label.name} go through parameters, not only to its loss: give what the "
                "decoder reads as an input of its own"
            )
    main = [node for node in graph.nodes if node in _needed(ends) and node not in tail]
    names = [node.name for node in given if node in main]
    called = {node: "input" if len(names) == 1 else f"input.{node.name}" for node in given if node in main}
    cheap = cheap_nodes(main)
    cutting = Cutting([n for n in main if n.op == "call_function" and n not in cheap], ends)
    segments = segments_of(cutting, blocks_of(module, cutting))
    entries = tuple(_entries(whole, segments, ends, called, _most_samples(exported)))
    _name(entries, module)
    return entries, loss


MOST_KINDS = 8
"""Of parts that are no graphs, before a module is refused."""


def _graph_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], record: Record | None
) -> tuple[torch.export.ExportedProgram, fx.GraphModule]:
    """The module as a graph; parts that cannot be one are called in it. Raises NotExported: it is no graph itself."""
    opaque: list[str] = []
    refused: NotExported | None = None
    while refused is None or opaque:
        try:
            with standing_in(module, opaque, record) as calls:
                exported = _exported(module, args, kwargs)
                whole = exported.module()
                assert isinstance(whole, fx.GraphModule)
                note_calls(whole.graph, calls)
                _without_checks(whole.graph)
                return exported, whole
        except NotExported as error:
            refused = refused or error
            kinds = {type(module.get_submodule(path)) for path in opaque}
            again = len(kinds) < MOST_KINDS and not isinstance(module, nn.Sequential)
            opaque = with_fault(module, opaque, error) if again else []
    raise refused


def _in_sequence(module: nn.Sequential) -> Iterator[Entry]:
    """Its children, each of which takes what the one before it gives: they need not be graphs."""
    before = "input"
    for name, child in module.named_children():
        yield Entry(name, child, (before,), (), None)
        before = name


def _name(entries: Sequence[Entry], module: nn.Module) -> None:
    """Notes in every layer under which names the module's state has what is in it."""
    names: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    known = {name: found for found in names.values() for name in found}
    for entry in entries:
        assert isinstance(entry.module, fx.GraphModule)
        meta: dict[str, Any] = entry.module.meta
        meta[PATHS] = {own: known[path] for own, path in meta[PATHS].items() if path in known}


def state_names(layer: nn.Module) -> Mapping[str, Sequence[str]]:
    """By the names of a layer's tensors: those that the state of the module has them under, which it was cut from.

    Of a layer that was not exported there are none.
    """
    found: Mapping[str, Sequence[str]] = layer.meta.get(PATHS, {}) if isinstance(layer, fx.GraphModule) else {}
    return found


def _entries(
    whole: fx.GraphModule,
    segments: Sequence[Segment],
    ends: Sequence[fx.Node],
    called: Mapping[fx.Node, str],
    most: int | None,
) -> list[Entry]:
    home = {node: number for number, segment in enumerate(segments) for node in segment.nodes}
    names = dict(called)
    found = []
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        gives = [n for n in segment.nodes if is_tensor(n) and any(home.get(user, number) > number for user in n.users)]
        gives = [*gives, *(n for n in ends if n not in gives)] if last else gives
        gives += [] if last else [n for n in ends if home.get(n) == number and n not in gives]
        module, takes = layer_of(whole, segment, gives, home, number)
        if number == 0 and most is not None:
            with_at_most(most, module)
        if strange := next((node for node in takes if node not in names), None):
            raise NotExported(f"{segment.name} takes {strange.name}, which is not among its inputs")
        outputs = tuple(f"x{k}" for k in range(len(gives))) if len(gives) > 1 else ()
        names |= {n: f"{segment.name}.x{k}" if outputs else segment.name for k, n in enumerate(gives)}
        found.append(Entry(segment.name, module, tuple(names[node] for node in takes), outputs, segment.block))
    return found


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def own(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value  # two that are one tensor would stay one

    if isinstance(example, Mapping):
        return (), {name: own(value) for name, value in example.items()}
    return tuple(map(own, (example,) if isinstance(example, Tensor) else example)), {}


def _exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    samples = torch.export.Dim("samples")

    def dynamic(value: Any) -> Any:
        return {0: samples} if isinstance(value, Tensor) and value.dim() else None

    shapes = {name: dynamic(value) for name, value in kwargs.items()} if kwargs else tuple(map(dynamic, args))
    export = partial(torch.export.export, module, args, kwargs, strict=False)
    try:
        with redirect_stderr(StringIO()):  # torch prints the graph that it has until it fails
            try:
                return export(dynamic_shapes=shapes)
            except UserError as error:
                bounded = _bounded(error, shapes)
                if bounded is None:
                    raise
                return export(dynamic_shapes=bounded)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        part = part_at_fault(module, error)
        what = f"{part}: {reason}" if part else reason
        raise NotExported(f"{type(module).__name__} cannot be exported: {what}{where}") from error


def _bounded(error: UserError, shapes: Any) -> Any:
    """The shapes where a module does something else for many samples than for few: for so many as torch says.

    None: for no others than the example has, or it is another fault.
    """
    before, heading, fixes = str(error).partition("Suggested fixes:\n")
    try:
        found = refine_dynamic_shapes_from_suggested_fixes(before + heading + fixes.partition("\n\n")[0], shapes)
    except (UserError, AssertionError, ValueError):
        return None
    sizes = {size for dims in (found.values() if isinstance(found, dict) else found) if dims for size in dims.values()}
    return found if all(isinstance(size, torch.export.Dim) for size in sizes) else None


def _most_samples(exported: torch.export.ExportedProgram) -> int | None:
    """For how many the graph is right; None: for any number."""
    ranges = exported.range_constraints.values()
    return min((int(found.upper) for found in ranges if found.upper.is_Integer), default=None)


def _without_checks(graph: fx.Graph) -> None:
    """Removes what only looks at shapes and types, and what nobody reads."""
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "call_module", "get_attr") and not node.users:
            graph.erase_node(node)


def _output(result: Any, with_target: bool) -> fx.Node:
    """The loss, where there is one and a target, or what the loss is of."""
    fields = dict(result) if isinstance(result, Mapping) else {}
    for name in (*(("loss",) if with_target else ()), "logits"):
        found = fields.get(name, getattr(result, name, None))
        if isinstance(found, fx.Node):
            return found
    if isinstance(result, fx.Node):
        return result
    several = list(fields.values()) if fields else list(result) if isinstance(result, tuple | list) else []
    found = next((node for node in several if isinstance(node, fx.Node)), None)
    if found is None:
        raise NotExported(f"it returns a {type(result).__name__} without a tensor")
    return found


def _behind(start: fx.Node) -> set[fx.Node]:
    """All that it decides, shapes apart."""
    found, waiting = {start}, [start]
    while waiting:
        for user in waiting.pop().users:
            if (
                user not in found
                and user.op == "call_function"
                and (is_tensor(user) or user.target is operator.getitem)
            ):
                found.add(user)
                waiting.append(user)
    return found


def _needed(ends: Sequence[fx.Node]) -> set[fx.Node]:
    found, waiting = set(ends), list(ends)
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found
