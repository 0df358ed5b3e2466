"""Parts of a module that no graph of operators can hold (they look at numbers): one operator each, called as they are.

While the rest is exported, such a part is an operator of its own, which only says what it gives: the part is run on
numbers for that, with two numbers of samples. In the layers that are cut from the graph it is the module itself again.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from .deferred import Record, filled

CALL = "contraflow call"
"""In the `meta` of a node that is such an operator: its `Call`."""
PLAIN = (int, float, str, bool, type(None), torch.dtype)
"""What such a part may take and give beside tensors."""


class NotOpaque(Exception):
    """A part that is no such operator either: what it takes or gives is not tensors of sizes that follow."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a part.

    Attributes:
        path: of the part in the whole module.
        leaves, spec: its arguments, flat; None where there is a tensor in `tensors`.
        gives: which of the leaves of what it returns are tensors.
    """

    path: str
    module: nn.Module
    leaves: tuple[Any, ...]
    tensors: tuple[bool, ...]
    spec: TreeSpec
    gives: tuple[int, ...]

    def arguments(self, given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named ones, with these instead of the tensors."""
        rest = iter(given)
        leaves = [next(rest) if tensor else leaf for leaf, tensor in zip(self.leaves, self.tensors, strict=True)]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return args, kwargs


def leaf(found: Any, place: int) -> Any:
    """One of what a part returns, flat."""
    return tree_leaves(found)[place]


@dataclass(frozen=True)
class _Given:
    """A tensor that it returns: its type and how long its sides are with each number of samples."""

    dtype: torch.dtype
    sides: tuple[tuple[int, int], ...]


@dataclass
class _Calls:
    """Of the exports that go on: by number, what every call gives."""

    gives: dict[int, tuple[_Given, ...]] = field(default_factory=dict)
    last: int = 0


_CALLS = _Calls()


@cache
def operator_of() -> Any:
    """`contraflow::opaque`: tensors, and the number of a call, to tensors."""

    def never(given: Sequence[Tensor], call: int) -> list[Tensor]:
        raise NotImplementedError("it stands in graphs that are cut into layers")

    made: Any = torch.library.custom_op(
        "contraflow::opaque", never, mutates_args=(), schema="(Tensor[] given, int call) -> Tensor[]"
    )
    made.register_fake(_empty)
    return torch.ops.contraflow.opaque.default


def _empty(given: Sequence[Tensor], call: int) -> list[Tensor]:
    known = dict(zip(_pairs(given), (side for tensor in given for side in tensor.shape), strict=True))
    return [
        given[0].new_empty([_side(pair, known) for pair in gives.sides], dtype=gives.dtype)
        for gives in _CALLS.gives[call]
    ]


def _side(pair: tuple[int, int], known: Mapping[tuple[int, int], Any]) -> Any:
    """As long as some side that it takes, or growing with one."""
    few, more = pair
    if few == more:
        return few
    if pair in known:
        return known[pair]
    for (least, most), side in known.items():
        if most > least and (more - few) % (most - least) == 0:
            rate = (more - few) // (most - least)
            return side * rate + (few - rate * least)
    raise NotOpaque("a side that does not follow from the samples")


def _pairs(given: Iterable[Tensor]) -> list[tuple[int, int]]:
    """The sides of all tensors, with as many samples as the example has and with one more."""
    sides: list[Any] = [side for tensor in given for side in tensor.shape]
    symbols = {symbol for side in sides if not isinstance(side, int) for symbol in side.node.expr.free_symbols}
    if not symbols:
        return [(int(side), int(side)) for side in sides]
    if len(symbols) > 1:
        raise NotOpaque("more than one number of samples")
    (symbol,) = symbols
    few = next(_samples(side, symbol) for side in sides if not isinstance(side, int) and side.node.expr.has(symbol))
    more = {symbol: few + 1}
    return [
        (side, side) if isinstance(side, int) else (int(side.node.hint), int(side.node.expr.subs(more)))
        for side in sides
    ]


def _samples(side: Any, symbol: Any) -> int:
    """Of the example, from a side that grows evenly with them."""
    expression = side.node.expr
    return int((side.node.hint - expression.subs(symbol, 0)) / expression.diff(symbol))


class _Part:
    """Stands for a part while its module is exported."""

    def __init__(self, path: str, module: nn.Module, record: Record | None, noted: dict[int, Call]) -> None:
        self._path, self._module, self._record, self._noted = path, module, record, noted
        parameters = {id(one): one for one in module.parameters()}
        self._aside = copy.deepcopy(module, parameters)  # exporting takes the module's own away

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        tensors = tuple(isinstance(one, Tensor) for one in leaves)
        given = [one for one in leaves if isinstance(one, Tensor)]
        constants = tuple(None if tensor else one for one, tensor in zip(leaves, tensors, strict=True))
        if not given or not all(isinstance(one, PLAIN) for one in constants):
            raise NotOpaque("it takes what is no tensor")
        call = Call(self._path, self._module, constants, tensors, spec, ())
        found, shape, gives = self._tried(call, given)
        _CALLS.last += 1
        _CALLS.gives[_CALLS.last] = gives
        places = tuple(k for k, one in enumerate(found) if isinstance(one, Tensor))
        self._noted[_CALLS.last] = Call(self._path, self._module, constants, tensors, spec, places)
        made = iter(operator_of()(given, _CALLS.last))
        return tree_unflatten([next(made) if isinstance(one, Tensor) else one for one in found], shape)

    def _tried(self, call: Call, given: Sequence[Tensor]) -> tuple[list[Any], TreeSpec, tuple[_Given, ...]]:
        """What it returns, flat, and sides of its tensors. Raises NotOpaque: they do not follow from those given."""
        pairs = _pairs(given)
        kinds = [(len(tensor.shape), tensor.dtype) for tensor in given]
        with _disable_current_modes():
            module = self._aside if self._record is None else filled(self._aside, self._record)
            with torch._C.DisableTorchFunction(), torch.random.fork_rng(devices=[]), torch.no_grad():
                tries = []
                for which, seed in ((0, 0), (0, 1), (1, 2)):
                    torch.manual_seed(seed)
                    sides = iter(pairs)
                    drawn = [_drawn([next(sides)[which] for _ in range(dims)], kind) for dims, kind in kinds]
                    args, kwargs = call.arguments(drawn)
                    tries.append(tree_flatten(module(*args, **kwargs)))
        (found, shape), (again, _), (more, other) = tries
        shapes = [tuple(one.shape for one in each if isinstance(one, Tensor)) for each in (found, again, more)]
        if shape != other or shapes[0] != shapes[1] or [len(s) for s in shapes[0]] != [len(s) for s in shapes[2]]:
            raise NotOpaque("what it gives has sizes that numbers decide")
        if not shapes[0] or not all(isinstance(one, (Tensor, *PLAIN)) for one in found):
            raise NotOpaque("it gives what is no tensor")
        types = [one.dtype for one in found if isinstance(one, Tensor)]
        lengths = [tuple(zip(few, many, strict=True)) for few, many in zip(shapes[0], shapes[2], strict=True)]
        return found, shape, tuple(map(_Given, types, lengths))


def _drawn(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Numbers; of integers those that any table has."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(2, shape, dtype=dtype) if dtype is torch.bool else torch.zeros(shape, dtype=dtype)


@contextmanager
def standing_in(module: nn.Module, paths: Iterable[str], record: Record | None) -> Iterator[dict[int, Call]]:
    """While it lasts, these parts of a module are operators; yields their calls, as they come, by number."""
    noted: dict[int, Call] = {}
    parts = [(path, module.get_submodule(path)) for path in paths]
    before = [part.__dict__.get("forward") for _, part in parts]
    for path, part in parts:
        part.__dict__["forward"] = _Part(path, part, record, noted)
    try:
        yield noted
    finally:
        for (_, part), own in zip(parts, before, strict=True):
            del part.__dict__["forward"]
            if own is not None:
                part.__dict__["forward"] = own
        for number in noted:
            del _CALLS.gives[number]


def note_calls(graph: fx.Graph, calls: Mapping[int, Call]) -> None:
    """Tells the nodes that are such operators which calls they are."""
    for node in graph.nodes if calls else ():
        if node.op == "call_function" and node.target is operator_of():
            node.meta[CALL] = calls[node.args[1]]


def call_of(node: fx.Node) -> Call | None:
    """Which call a node is; None: any other operator."""
    return node.meta.get(CALL)


def with_fault(module: nn.Module, opaque: Sequence[str], error: BaseException) -> list[str]:
    """These parts and the one in which this was raised, with all others of its class.

    Where it is one of them, which can be no operator either, it gives way to what it is a part of. None: there is none.
    """
    path = part_at_fault(module, error)
    while path and (path in opaque or isinstance(module.get_submodule(path), nn.ModuleList | nn.ModuleDict)):
        path = path.rpartition(".")[0]
    if not path:
        return []
    found = _alike(module, path)
    return [one for one in opaque if not _inside(one, found)] + [one for one in found if not _inside(one, opaque)]


def _alike(module: nn.Module, path: str) -> list[str]:
    """The paths of all parts of the class of that one, but those inside of others."""
    kind = type(module.get_submodule(path))
    found: list[str] = []
    for other, part in module.named_modules():
        if type(part) is kind and other and not _inside(other, found):
            found.append(other)
    return found


def _inside(path: str, others: Iterable[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)


def part_at_fault(module: nn.Module, error: BaseException) -> str | None:
    """The path of the innermost part that was called when this was raised; None: only the module itself."""
    paths = {id(part.__dict__): path for path, part in module.named_modules() if path}
    found: str | None = None
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        for frame, _ in traceback.walk_tb(at.__traceback__):
            if frame.f_code.co_name == "_call_impl":
                found = paths.get(id(getattr(frame.f_locals.get("self"), "__dict__", None)), found)
        at = at.__cause__ or (None if found else at.__context__)
    return found
