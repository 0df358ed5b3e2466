"""Stage programs call fewer operators than autograd recorded, by torch's bindings, and compute the same bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from traced_stages import Part, layers_of

from contraflow.executor.stage import calls
from contraflow.executor.stage import program as programs
from contraflow.executor.stage.program import StageProgram

aten = torch.ops.aten


class Reached(TorchDispatchMode):
    """Notes the operators that run, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not func.is_view:
            self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def recorded(function: Any, *examples: Tensor) -> fx.GraphModule:
    """A graph of fake tensors whose views tolerate other strides, as a stage's do."""
    with FakeTensorMode() as fake:
        module = make_fx(function)(*(fake.from_tensor(x) for x in examples))
    for node in module.graph.nodes:
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
    module.recompile()
    return module


def operators(module: fx.GraphModule) -> int:
    return sum(node.op == "call_function" for node in module.graph.nodes)


@pytest.mark.parametrize("name", ["mlp-deep", "resnet-tiny", "gpt-tiny", "bert-tiny", "llama-tiny", "lstm-tiny"])
def test_the_same_operators_run_and_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F, B, I and W of all layers; sums alone may be others, which keep no dimensions."""
    part = Part.of(name)
    monkeypatch.setattr(programs, "shorten_calls", lambda program: None)
    plain = StageProgram.of(part.layers, part.x, part.target)
    monkeypatch.undo()
    found = []
    for program in (plain, StageProgram.of(part.layers, part.x, part.target)):
        with Reached() as reached:
            found.append((trained(program, part), reached.operators))
    (tensors, ran), (others, short) = found
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))
    assert ran == short


def trained(program: StageProgram, part: Part) -> list[Tensor]:
    """A loss and all gradients, of B and of I and W, and buffers."""
    parameters, buffers = part.parameters(), part.buffers()
    found = []
    for halves in (False, True):
        sums = part.zeros()
        loss, stash = program.forward(parameters, buffers, part.x, part.target, seed=7)
        assert isinstance(loss, Tensor)
        if halves:
            _, weights = program.backward_input(stash, parameters, torch.ones(()))
            program.backward_weight(weights, sums)
        else:
            program.backward(stash, parameters, torch.ones(()), sums)
        found += [loss, *sums.values()]
    return [*found, *buffers.values()]


def test_a_linear_layer_backwards_is_as_few_calls_as_its_formulas() -> None:
    """Autograd transposes weights and their gradients back and forth, and shapes sums anew."""
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)]
    x = torch.randn(4, 8)
    program = StageProgram.of(layers_of(modules, (1, 2), x), x, None)
    graph = program._backward.__self__  # type: ignore[attr-defined]
    assert operators(graph) <= 2 * 7  # of ReLU, input, weight (and its transpose), bias, and two sums


VIEWS = {
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "flat and back": lambda x: x.reshape(-1).reshape(x.shape),
    "as it is": lambda x: x.reshape(x.shape),
    "thrice": lambda x: x.unsqueeze(1).reshape(x.shape[1], x.shape[0]),
    "expanded": lambda x: x.expand(x.shape),
    "alias": lambda x: aten.alias.default(x),
    "summed": lambda x: x.sum(0, keepdim=True).reshape(x.shape[1]).expand(x.shape),
    "kept": lambda x: x.sum(1, keepdim=True).expand(x.shape),
    "sine": torch.sin,
}


@settings(max_examples=300, deadline=None)
@given(
    chain=st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=9),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    traced_as=st.sampled_from(["whole", "turned", "stretched"]),
    run_as=st.sampled_from(["whole", "turned", "stretched"]),
)
def test_views_of_views(chain: list[str], rows: int, columns: int, traced_as: str, run_as: str) -> None:
    """Whatever the memory of what comes at run time looks like, and however it looked when it was traced."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x
        for name in chain:
            y = VIEWS[name](y)
        return y, y * 2 + 1

    values = torch.arange(1.0, 1 + rows * columns).reshape(rows, columns)
    forms = {
        "whole": values,
        "turned": values.t().contiguous().t(),
        "stretched": values[:1].expand(rows, columns) if rows > 1 else values,
    }
    module = recorded(function, forms[traced_as])
    expected, before = module(forms[run_as]), operators(module)
    calls.shorten_calls(module)
    assert operators(module) <= before
    assert all(map(torch.equal, expected, module(forms[run_as])))


def test_a_square_that_looks_like_its_transpose_is_still_transposed() -> None:
    """All strides are 0 when it is traced, so that both look at the same memory; not at run time."""
    module = recorded(lambda x: x.t() + 1, torch.ones(1, 1).expand(3, 3))
    calls.shorten_calls(module)
    given = torch.arange(9.0).reshape(3, 3)
    assert torch.equal(module(given), given.t() + 1)


def test_a_matrix_that_is_turned_and_shaped_as_before_is_another() -> None:
    """Its transpose lies in memory in order, so that nothing is copied in between."""
    module = recorded(lambda x: x.t().reshape(2, 3) + 1, torch.ones(3, 2).t())
    calls.shorten_calls(module)
    given = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(module(given), given.t().reshape(2, 3) + 1)


@pytest.mark.parametrize("dims", [[], [0], [1], [-1], [0, 1]])
def test_sums_that_keep_dimensions(dims: list[int]) -> None:
    """Shaped without them, with them, and over all where none is named."""
    for shape in ((-1,), (1, -1), (-1, 1), (1, 1, -1)):
        module = recorded(partial(summed, dims, shape), torch.ones(2, 3))
        given = torch.arange(6.0).reshape(2, 3)
        expected = module(given)
        calls.shorten_calls(module)
        assert torch.equal(module(given), expected)


def summed(dims: list[int], shape: tuple[int, ...], x: Tensor) -> Tensor:
    return x.sum(dims, keepdim=True).reshape(shape) * 2


def test_a_binding_that_comes_to_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same name, but another operator or other arguments; nor is one that raises."""
    x = torch.ones(2, 2)
    assert calls.binding(aten.mm.default, (x, x), {}) is torch._C._VariableFunctions.mm
    for wrong in (torch.add, lambda a, b: torch.mm(b.t(), a), lambda a: a):
        calls._KNOWN.clear()
        monkeypatch.setattr(calls, "_named", lambda _, wrong=wrong: [wrong])
        assert calls.binding(aten.mm.default, (x, x), {}) is aten.mm.default
    calls._KNOWN.clear()


def test_operators_that_torch_binds_by_no_name_stay() -> None:
    """Those of others' libraries, too."""
    x = torch.ones(2, 2)
    assert calls.binding(aten.threshold_backward.default, (x, x, 0), {}) is aten.threshold_backward.default
    assert calls.binding(torch.ops.prims.sin.default, (x,), {}) is torch.ops.prims.sin.default
