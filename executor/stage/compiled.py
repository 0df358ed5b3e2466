"""Stage programs through torch's compiler (Inductor), with what makes them programs: arguments die at their last use.

`torch.compile` would hold every argument, so the whole stash, until a program returns. Inductor's own entry takes its
arguments in a list that it empties, as our programs do; what it wants is a functional graph, made here.
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from ..basics import RunError

_COMPILE_LOCK = threading.Lock()  # the compiler's state is the process's
_COMPILERS = ("g++", "clang++", "c++")

Program = Callable[[list[Any]], tuple[Tensor, ...]]


def require_compiler(device: str) -> None:
    """Raises RunError: what torch's compiler needs for the device is not here."""
    if device == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise RunError("compiling for cuda needs triton, which is not installed")
    wanted = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ((wanted,) if wanted else _COMPILERS)):
        raise RunError(f"compiling needs a C++ compiler: no {wanted or ' or '.join(_COMPILERS)} found (CXX names one)")


def why_uncompiled(program: Any) -> str:
    """Why a `StageProgram` must stay as it is; empty where it need not."""
    return "draws random numbers" if program.has_random else "has recurrent layers" if program.needs_grad_mode else ""


def compile_program(program: Any) -> bool:
    """Replaces the parts of a `StageProgram` by compiled ones; each compiles when it is first called.

    A program with random layers stays as it is, with a warning: the compiler draws other numbers. So does one with
    fused recurrent layers. Returns whether it was compiled.
    """
    kept = why_uncompiled(program)
    if kept:
        warnings.warn(f"{program.label} {kept}: it runs uncompiled", stacklevel=2)
        return False
    program.replace_parts(lambda name, part: CompiledPart(part, f"{program.label}, {name}"))
    return True


class CompiledPart:
    """One part of a stage program. Compiled once for all layouts of its arguments in memory that occur.

    Args:
        program: takes a list of tensors and, F and R, a last argument that it ignores.
    """

    def __init__(self, program: Program, label: str) -> None:
        self._program = program
        self._label = label
        self._made: dict[tuple[tuple[int, ...], ...], Program] = {}

    def __call__(self, arguments: list[Any]) -> tuple[Tensor, ...]:
        seeded = not isinstance(arguments[-1], Tensor)
        if seeded:
            arguments.pop()
        layout = tuple(tensor.stride() for tensor in arguments)
        made = self._made.get(layout)
        if made is None:
            made = self._compile(layout, arguments, seeded)
        given = list(arguments)
        arguments.clear()
        return tuple(made(given))

    def _compile(self, layout: tuple[tuple[int, ...], ...], arguments: list[Tensor], seeded: bool) -> Program:
        with _COMPILE_LOCK, _disable_current_modes(), torch.no_grad():
            if layout not in self._made:
                try:
                    self._made[layout] = _compiled(self._program, arguments, [0] if seeded else [])
                except Exception as error:
                    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                    raise RunError(f"{self._label} cannot be compiled: {type(error).__name__}: {reason}") from error
            return self._made[layout]


def _compiled(program: Program, arguments: list[Tensor], rest: list[int]) -> Program:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        return program([*tensors, *rest])

    with FakeTensorMode():
        examples = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in arguments]
        functional = functionalize(flat, remove="mutations")  # what F and B change in place becomes copies at the end
        graph = make_fx(functional, decomposition_table=select_decomp_table())(*examples)
        made: Program = compile_fx_inner(graph, examples)
    return made
