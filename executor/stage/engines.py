"""Which engine runs a stage: the graph of it, or torch's eager autograd where there can be no right graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ...models.wiring import Carried
from ..basics import Engine
from .compiled import compile_program
from .eager import EagerProgram
from .eager_probe import isolated
from .pauses import with_pauses
from .program import StageProgram
from .protocol import AnyProgram
from .selfcheck import ProgramMismatch
from .traced import Sharing, traced_anew
from .tracing import StageLayers, TraceError


class EngineNotice(UserWarning):
    """A stage or layer runs on the eager engine although nobody asked for it; the message says why."""


def alone(said: str | None) -> list[str | None]:
    """A rank that is a device by itself hears itself."""
    return [said]


@dataclass(frozen=True)
class Building:
    """How programs are built.

    Attributes:
        check_seed: of the random layers in the self-check; None: no check.
        stash_limit: as of an `EagerProgram`.
        compiled: whether graphs go through torch's compiler.
        pauses: whether those that do not pause between operators, see `pauses`.
        sharing: where a graph may have been traced before.
        among_team: what all ranks of a team say, by lane, when each says something: they run one engine.
    """

    engine: Engine = "auto"
    check_seed: int | None = None
    stash_limit: int = 0
    compiled: bool = False
    pauses: bool = False
    sharing: Sharing = traced_anew
    among_team: Callable[[str | None], list[str | None]] = alone


def build_program(
    layers: StageLayers, x: Carried, target: Tensor | None, how: Building
) -> tuple[AnyProgram, str | None]:
    """(the stage's program, a notice if "auto" came to the eager engine).

    `x`, `target`: an example of the micro-batch's shapes, to build and check with.

    Raises:
        TraceError, ProgramMismatch: the engine asked for, or both, cannot run the stage; the reasons.
    """

    def checked(build: Callable[[], AnyProgram]) -> AnyProgram:
        program = build()
        if how.check_seed is not None:
            program.self_check(isolated(layers).modules, x, target, how.check_seed)
        return program

    def traced() -> StageProgram:
        program = StageProgram.of(isolated(layers), x, target)
        if not (how.compiled and compile_program(program)) and how.pauses:
            program.replace_parts(lambda _, part: with_pauses(part))
        return program

    def graph() -> AnyProgram:
        return how.sharing(layers, x, target, traced)

    def eager() -> AnyProgram:
        return EagerProgram(layers, x, target, how.stash_limit)

    if how.engine != "auto":
        return checked({"graph": graph, "eager": eager}[how.engine]), None
    found, failure = _tried(partial(checked, graph), layers.label)
    reason = next((said for said in how.among_team(failure) if said is not None), None)
    if reason is None:
        assert found is not None  # nobody failed
        return found, None
    try:
        program = checked(eager)
    except (TraceError, ProgramMismatch) as error:
        raise TraceError(
            f"{layers.label}: neither engine can run it. graph: {reason}; eager: {_reason(error, layers.label)}"
        ) from error
    return program, f"{layers.label}: eager engine, because {reason}"


def _tried(build: Callable[[], AnyProgram], label: str) -> tuple[AnyProgram | None, str | None]:
    """(the program, None), or (None, why there is none)."""
    try:
        return build(), None
    except (TraceError, ProgramMismatch) as error:
        return None, _reason(error, label)


def warn(notice: str) -> None:
    """Tell the user of a notice: a Python warning, which the commands show in one line."""
    warnings.warn(notice, EngineNotice, stacklevel=3)


def _reason(error: Exception, label: str) -> str:
    """The error's line, about "it" instead of the label it begins with."""
    text = str(error).removeprefix(label).lstrip(",: ")
    if isinstance(error, ProgramMismatch):
        return f"it differs from plain torch: {text}"
    return f"it {text}" if text.startswith("cannot") else text
