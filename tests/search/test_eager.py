"""1F1B over slow links: micro-batches in flight by the round trip."""

import pytest

from contraflow.planner import Cluster, Layer, ModelGraph, SearchSpace, Workload
from contraflow.planner.plan import Problem
from contraflow.planner.problem import Link
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.named import run_eager


def session(bandwidth: float, batches: int = 40) -> Session:
    """Four layers on four devices, F = B = 1 second; a tensor of 1 byte each way."""
    layers = [Layer(f"l{k}", 1.0, 1.0, separable=False, output_bytes=1) for k in range(4)]
    cluster = Cluster.uniform(4, link=Link(bandwidth, 0.0))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(micro_batches=batches))
    return Session(problem, SearchSpace(), Clock(float("inf")))


def test_nothing_where_messages_take_no_time() -> None:
    """A round trip is then one micro-batch for every later stage, which 1F1B has."""
    found = session(1e12)
    list(run_eager(found, (0, 1, 2, 3)))
    assert found.best is None or found.best_s == pytest.approx((40 + 3) * 2.0)


@pytest.mark.parametrize("seconds", [1.0, 2.0, 4.0])
def test_links_are_kept_busy(seconds: float) -> None:
    """All micro-batches pass the slowest stage or link, and one goes all the way: 1F1B takes far longer."""
    found = session(1 / seconds)
    list(run_eager(found, (0, 1, 2, 3)))
    assert found.best is not None
    period, trip = max(2.0, seconds), 4 * 2.0 + 3 * 2 * seconds
    assert found.best_s <= 1.1 * (39 * period + trip)
    flights = [sum(op.kind.name == "F" for op in order[: _first_backward(order)]) for order in found.best.orders]
    assert flights[0] > 4
    assert flights == sorted(flights, reverse=True)


def _first_backward(order: tuple) -> int:  # type: ignore[type-arg]
    return next(position for position, op in enumerate(order) if op.kind.name == "B")
