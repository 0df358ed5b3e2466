"""What is printed as a schedule's name can be typed: every name that a plan's source can have, back through plan()."""

from __future__ import annotations

import pytest
from instances import uniform

from contraflow.planner import Cluster, SearchSpace, Workload, check, plan
from contraflow.planner.basics.errors import InputError
from contraflow.planner.cli.options import check_schedule
from contraflow.planner.schedules import ASYNCHRONOUS, SCHEDULES, variants

DEVICES, BATCHES = 4, 8
MODEL, CLUSTER = uniform(12, 1.0, 2.0, output_bytes=1), Cluster.uniform(DEVICES)
NAMES = sorted({*SCHEDULES, *ASYNCHRONOUS, *(name for name, _ in variants(DEVICES, BATCHES, 12)), "1f1b-capped-2"})


def named(name: str) -> str | None:
    """The name of the plan that this name gets, None where it gets none."""
    check_schedule(name)
    found = plan(MODEL, CLUSTER, Workload(BATCHES), SearchSpace(name), time_limit=20).plan
    if found is None:
        return None
    assert check(found) == []
    return found.provenance.source


@pytest.mark.parametrize("name", NAMES)
def test_a_name_gets_its_schedule_and_prints_as_what_can_be_typed(name: str) -> None:
    printed = named(name)
    assert printed is not None
    assert printed == name or printed.startswith(f"{name}-")
    assert named(printed) == printed


@pytest.mark.parametrize("name", ["chimera, 2 replicas", "1f1b, 4 replicas", "interleaved-3, 2 replicas"])
def test_names_with_replicas_get_so_many_groups(name: str) -> None:
    assert named(name) == name


def test_the_search_on_groups_can_be_asked_for_again() -> None:
    """Two groups are what it would choose here; the name says so, and gets two again."""
    found = plan(MODEL, CLUSTER, Workload(BATCHES), SearchSpace("search, 2 replicas"), time_limit=1).plan
    assert found is not None
    source = found.provenance.source
    assert source.endswith(", 2 replicas")
    check_schedule(source)
    assert len({p.forward for p in found.pipelines}) >= 2


@pytest.mark.parametrize("name", ["interleaved-x", "chimera-0", "gems-2", "zigzag", "1f1b, 0 replicas", "search-2", ""])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown schedule"):
        check_schedule(name)
    with pytest.raises(InputError, match="unknown schedule"):
        plan(MODEL, CLUSTER, Workload(BATCHES), SearchSpace(name))


def test_groups_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="4 devices do not form 3 equal groups"):
        plan(MODEL, CLUSTER, Workload(BATCHES), SearchSpace("1f1b, 3 replicas"))
