"""The operators of a stage program by as few and as short calls as there are.

A call from Python takes some microseconds, as long as a small operator computes. Of what autograd records, views of
views that end where they began are dropped, and operators are called by torch's own bindings where these come to the
same operator: half the time of a call by its name in `torch.ops`, which matches every argument with the operator's
schema anew.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from .split import storages

_aten = torch.ops.aten
_RESHAPED = (_aten.reshape.default, _aten.expand.default, _aten.alias.default)
_VIEWS = (*_RESHAPED, _aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.unsqueeze.default)
"""Where an element of the result comes from depends on shapes alone, whatever the strides at run time are."""
_SUM = _aten.sum.dim_IntList

Function = Callable[..., Any]


def shorten_calls(program: fx.GraphModule) -> None:
    """Rewrites the program in place; its nodes still have their fake tensors in meta["val"]."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.target in _VIEWS:
            _see_through(node)
    for node in reversed(list(graph.nodes)):
        if node.target in _VIEWS and not node.users:
            graph.erase_node(node)
    for node in graph.nodes:
        known = all("val" in used.meta for used in node.all_input_nodes)
        if known and isinstance(node.target, torch._ops.OpOverload):
            node.target = binding(node.target, *fx.map_arg((node.args, node.kwargs), lambda used: used.meta["val"]))
    program.recompile()


def _see_through(view: fx.Node) -> None:
    """Uses what the view looks at instead, where both look alike, or less of what led to it."""
    base = view.all_input_nodes[0]
    if view.target is _aten.reshape.default and len(base.users) == 1:
        if base.target is _aten.reshape.default:
            view.args = (base.args[0], *view.args[1:])
        elif base.target is _SUM and base.args[2:] == (True,) and _without_kept(base) == _shape(view):
            base.args = (*base.args[:2], False)
            base.meta["val"] = view.meta["val"]
    base = view.all_input_nodes[0]
    same = view.target in _RESHAPED and _shape(view) == _shape(base)
    while not (same or _alike(view, base)):
        if base.target not in _VIEWS:
            return
        base = base.all_input_nodes[0]
    view.replace_all_uses_with(base)


def _alike(view: fx.Node, base: fx.Node) -> bool:
    """Whether both are all of the same memory in the same order: then views between them moved no element."""
    one, other = view.meta["val"], base.meta["val"]
    whole = one.shape == other.shape and one.is_contiguous() and other.is_contiguous()
    return bool(whole and one.storage_offset() == other.storage_offset() and storages(one) == storages(other))


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _without_kept(summed: fx.Node) -> tuple[int, ...]:
    """The shape of a sum without the dimensions of 1 that it keeps: all, where none is named."""
    shape = _shape(summed)
    gone = {dim % len(shape) for dim in summed.args[1] or range(len(shape))}  # type: ignore[union-attr,operator]
    return tuple(size for dim, size in enumerate(shape) if dim not in gone)


# ------------------------------------------------------------ bindings

_KNOWN: dict[Hashable, Function] = {}
"""By operator and the kinds of its arguments: which of a binding's signatures is taken depends on nothing else."""


def binding(operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function:
    """What calls the operator with such arguments, fake tensors among them; the operator itself, where nothing else."""
    key = operator, _kind(args), _kind(tuple(kwargs.items()))
    found = _KNOWN.get(key)
    if found is None:
        candidates = (function for function in _named(operator) if _same(operator, function, args, kwargs))
        found = _KNOWN[key] = next(candidates, operator)
    return found


def _named(operator: torch._ops.OpOverload) -> list[Function]:
    """Torch's bindings of this name."""
    if operator.namespace != "aten":
        return []
    name = operator._schema.name.removeprefix("aten::")
    places = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)
    found = (getattr(place, name, None) for place in places)
    return [f for f in found if isinstance(f, (types.BuiltinFunctionType, types.MethodDescriptorType))]


def _kind(value: Any) -> Hashable:
    """What decides how an argument is taken."""
    if isinstance(value, Tensor):
        return Tensor, value.dim() == 0
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_kind, value))
    return (value,) if isinstance(value, str) else (type(value),)


class _Reached(Exception):
    """The operator that a call comes to, and with what."""


class _Halt(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets no operator run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Reached(func, args, kwargs or {})


def _reached(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(operator, arguments) that the call comes to; None: to none, or it is no call that there is."""
    try:
        with torch.no_grad(), _Halt():  # type: ignore[no-untyped-call]
            function(*args, **kwargs)
    except _Reached as reached:
        return reached.args
    except (TypeError, RuntimeError, IndexError, ValueError):
        pass
    return None


def _same(operator: torch._ops.OpOverload, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether both come to the same operator with the same arguments."""
    by_name, bound = _reached(operator, args, kwargs), _reached(function, args, kwargs)
    if by_name is None or bound is None or by_name[0] is not bound[0]:
        return False
    return _equal(by_name[1:], bound[1:])


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    if isinstance(one, (tuple, list)):
        alike = isinstance(other, (tuple, list)) and len(one) == len(other)
        return alike and all(map(_equal, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)
