"""What ops wait for: declared with reasons, for the simulator and, apart from it, for the checker."""

from __future__ import annotations

import numpy as np
import pytest
from random_plans import plans_of, random_candidate

from contraflow.planner.forecast import jobs_of_ops
from contraflow.planner.graph import Homes, Why, costs_of
from contraflow.planner.rules import Listed, Order
from contraflow.planner.simulate import simulate


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_simulated_times_keep_all_that_the_checker_asks_for(seed: int, apart: bool) -> None:
    """The simulator's needs and the order of lists give every need that the checker knows by rules of its own."""
    for plan in plans_of(random_candidate(seed, apart), seed, 2, split=True):
        order = Order(costs_of(plan), Listed.of(plan, Homes.of(plan)))
        jobs = simulate(plan).jobs
        job = jobs_of_ops(jobs)
        later, earlier = order.needs
        assert len(order.whys) == len(later)
        posted = ~jobs.ops.in_line
        computed = ~posted[later] & ~posted[earlier]
        gap = jobs.start[job[later]] - jobs.end[job[earlier]]
        assert (gap[computed] >= -1e-9).all()
        assert (jobs.rank[job[later]] >= jobs.rank[job[earlier]]).all()


@pytest.mark.parametrize("seed", range(10))
def test_every_precedence_has_its_reason_and_is_kept(seed: int) -> None:
    for plan in plans_of(random_candidate(seed, bool(seed % 2)), seed, 2, split=True):
        jobs = simulate(plan).jobs
        found = jobs.precedences
        assert len(found.why) == len(found.before) == len(found.after)
        assert set(found.why) <= set(Why)
        served = (jobs.rank[found.after] >= 0) & (jobs.rank[found.before] >= 0)
        gap = jobs.start[found.after] - jobs.end[found.before] - found.lag
        assert (gap[served] >= -1e-9).all()
        listed = np.array([why is Why.LISTED for why in found.why])
        inside = (found.before < len(jobs.ops)) & (found.after < len(jobs.ops)) & listed
        pairs = found.before[inside], found.after[inside]
        messages = np.isin(pairs[1], jobs.messages.send)
        device = jobs.ops.device
        assert (device[pairs[0]] == device[pairs[1]])[~messages].all()
