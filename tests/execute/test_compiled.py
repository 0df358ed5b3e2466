"""Stage programs through torch's compiler: the same numbers, checked against eager torch before training."""

from __future__ import annotations

import shutil

import pytest
import torch
from runs import STEPS, Case, assert_equals_reference, planned
from traced_stages import traced

from contraflow.executor.basics.errors import RunError
from contraflow.executor.run.launch import execute
from contraflow.executor.stage.compiled import CompiledPart
from contraflow.models import build_layer, resolve
from contraflow.models.data import load

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("stash", ["keep", "offload"])
def test_compiled_programs_equal_single_process(stash: str) -> None:
    """A tiny GPT, with the self-check on the compiled programs; a stash that leaves comes apart as planned."""
    case = Case("1f1b", "gpt-tiny", 2, 4, stash=stash)
    result = execute(planned(case), STEPS, transport="threads", compiled=True, return_state=True)
    assert_equals_reference(case, result)


@needs_compiler
@pytest.mark.slow
def test_a_compiled_part_adds_in_place_and_empties_its_list() -> None:
    """Arguments die at their last use, as in programs that are not compiled; every layout in memory works."""

    def program(arguments: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x, y, total = arguments
        arguments.clear()
        total.add_(x @ y)
        return (x.t() + y,)

    part = CompiledPart(program, "a part")
    x, y, total = torch.randn(3, 3), torch.randn(3, 3), torch.zeros(3, 3)
    for first in (x, x.t()):
        before, given = total.clone(), [first, y, total]
        (result,) = part(given)
        assert given == []
        torch.testing.assert_close(result, first.t() + y)
        torch.testing.assert_close(total, before + first @ y)


def test_random_layers_run_uncompiled_and_say_so() -> None:
    """The compiler's dropout would draw other numbers than every other plan's."""
    from contraflow.executor.stage.compiled import compile_program

    model = resolve("gpt-tiny-dropout")
    assert isinstance(model.data, str)
    x, _ = load(model.data).batch(0, 0, 0, 2)
    program = traced([build_layer(model.layers[0], 0, 0)], [0], x)
    assert program.has_random
    with pytest.warns(UserWarning, match="stage of layers 0 draws random numbers: it runs uncompiled"):
        assert not compile_program(program)


def test_no_compiler_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before training starts."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RunError, match=r"needs a C\+\+ compiler: no no-such-compiler found"):
        execute(planned(Case("1f1b", "mlp-tiny", 2, 4)), 1, transport="threads", compiled=True)
