"""What a message takes of ranks that compute, and how long it is under way, off two orders of one pipeline.

With all forwards first a message is waited for twice a step, and what messages take of ranks, posting and also what
carries them on the ranks' own cores, adds up. As 1F1B every micro-batch goes there and back before the next one is let
in: what messages are late by adds up, too. With both right, both orders are forecast to take as long as they took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...planner import simulate
from ...planner.plan import SENDS, Plan, Problem
from ...planner.problem import Overhead

HALVINGS = 18


@dataclass(frozen=True)
class Pair:
    """A pipeline as 1F1B and with all forwards first, and the seconds of a step of each."""

    chain: Plan
    chain_s: float
    flood: Plan
    flood_s: float


def message_s(pair: Pair, overhead: Overhead) -> float:
    """With which seconds at an end of a message both are forecast rightly; at least what the overhead says."""

    def short_s(each_s: float) -> float:
        """By how much the second is forecast to take less than it took, where the first is forecast rightly."""
        more = replace(overhead, message_s=each_s)
        return pair.flood_s - forecast_s(pair.flood, more, latency_s(pair.chain, more, pair.chain_s))

    least = overhead.message_s
    silent = not any(op.kind in SENDS for row in pair.flood.orders for op in row)
    if silent or short_s(least) <= 0:
        return least
    return _halved(lambda each_s: short_s(each_s) <= 0, least, least + pair.flood_s)


def latency_s(plan: Plan, overhead: Overhead, step_s: float) -> float:
    """With which latency of its messages a plan is forecast to take as long as it took; 0 where it took less."""
    if forecast_s(plan, overhead, 0.0) >= step_s:
        return 0.0
    return _halved(lambda each_s: forecast_s(plan, overhead, each_s) >= step_s, 0.0, step_s)


def collective_s(plan: Plan, overhead: Overhead, latency_s: float, step_s: float) -> float:
    """With which seconds of each of its collectives a plan is forecast to take as long as it took; 0: it took less."""

    def forecast(each_s: float) -> float:
        return forecast_s(plan, replace(overhead, collective_s=each_s), latency_s)

    if forecast(0.0) >= step_s:
        return 0.0
    return _halved(lambda each_s: forecast(each_s) >= step_s, 0.0, step_s)


def _halved(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least that is enough."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low


def forecast_s(plan: Plan, overhead: Overhead, latency_s: float) -> float:
    """Of a step."""
    problem = with_latency(plan.problem, latency_s)
    return simulate(replace(plan, problem=replace(problem, cluster=replace(problem.cluster, overhead=overhead)))).step_s


def with_latency(problem: Problem, latency_s: float) -> Problem:
    """The problem on links of another latency."""
    (group,) = problem.cluster.nodes
    link = replace(group.link, latency_s=latency_s)
    return replace(problem, cluster=replace(problem.cluster, nodes=(replace(group, link=link),)))
