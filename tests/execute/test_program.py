"""Stage programs compute what eager torch computes, from an explicit stash of known size."""

from __future__ import annotations

import pytest
import torch
from packaged import installed
from torch import Tensor, nn
from traced_stages import Part, traced

from contraflow.executor.place.memory import StorageTracker, unique_bytes
from contraflow.executor.stage.program import (
    ProgramMismatch,
    TraceError,
    named_buffers,
    named_parameters,
)
from contraflow.models import cross_entropy, names

MODELS = ["gpt-tiny", "gpt-tiny-dropout", "resnet-tiny", "mlp-tiny"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("halves", [False, True], ids=["B", "I+W"])
def test_a_stage_program_equals_eager_torch_bit_for_bit(name: str, dtype: torch.dtype, halves: bool) -> None:
    """Loss, every gradient, the input's gradient and BatchNorm's statistics, with dropout too."""
    case = Part.of(name, first=1, dtype=dtype)
    parameters, buffers, sums = case.parameters(), case.buffers(), case.zeros()
    output, stash = case.program.forward(parameters, buffers, case.x, case.target, seed=5)
    scale = torch.tensor(0.25, dtype=dtype)
    if halves:
        grad, weight_stash = case.program.backward_input(stash, parameters, scale)
        case.program.backward_weight(weight_stash, sums)
    else:
        grad = case.program.backward(stash, parameters, scale, sums)
    leaf, loss = case.plain(seed=5)
    loss.backward(scale)
    assert torch.equal(output, loss)
    assert grad is not None
    assert leaf.grad is not None
    assert torch.equal(grad, leaf.grad)
    for key, parameter in named_parameters(case.layers.modules, case.layers.layer_ids).items():
        assert parameter.grad is not None
        assert torch.equal(sums[key], parameter.grad), key
    for key, buffer in named_buffers(case.layers.modules, case.layers.layer_ids).items():
        assert torch.equal(buffers[key], buffer), key


@pytest.mark.parametrize("name", MODELS)
def test_a_recomputed_stash_is_the_stash_and_changes_nothing(name: str) -> None:
    """F alone gives F's output and buffers; R gives its stash bit for bit, and leaves statistics as F left them."""
    case = Part.of(name, first=1)
    parameters, buffers, bare = case.parameters(), case.buffers(), case.buffers()
    output, stash = case.program.forward(parameters, buffers, case.x, case.target, seed=7)
    assert torch.equal(output, case.program.forward_only(parameters, bare, case.x, case.target, seed=7))
    assert all(torch.equal(buffers[key], bare[key]) for key in buffers)
    again = case.program.remake(parameters, bare, case.x, case.target, seed=7)
    assert all(torch.equal(buffers[key], bare[key]) for key in buffers)
    assert again.nbytes == stash.nbytes
    for mine, theirs in zip(again.tensors, stash.tensors, strict=True):
        assert torch.equal(mine, theirs)


def test_a_forward_without_a_stash_holds_one_layer_at_a_time() -> None:
    """Its peak is far below the stash of three blocks."""
    case = Part.of("gpt-tiny", first=1, last=7)
    parameters = case.parameters()
    with StorageTracker([*parameters.values(), case.x]) as tracker:
        output = case.program.forward_only(parameters, {}, case.x)
        assert tracker.peak_bytes < 0.3 * case.program.stash_bytes
    assert output.shape == case.program.output_spec.shape


class Counting(nn.Module):
    """Scales by how often it ran: R would see another number than F."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        scaled: Tensor = self.linear(x).tanh() * self.count
        return scaled


def test_a_forward_that_reads_what_it_changes_cannot_be_recomputed() -> None:
    """It says so, and runs otherwise."""
    program = traced([Counting()], [0], torch.randn(2, 4))
    assert not program.can_remake
    parameters = {name: tensor.detach() for name, tensor in named_parameters([Counting()], [0]).items()}
    with pytest.raises(ValueError, match="cannot be recomputed"):
        program.remake(parameters, {"0.count": torch.zeros(())}, torch.randn(2, 4))


@pytest.mark.parametrize("name", MODELS)
def test_a_stash_comes_apart_into_bytes_and_together_again(name: str) -> None:
    """Its pieces are of the sizes known before running and are no copies; on copies of them B gives the same."""
    case = Part.of(name, first=1)
    parameters, buffers = case.parameters(), case.buffers()
    layout = case.program.stash_layout
    grads = []
    for travels in (False, True):
        _, stash = case.program.forward(parameters, buffers, case.x, case.target, seed=7)
        if travels:
            kept = {tensor.untyped_storage().data_ptr() for tensor in stash.tensors}
            pieces, packed = layout.pack(stash)
            assert {piece.data_ptr() for piece in pieces} <= kept
            assert sum(layout.piece_bytes) == sum(piece.nbytes for piece in pieces) == packed.nbytes
            stash = packed.unpack([piece.clone() for piece in pieces])
            with pytest.raises(ValueError, match="consumed already"):
                layout.pack(type(stash)([], 0))
        sums = case.zeros()
        grads.append((case.program.backward(stash, parameters, torch.ones(()), sums), sums))
    (one, first), (two, second) = grads
    assert torch.equal(one, two)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_the_input_half_of_a_first_stage_ends_at_its_first_layer() -> None:
    """Nobody wants its input's gradient, but I still does all but the first layer: masks and softmaxes are gone."""
    program = Part.of("gpt-tiny-dropout", last=4).program
    assert not program.needs_input_grad
    assert program.weight_stash_bytes < 0.75 * program.stash_bytes
    assert "0.token.weight" in program.accumulator_names


@pytest.mark.parametrize("name", MODELS)
def test_the_stash_is_as_large_as_known_before_running(name: str) -> None:
    """Fake tensors know the bytes and shapes of the stash and of what I leaves for W."""
    case = Part.of(name, first=1)
    parameters, buffers = case.parameters(), case.buffers()
    _, stash = case.program.forward(parameters, buffers, case.x, case.target)
    assert unique_bytes(stash.tensors) == stash.nbytes == case.program.stash_bytes
    for tensor, spec in zip(stash.tensors, case.program.stash_specs, strict=True):
        assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (spec.shape, spec.stride, spec.dtype)
    _, weight_stash = case.program.backward_input(stash, parameters, torch.ones(()))
    assert unique_bytes(weight_stash.tensors) == weight_stash.nbytes == case.program.weight_stash_bytes


def test_i_and_w_hold_about_one_stash_between_them() -> None:
    """Splitting the backward of a transformer block holds no more than 1.02 stashes between I and W."""
    program = Part.of("gpt-tiny", first=1, last=7).program
    assert program.weight_stash_bytes <= 1.02 * program.stash_bytes


def test_the_stash_holds_neither_parameters_nor_running_statistics() -> None:
    """Weight versions and BatchNorm's buffers stay with the device, whatever the stash travels through."""
    for name in MODELS:
        case = Part.of(name, first=1)
        parameters, buffers = case.parameters(), case.buffers()
        _, stash = case.program.forward(parameters, buffers, case.x, case.target)
        kept = {tensor.data_ptr() for tensor in [*parameters.values(), *buffers.values()]}
        assert kept.isdisjoint(tensor.data_ptr() for tensor in stash.tensors)


def test_gradients_accumulate_over_micro_batches() -> None:
    """Two backwards add up in the accumulators, and the order of micro-batches in flight is free."""
    case = Part.of("gpt-tiny", last=3)
    parameters, sums = case.parameters(), case.zeros()
    stashes = [case.program.forward(parameters, {}, case.x, seed=seed)[1] for seed in (0, 1)]
    grad = torch.ones(case.program.output_spec.shape)
    for stash in reversed(stashes):
        assert case.program.backward(stash, parameters, grad, sums) is None
    once = case.zeros()
    case.program.backward(case.program.forward(parameters, {}, case.x)[1], parameters, grad, once)
    for key, total in sums.items():
        torch.testing.assert_close(total, 2 * once[key])


def test_dropout_depends_on_the_seed_and_not_on_the_partition() -> None:
    """Two stages or one, a layer drops the same; the caller's random state is left alone."""
    whole = Part.of("gpt-tiny-dropout", last=4)
    front, back = Part.of("gpt-tiny-dropout", last=2), Part.of("gpt-tiny-dropout", first=2, last=4)
    before = torch.get_rng_state()
    expected, _ = whole.program.forward(whole.parameters(), {}, whole.x, seed=9)
    middle, _ = front.program.forward(front.parameters(), {}, front.x, seed=9)
    output, _ = back.program.forward(back.parameters(), {}, middle, seed=9)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(output, expected)
    assert not torch.equal(output, whole.program.forward(whole.parameters(), {}, whole.x, seed=10)[0])
    assert whole.program.has_random
    assert not Part.of("gpt-tiny").program.has_random


def test_a_backward_consumes_its_stash_and_frees_it_on_the_way() -> None:
    """The peak of B stays below stash plus one layer's gradients, and nothing is left afterwards."""
    case = Part.of("gpt-tiny", first=1, last=7)
    parameters, sums = case.parameters(), case.zeros()
    grad = torch.ones(case.program.output_spec.shape)
    with StorageTracker([*parameters.values(), *sums.values(), case.x, grad]) as tracker:
        output, stash = case.program.forward(parameters, {}, case.x)
        size = stash.nbytes
        del output
        tracker.reset_peak()
        result = case.program.backward(stash, parameters, grad, sums)
        assert tracker.peak_bytes < 1.2 * size
        assert result is not None
        assert tracker.current_bytes == result.nbytes
    with pytest.raises(ValueError, match="consumed already"):
        case.program.backward(stash, parameters, grad, sums)


def test_a_tracker_sees_tensors_freed_after_it_has_ended() -> None:
    """Current bytes follow releases outside the context; views count once."""
    with StorageTracker() as tracker:
        kept = torch.ones(100)
        view = kept.view(10, 10)
        torch.ones(50).sum().item()
    assert tracker.current_bytes == 400
    assert tracker.peak_bytes >= 600
    del kept
    assert tracker.current_bytes == 400
    del view
    assert tracker.current_bytes == 0


class Scaled(nn.Module):
    """A layer whose behaviour hangs on a Python number, which tracing bakes in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.linear(x) * self.scale
        return scaled


def test_the_self_check_finds_a_changed_scale_and_names_the_stage() -> None:
    """What tracing baked in wrongly is an error before training, with both numbers."""
    layer, x = Scaled(), torch.randn(2, 4)
    program = traced([layer], [3], x)
    program.self_check([layer], x)
    layer.scale = 1.001
    with pytest.raises(ProgramMismatch, match=r"stage of layers 3: output\[0\] is .*, eager torch has"):
        program.self_check([layer], x)


@pytest.mark.parametrize("name", [name for name in names() if "tiny" in name])
def test_the_self_check_passes_on_the_zoo_and_changes_nothing(name: str) -> None:
    """Checked on other data than traced; modules, their gradients and buffers stay as they were."""
    case = Part.of(name)
    assert isinstance(case.model.data, str)
    x, target = installed(case.model.data).batch(1, 1, 1, 4)
    before = case.buffers()
    case.program.self_check(case.layers.modules, x, target, seed=3)
    after = case.buffers()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(p.grad is None for module in case.layers.modules for p in module.parameters())


class Odd(nn.Module):
    """Parameters frozen, unused, and tied, and a constant buffer that the backward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.used.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 2.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.frozen(self.used(self.tied(x)).tanh()) * self.mask
        return y.view(-1, 2, 2).transpose(1, 2)


def test_frozen_unused_and_tied_parameters_are_treated_as_autograd_does() -> None:
    """Only what autograd gives a gradient gets an accumulator."""
    layer, x = Odd(), torch.randn(3, 4)
    program = traced([layer], [1], x)
    assert set(program.accumulator_names) == {"1.used.weight", "1.used.bias", "1.tied.bias"}
    program.self_check([layer], x)


def test_a_stage_that_cannot_be_traced_is_an_error_that_names_it() -> None:
    """Data-dependent control flow, and layers that return no tensor."""

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if bool(x.sum() > 0) else -x

    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(TraceError, match="stage of layers 0 cannot be traced"):
        traced([Branching()], [0], torch.randn(2))
    with pytest.raises(TraceError, match="layer 0 returns a tuple"):
        traced([Pair()], [0], torch.randn(2))


def test_a_wrong_input_is_an_error_that_names_the_stage() -> None:
    """Programs are traced for one shape; a loss needs its target."""
    case = Part.of("mlp-tiny")
    with pytest.raises(ValueError, match="traced for"):
        case.program.forward(case.parameters(), {}, case.x[:2], case.target)
    with pytest.raises(ValueError, match="needs a target"):
        case.program.forward(case.parameters(), {}, case.x)
    with pytest.raises(TraceError, match="needs a target"):
        traced(case.layers.modules, case.layers.layer_ids, case.x, cross_entropy)
