"""What is answered where a machine's forecasts do not tell plans apart: the plan that sends least."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from contraflow.planner import (
    Choice,
    Cluster,
    Effort,
    Layer,
    Link,
    ModelFamily,
    ModelGraph,
    Plan,
    SearchSpace,
    Workload,
    check,
    plan,
    plan_family,
)
from contraflow.planner.plan import COLLECTIVES, SENDS
from contraflow.planner.problem import Overhead
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.plainest import plainest

MODEL = ModelGraph.chain(
    [
        Layer(f"l{k}", 1.0, 1.0, 1.0, parameter_bytes=100, stash_bytes=8, weight_stash_bytes=4, output_bytes=1)
        for k in range(8)
    ]
)


def planned(told_apart: float, bandwidth: float, memory: int = 1 << 20, **space: int) -> Plan:
    """Two devices whose sums of gradients take 2 * 1,600 / bandwidth seconds; a pipeline fills and drains instead."""
    cluster = replace(Cluster.uniform(2, memory, Link(bandwidth)), told_apart=told_apart)
    found = plan(MODEL, cluster, Workload(16), SearchSpace(**space), time_limit=2).plan
    assert found is not None
    assert not check(found)
    return found


def sent(found: Plan) -> int:
    return sum(op.kind in SENDS | COLLECTIVES for row in found.orders for op in row)


def test_forecasts_that_are_alike_are_decided_by_what_is_sent() -> None:
    """Summing takes 0.8 % of a step more than a pipeline's messages: then it is not told apart from two replicas."""
    fastest, plainest = planned(0.0, 400.0), planned(0.02, 400.0)
    assert fastest.forecast is not None
    assert plainest.forecast is not None
    assert len(fastest.stages) > 1
    assert (len(plainest.stages), len(plainest.pipelines)) == (1, 2)
    assert plainest.provenance.source == "data parallel"
    assert sent(plainest) < sent(fastest)
    assert fastest.forecast.step_s < plainest.forecast.step_s <= 1.02 * fastest.forecast.step_s
    assert plainest.forecast.gap is not None
    assert plainest.forecast.gap > 0


def test_a_search_that_took_longer_than_its_time_answers_so_too() -> None:
    """A busy computer's search ends late: the answer is no other."""
    fastest = planned(0.0, 400.0)
    apart = replace(
        fastest, problem=replace(fastest.problem, cluster=replace(fastest.problem.cluster, told_apart=0.02))
    )
    late = Session(apart.problem, SearchSpace(), Clock(time.monotonic() - 10))
    assert plainest(late, apart).provenance.source == "data parallel"
    assert plainest(Session(fastest.problem, SearchSpace(), Clock(time.monotonic() - 10)), fastest) is fastest


def test_a_family_answers_so_too() -> None:
    """What `contraflow plan` calls; the answer is slower than what its search had found."""
    cluster = replace(Cluster.uniform(2, 1 << 20, Link(400.0)), told_apart=0.02)
    found = plan_family(ModelFamily((MODEL,)), cluster, Workload(16), Choice(16), effort=Effort(2)).plan
    assert found is not None
    assert found.provenance.source == "data parallel"
    assert not check(found)


@pytest.mark.long
def test_what_is_told_apart_stays() -> None:
    """Where summing takes a tenth of a step, and where the replicas do not fit or are not allowed."""
    assert len(planned(0.02, 40.0).stages) > 1
    assert len(planned(0.02, 400.0, memory=1200).stages) > 1
    assert len(planned(0.02, 400.0, replicas=1).stages) > 1
    assert len(planned(0.02, 400.0, pipelines=1).stages) > 1


def test_what_is_not_of_the_space_is_not_answered() -> None:
    """Nobody has one device where two replicas are asked for, nor four pipelines where two are."""
    cluster = replace(Cluster.uniform(4, 1 << 20, Link(1e6)), told_apart=1.0)
    for space in (SearchSpace(replicas=2), SearchSpace(pipelines=2)):
        found = plan(MODEL, cluster, Workload(8), space, time_limit=2).plan
        assert found is not None
        if space.replicas is not None:
            assert len({pipeline.forward for pipeline in found.pipelines}) >= 2
        else:
            assert len({pipeline.forward for pipeline in found.pipelines}) <= 2


def test_one_device_is_enough_where_collectives_take_as_long_as_the_rest() -> None:
    """Ops of a machine on which sums of gradients are slow: half of the work, and as long again for one sum."""
    cluster = replace(Cluster.uniform(2, 1 << 20), overhead=Overhead(0.0, 200.0, 0.0, 192.5), told_apart=0.02)
    found = plan(MODEL, cluster, Workload(16), SearchSpace(), time_limit=2).plan
    assert found is not None
    assert not sent(found)


@pytest.mark.parametrize("said", [-0.1, 1.5, "much"])
def test_a_share_is_a_share(said: object) -> None:
    with pytest.raises(ValueError, match="told_apart"):
        Cluster.from_dict({**Cluster.uniform(2).to_dict(), "told_apart": said})


def test_it_is_in_files() -> None:
    cluster = replace(Cluster.uniform(2), told_apart=0.02)
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    assert "told_apart" not in Cluster.uniform(2).to_dict()
