"""Weight gradients are added up by the products that compute them, wherever that is the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from contraflow.executor.accumulation import accumulate_products
from contraflow.executor.memory import StorageTracker
from contraflow.executor.program import StageProgram

_aten = torch.ops.aten
TIMES = 5


def added(transposed: int = 0, dtype: torch.dtype = torch.float32, between: str = "", twice: bool = False) -> fx.Graph:
    """accumulator.add_(a @ b) as a graph of (accumulator, a, b); `between`: what happens after the product."""
    graph = fx.Graph()
    accumulator, a, b = (graph.placeholder(name) for name in ("accumulator", "a", "b"))
    product = graph.call_function(_aten.mm.default, (a, b))
    with FakeTensorMode():
        product.meta["val"] = torch.empty(2, 2, dtype=dtype)
    if between == "factor":
        graph.call_function(_aten.mul_.Scalar, (a, 0.0))
    elif between == "other accumulator":
        graph.call_function(_aten.add_.Tensor, (graph.placeholder("other"), a))
    value = product
    for _ in range(transposed):
        value = graph.call_function(_aten.t.default, (value,))
    graph.call_function(_aten.add_.Tensor, (accumulator, value))
    graph.output((product,) if twice else ())
    return graph


def operators(graph: fx.Graph) -> set[object]:
    return {node.target for node in graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("transposed", [0, 1, 2, 3])
def test_a_product_goes_into_its_accumulator(transposed: int) -> None:
    """The same sum, through transpositions too."""
    graph = added(transposed)
    accumulate_products(graph)
    graph.lint()
    assert operators(graph) <= {_aten.addmm_.default, _aten.t.default}
    accumulator, a, b = torch.randn(2, 2), torch.randn(2, 3), torch.randn(3, 2)
    product = (a @ b).t() if transposed % 2 else a @ b
    expected = accumulator + product
    fx.GraphModule(nn.Module(), graph)(accumulator, a, b)
    torch.testing.assert_close(accumulator, expected)


@pytest.mark.parametrize(
    "graph",
    [added(dtype=torch.bfloat16), added(between="factor"), added(twice=True)],
    ids=["16 bit into a wider sum", "a factor changes after the product", "the product is returned"],
)
def test_what_would_not_be_the_same_stays(graph: fx.Graph) -> None:
    """The product, and its addition."""
    accumulate_products(graph)
    assert operators(graph) >= {_aten.mm.default, _aten.add_.Tensor}


def test_other_accumulators_may_change_meanwhile() -> None:
    """As a bias's, whose gradient autograd computes between a weight's and its transposition."""
    graph = added(2, between="other accumulator")
    accumulate_products(graph)
    assert _aten.mm.default not in operators(graph)


def test_no_weight_gradient_is_ever_there_by_itself() -> None:
    """A backward takes less memory than the weight whose gradient it adds up, and sums are those of autograd."""
    linear, x = nn.Linear(256, 256), torch.randn(4, 256)
    program = StageProgram.trace([linear], [1], x)
    parameters = {f"1.{name}": p.detach() for name, p in linear.named_parameters()}
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    gradient = torch.randn(4, 256)
    for _ in range(TIMES):
        stash = program.forward(parameters, {}, x)[1]
        with StorageTracker([*parameters.values(), *sums.values(), x, gradient]) as tracker:
            program.backward(stash, parameters, gradient, sums)
        assert tracker.peak_bytes < linear.weight.nbytes / 4
        _autograd(linear, x, gradient)
    for name, p in linear.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(sums[f"1.{name}"], p.grad)


def _autograd(linear: nn.Linear, x: Tensor, gradient: Tensor) -> None:
    linear(x.clone().requires_grad_()).backward(gradient)
