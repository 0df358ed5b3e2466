"""Teams: clusters whose devices are several ranks, models whose costs are a rank's, and plans of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contraflow.planner import Cluster, InputError, Layer, Link, ModelGraph, Workload, check, load_plan, plan, save_plan
from contraflow.planner.basics import ClusterError, ModelError
from contraflow.planner.plan_file import plan_from_dict, plan_to_dict
from contraflow.planner.problem import DeviceType, NodeGroup

KIND = DeviceType("toy", 1 << 30)
INSIDE, HOST, NETWORK = Link(300e9, 3e-6, 400e9), Link(24e9, 1e-5), Link(50e9, 1e-5)


def cluster(devices: int = 8, shared_by: int = 1, nodes: int = 2) -> Cluster:
    return Cluster((NodeGroup(nodes, devices, KIND, INSIDE, 80 << 30, HOST, shared_by),), NETWORK)


def test_a_team_is_one_device_with_the_figures_of_a_rank() -> None:
    """Memory and links are a rank's, host memory is divided."""
    teams = cluster().teams(4)
    assert (len(teams), teams.team, teams.home_nodes) == (4, 4, (0, 0, 1, 1))
    assert teams.devices[0].kind == KIND
    assert teams.link(0, 1) == INSIDE
    assert teams.link(1, 2) == NETWORK
    assert teams.node_groups[0].host_memory_bytes == 20 << 30
    assert cluster().teams(1) == cluster()


@pytest.mark.parametrize(
    ("shared_by", "ways", "bandwidth", "links"),
    [
        (1, 4, 24e9, [0, 1]),  # every rank its own link
        (2, 4, 12e9, [0, 1]),  # two ranks of a team on each
        (4, 4, 6e9, [0, 1]),
        (8, 4, 6e9, [0, 0]),  # both teams on the one link
        (3, 4, 8e9, [0, 0]),  # the second team's ranks are on the links of the first's
        (100, 2, 12e9, [0, 0, 0, 0]),
    ],
)
def test_ranks_of_a_team_share_what_they_share_of_host_links(
    shared_by: int, ways: int, bandwidth: float, links: list[int]
) -> None:
    """All ranks of a team copy at once, so each gets its part of a link."""
    teams = cluster(8, shared_by, 1).teams(ways)
    assert teams.node_groups[0].host_link.bandwidth == bandwidth
    assert list(teams.host_links) == links


@pytest.mark.parametrize(("ways", "named"), [(8, "node 1 has 4 devices"), (3, "node 0 has 8 devices"), (0, "of 0")])
def test_a_team_that_does_not_divide_a_node_is_refused(ways: int, named: str) -> None:
    """The node, its devices and the team are named, in one line."""
    mixed = Cluster((NodeGroup(1, 8, KIND), NodeGroup(2, 4, KIND)))
    with pytest.raises(ClusterError, match=f"teams of {ways}") as refused:
        mixed.teams(ways)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(ClusterError, match="teams of 2 already"):
        cluster().teams(2).teams(2)


def test_teams_survive_their_files() -> None:
    """`team` stands in the file where it is not 1, and only there."""
    teams = cluster().teams(2)
    assert Cluster.from_dict(teams.to_dict()) == teams
    assert "team" not in cluster().to_dict()
    assert teams.part([0, 1]).team == 2
    with pytest.raises(ClusterError, match="team must be"):
        Cluster.from_dict(teams.to_dict() | {"team": 0})


def model(ways: dict[str, int] | None = None) -> ModelGraph:
    layers = [Layer(f"l{k}", 1.0, 1.0, 1.0, stash_bytes=1 << 20, parameter_bytes=1 << 22) for k in range(4)]
    return ModelGraph.chain(layers, ways=tuple((ways or {}).items()))


def test_a_model_says_how_a_team_divides_it() -> None:
    """In its file, and in what tells plans of it apart."""
    halves = model({"tensor": 2, "sequence": 2})
    assert ModelGraph.from_dict(halves.to_dict()) == halves
    assert (halves.team, model().team) == (2, 1)
    assert "ways" not in model().to_dict()
    assert halves.measured_fingerprint != model().measured_fingerprint
    assert halves.fingerprint == model().fingerprint
    for bad, named in (({"pipe": 2}, "'pipe'"), ({"tensor": 0}, "tensor"), ({"tensor": 2, "expert": 4}, "same ranks")):
        with pytest.raises(ModelError, match=named):
            ModelGraph.from_dict(model().to_dict() | {"ways": bad})


def test_a_plan_of_teams_is_checked_saved_and_loaded(tmp_path: object) -> None:
    """The teams are its devices; a model for other teams than the cluster's is refused."""
    teams = cluster(4).teams(2)
    found = plan(model({"tensor": 2}), teams, Workload(8), time_limit=2).plan
    assert found is not None
    assert not check(found)
    assert len(found.orders) == 4
    save_plan(found, f"{tmp_path}/plan.json")
    assert load_plan(f"{tmp_path}/plan.json") == found
    with pytest.raises(InputError, match="teams of 2, the cluster's devices are teams of 1"):
        plan(model({"tensor": 2}), cluster(4), Workload(8), time_limit=2)
    content = plan_to_dict(found)
    content["problem"]["cluster"]["team"] = 4
    with pytest.raises(InputError, match="teams of 4"):
        plan_from_dict(content)


def test_ranks_are_counted_against_the_limit() -> None:
    """A file cannot ask for more ranks than devices are planned for."""
    with pytest.raises(ClusterError, match="at most"):
        replace(cluster(), team=4096)
