"""What `plan --explain` says: what was looked at, what devices wait for, what other machines would give."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .common import say

if TYPE_CHECKING:
    from ..plan import Plan
    from ..problem import SearchSpace
    from ..search import Explanation, Result


@dataclass(frozen=True)
class Why:
    """A search's answer, and the facts about its plan where there is one."""

    result: Result
    facts: Explanation | None

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        found: dict[str, Any] = {"considered": [asdict(part) for part in self.result.considered]}
        if self.facts is None or self.result.plan is None:
            return found
        return found | self.facts.to_dict(len(self.result.plan.orders))

    def say(self) -> None:
        """Prints what was looked at (least bound, best step, outcome), the plan chosen, and why it takes so long."""
        say("considered (bound s, best s):")
        for part in self.result.considered:
            step = "-" if part.step_s is None else f"{part.step_s:.6g}"
            say(f"  {part.bound_s:<10.6g} {step:<10} {part.what}: {part.outcome}")
        made = self.result.plan
        if self.facts is None or made is None:
            return
        from ..view import explained

        bound = "-" if self.facts.bound_s is None else f"{self.facts.bound_s:.6g}"
        source = made.provenance.source or "plan"
        say(f"  {bound:<10} {self.facts.step_s:<10.6g} {source}, {len(made.stages)} stages: chosen")
        say(explained(self.facts, len(made.orders)))


def idle_rows(result: Result) -> dict[str, Any]:
    """What the devices of the plan wait for and where its gap comes from, for machines; nothing without a plan."""
    if result.plan is None or not usable(result):
        return {}
    from ..search import facts

    return facts(result.plan, faster=False).to_dict(len(result.plan.orders))


def waiting(plan: Plan) -> str:
    """Idle time of all devices by cause, and where the gap comes from, in a sentence each."""
    from ..search import facts
    from ..view import WIDTH, gap_sentence, idle_sentence, overhead_sentence, wrap

    found = facts(plan, faster=False)
    said = idle_sentence(found, len(plan.orders)), overhead_sentence(found), gap_sentence(found)
    return "\n".join(line for text in said for line in wrap(text, WIDTH))


def usable(result: Result) -> bool:
    """Whether there is a plan to write."""
    found = result.plan
    return found is not None and found.forecast is not None and result.status in ("optimal", "feasible")


def why_so_long(result: Result, space: SearchSpace, effort: dict[str, Any]) -> Why:
    """What was looked at, and the facts about the plan; `effort` as the search got it."""
    if result.plan is None or not usable(result):
        return Why(result, None)
    from ..search import explain

    return Why(result, explain(result.plan, space, **(effort | {"time_limit": effort["time_limit"] / 4})))
