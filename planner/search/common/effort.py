"""How much the search tries: every share, size, count and tolerance of it, each with what it bounds.

None of them decides what is true: tolerances aside, bounds, "optimal" and what fits do not depend on these numbers,
only what is found in the time.

`benchmarks/effort.py` halves and doubles them, one at a time, on random problems with a fixed deterministic effort:
`benchmarks/results/effort.md`; "Measured:" stands before another measurement. What says "Not measured." is not, nor are
seconds of the clock and tolerances.

Numbers that compiled kernels read stand beside these: numba keeps what it compiled by the kernel's own file.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...plan import PROVEN_GAP


@dataclass(frozen=True)
class PhaseShares:
    """Shares of the effort of exact search, annealing, and windows; the exact search gets what is left."""

    exact: float
    annealing: float
    windows: float


@dataclass(frozen=True)
class Shares:
    """Shares of the time, or of the deterministic effort, that is left."""

    uniform: float = 0.3
    """For uniform grids, before all else. Time only. Not measured."""
    grids: float = 0.2
    """For uniform grids of all points of a family together, before one is searched. Not measured."""
    relieved_grids: float = 0.15
    """For uniform grids whose stashes must be copied or made again in part. Time only. Not measured."""
    likeliest_point: float = 0.06
    """For the most promising point of a family, before all others. Not measured."""
    other_points: float = 0.16
    """For every other point that may be better still, together: its grids do not show all. Not measured."""
    best_points: float = 0.2
    """For the most promising of them again, together. Not measured."""
    blocks: float = 0.06
    """Then for each that is nearly the best with whole blocks as layers, where it has parts. Measured: Llama-7B on
    a slow network 7.212 s a step without, 7.123 with a tenth; BERT-Large 0.11345 and 0.11265. With what is hoped of
    them later on in mind, a tenth and this: 7.091 and 7.075, 0.111608 and 0.111597."""
    turn: float = 0.5
    """Of what is left, for the point that is most promising then, again and again. Time only. Measured: with the shares
    above, six random jobs, 20 s: 4 shorter (0.2 to 0.9 %), none longer than with a half of all for one point."""
    nearby: float = 0.05
    """For a named schedule on cuts next to its best one, each of some or that asked for. Time only. Measured: the first
    20 instances against peers of seeds 2003 and 2005: what named schedules come to is 0.8 and 0.4 % less, at most 5 %,
    in 1.3 and 0.9 s."""
    all_nearby: float = 0.15
    """For all of these. Time only. Not measured."""
    least_turn: float = 0.1
    """A turn is no shorter than so much of all: its parts would find nothing in their time. Time only. Measured: with
    the other changes of races, ten random jobs, 30 s: 3 shorter (0.02 to 0.4 %), 1 longer (1.0 %)."""
    last_turn: float = 0.1
    """So much of all is not shared out any more. Time only. Not measured."""
    idle_turn: float = 0.1
    """A point that uses no more of its turn has nothing left to try. Time only. Not measured."""
    laps: float = 0.4
    """For one pipeline round and round in a large problem, second after a first plan. Time only. Not measured."""
    scaled_down: float = 0.6
    """For the problem with fewer micro-batches, where there is one. Not measured."""
    named_first: float = 0.3
    """For named orders with copies to the host, before the space without copies is searched. Not measured."""
    kept_first: float = 0.5
    """For simulations of named orders with all stashes kept, of the time for fitting them. Time only. Not measured."""
    without_copies: float = 0.6
    """For the space without copies to the host, where there are others."""
    look_without_copies: float = 0.15
    """Of that, for a look: the rest only where what it finds is nearly as good as with copies. Not measured."""
    leader: float = 0.75
    """Of a round that goes on, for the space that has the best plan, with copies or without. Not measured."""
    everything_first: float = 0.5
    """For everything, before the space without copies is searched on its own, of small problems. Not measured."""
    with_copies: float = 0.4
    """Then for everything, before the rest goes to the one that found the best plan."""
    small: PhaseShares = PhaseShares(0.2, 0.4, 0.2)
    """Where exact search lists all cuts of a small problem."""
    medium: PhaseShares = PhaseShares(0.05, 0.6, 0.33)
    """Where exact models can be built."""
    large: PhaseShares = PhaseShares(0.0, 0.6, 0.4)
    """Where no exact model is built."""
    two_devices: float = 0.35
    """Forward and backward devices at any size, of what the first exact search leaves, where they may pay.
    Not measured."""
    only_two_devices: float = 0.6
    """The same where nothing else can be shorter. Not measured."""
    plainly: float = 0.15
    """Without a flush, for plans that keep their stashes, and then for those that recompute some, before copies to the
    host are allowed. Measured: VGG-16 on 8 devices in 45 % of PipeDream's memory with links of 6 GB/s, 2 s: 261 ms a
    micro-batch with these, 589 ms without."""
    drained_look: float = 0.05
    """Without a flush, for a first plan with one that is repeated update by update. Measured: problem 8103/7 of the
    mechanisms 7.01 s a micro-batch in 4 s, 9.01 without; of six others, 30 s, two are 3 and 9 % shorter, one 3 %
    longer."""
    drained: float = 0.3
    """For more of these, where the first is promising. Not measured."""
    drained_best: float = 0.7
    """The same where the first is the best plan. Measured: problem 8501/9, 60 s: 37.9 s a micro-batch, 111 with the
    share above, 160 without any."""
    drained_last: float = 0.9
    """The same where nothing else is left to try: the rest is for repeating what is found. Not measured."""
    first_cuts: float = 0.15
    """Walks over cuts, of the annealing of a first round. Not measured."""
    cuts: float = 0.2
    """Walks over cuts, of a later round. Time only. Measured: with this and `first_cuts`, two random jobs of everything
    that people choose, 60 s: 8.793 and 0.03476 s; with twice both 8.857, 0.03500; without walks 8.740 and 0.03488."""
    exact_again: float = 0.5
    """Exact search where only two devices a stage can be shorter, before annealing. Time only. Not measured."""
    favourite_width: float = 0.5
    """The quick plans of the most promising way to form groups. Time only."""
    spreads: float = 0.15
    """Stages with replicas of their own, with a flush. Time only. Not measured."""
    steady_spreads: float = 0.25
    """The same without a flush, once equal groups are solved, before forwards and backwards get cuts of their own. Time
    only. Measured: one micro-batch an update, 12 s: VGG-16 on 16 devices has 85.6 ms and GNMT-8 in 4 GiB 73.6 ms;
    128.0 and 79.6 ms with half the time, after own cuts."""
    other_width: float = 0.12
    """The quick plans of another way. Time only."""
    width_turn: float = 0.5
    """Of what is left, for a way to form groups, that with the best plan and another by turns. Time only.
    Measured: with `quick_on`, `both_spaces` and cheaper cuts, six random jobs, 30 s: 3 shorter (0.8 to 2.7 %);
    BERT-Large on 8 RTX 4090, 60 s: 0.1155 s a step, 0.1175 where all that was left was for groups of two devices."""
    first_sharing: float = 0.05
    """For the first plans with shared optimizers, and then for those with whole ones. Time only. Not measured."""
    quick_turns: float = 0.65
    """The quick plans of all ways to form groups, in turns, before long work on the best. Time only. Not measured."""
    quick_on: float = 0.4
    """The same in a later call that goes on with them. Time only. Measured: with `width_turn`."""
    quick_again: float = 0.25
    """For those that are left, where the search goes on after its time was over. Time only. Not measured."""
    quick_turn: float = 0.25
    """Of that, one round of turns, all alike: with half of it for the way that has the best plan so far, 8 devices in
    two to eight groups left a sixth to the one group that was 8 % better in the end. Time only. Not measured."""
    probe: float = 0.18
    """Each of the ways that are probed; then the best gets the rest."""
    own_order: float = 0.35
    """The file's order of a graph's layers, where others promise more. Measured: with a fifth, on busy cores in 8
    seconds, 3 of 15 random graphs ended with up to 3.6 % more than on the file's order alone."""
    layer_orders: float = 0.1
    """Cutting a graph to find orders of its layers. Not measured."""
    layer_order: float = 0.3
    """Then each of the others, before the rest goes to the one that found the best plan. Not measured."""
    own_steady: float = 0.5
    """The file's order without a flush, before others. Time only. Not measured."""
    own_cuts: float = 0.5
    """Plans without a flush that cut forwards and backwards on their own. Not measured."""
    one_side: float = 0.8
    """Of these, first, with devices that run forwards or backwards, not both. Time only. Measured: VGG-16 on 16
    devices, one micro-batch an update, 20 s on one core: 85.5 ms; with 0.5, 130.4."""
    remade: float = 0.25
    """Programmes without a flush again, with some of a stage's micro-batches recomputed. Time only. Measured: 12
    devices in 45 % of memory, 15 s: a period of 7.05 s with these before own cuts, 8.03 s after: no time was left."""
    two_sides: float = 1.0
    """Forward nodes and backward nodes by name, once own cuts are tried. Time only. Not measured."""
    in_turn: float = 0.25
    """Named schedules that alternate, once own cuts are tried. Time only. Not measured."""
    polished: float = 0.3
    """Plans next to the best ones without a flush. Time only. Not measured."""
    looked: float = 0.4
    """Alternatives without a flush, before all that they cannot mix; what is left of them comes last. Time only.
    Measured: on 13 devices, 26 layers and 30 % of memory solving with copies took 6 of 8 s."""
    mixtures: float = 0.5
    """Plans without a flush whose devices, stash choices and cuts are annealed together. Measured: 43 random problems,
    12 s on one core: before own cuts and named schedules 8 shorter, 2 longer than after them, 3 % in the mean."""
    stage_ends: float = 0.1
    """For where stages end, of what is left of a round. Time only. Not measured."""
    fewer_first: float = 0.5
    """The race with fewer micro-batches, where there is one."""


@dataclass(frozen=True)
class Sizes:
    """Up to which size something is tried. Ops are F and B with one stage a device, unless they say otherwise."""

    grids: int = 100
    """Ops from which on uniform grids come before all else. Not measured."""
    exact_first: int = 300
    """Ops up to which exact search decides about everything together, and comes first with all its weight."""
    one_cut: int = 12_000
    """Ops from which on every schedule is simulated on one cut only, and a smaller problem comes first."""
    steady_variants: int = 60_000
    """Ops from which on only few variants of a plan without a flush are simulated."""
    nearby_ops: int = 200_000
    """F, I and W of all cuts together that a named schedule tries next to its best one. Not measured."""
    lap_chunks: int = 4
    """Stages a device at most of one pipeline that goes round and round, first in a large problem. Not measured."""
    lap_ops: int = 400_000
    """Its ops at most, where effort is limited. Not measured."""
    lap_simulations: float = 4.0
    """Simulations of 1F1B that all of this takes as long as, an op. Measured: 1.5 with 64 devices, 3.9 with 256."""
    remade_ops: int = 400_000
    """Ops of all named schedules that are simulated with every stash recomputed."""
    by_costs_ops: int = 300_000
    """F and B of a named schedule, over all stages, up to which its orders are made for a candidate's costs.
    Measured: twelve problems of 20 to 64 devices, 30 s, the same in the mean as with 20,000; 128 devices, half of the
    memory: the V with all room there is in 5 s instead of never."""
    simulated_ops: int = 200_000
    """F and B of all named orders of a problem that stay simulated, stashes kept: it bounds memory. Not measured."""
    remembered_ops: int = 50_000
    """Ops of a plan, all kinds, up to which everything simulated is kept: it bounds memory."""
    annealed_ops: int = 150_000
    """Ops of an order, all kinds, up to which it is annealed; beyond, the named orders stand."""
    descended_ops: int = 20_000
    """Ops of an order, all kinds, up to which its stash choices are looked at one by one."""
    window_plan_ops: int = 5000
    """Ops of a plan, all kinds, up to which windows work on it."""
    window_ops: int = 110
    """Ops of one window, on average over `window_widths`."""
    window_widths: tuple[float, ...] = (0.6, 1.0, 1.6, 2.4)
    """Windows of so many times that size take turns at random."""
    listed_cuts: int = 40
    """Cuts up to which all are simulated for every schedule; beyond, the dynamic programmes choose."""
    placed_ops: int = 20_000
    """Ops up to which forward and backward devices are annealed. Not measured."""
    keyed_ops: int = 20_000
    """Ops of a plan, all kinds, up to which its times are keys of others. Not measured."""
    two_device_ops: int = 160
    """Ops up to which models are built in which stages have two devices each."""
    two_device_devices: int = 6
    """Devices up to which they are."""
    two_device_cuts: int = 12
    """Cuts up to which all of their candidates are listed."""
    chunks: int = 4
    """Stages a device at most: it says which shapes a proof speaks of (`proofs.SHAPES`)."""
    packed_sizes: int = 24
    """Different sizes of layers up to which they are packed into devices, to prove that nothing fits."""
    packed_placements: int = 4096
    """Placements of layers up to which all are tried for that instead."""
    roomy: float = 0.6
    """Share of all limits below which layers are not packed: they fit anyhow."""
    packing_effort: float = 2.0
    """Deterministic seconds of packing."""
    every_cap: int = 16
    """Stages up to which every cap on micro-batches in flight is tried, not a few."""
    cut_at_once: int = 2000
    """Layers times stages of a graph up to which it is cut before there is a plan. Measured: with 325 layers and 4
    stages half a second, with 920 and 4 two and a half."""
    cut_decisions: int = 8000
    """Layers times stages of a graph up to which CP-SAT looks for better cuts. Not measured."""
    fewer_stages: int = 16
    """Devices a group up to which plans without a flush that leave some out are tried too."""
    ordered_blocks: int = 4
    """Blocks of equal devices up to which all their orders are tried. Not measured."""
    every_width: int = 16
    """Replicas of a stage up to which every number of them is tried. Not measured."""
    recursion: float = 2e7
    """Intervals of layers times blocks of devices times stages that are looked at for stages with replicas of their
    own: about a quarter of a second. Not measured."""
    listed_ops: int = 12_000
    """F and B of a plan with replicas of single stages up to which its orders are listed. Not measured."""
    ahead: int = 512
    """Micro-batches ahead that are tried at most: a link slower than the work by more keeps no pipeline full.
    Not measured."""
    chain_cuts: int = 40
    """Layers up to which forwards and backwards may be cut at each of them; beyond, at so many, then near what is
    found. Not measured."""
    mixed_devices: int = 64
    """Devices up to which plans without a flush are annealed. Not measured."""
    balanced_plainly: int = 1_000_000
    """Moves of boundaries times stages that plain Python makes until what is compiled is worth loading: half a second.
    Not measured."""
    shared_cuts: int = 18
    """Such cuts up to which a device may run any two intervals, one forward and one backward; beyond, the same one, or
    both at an end of the model. Not measured."""
    two_cuts: int = 16
    """Candidates of a race up to which each begins on another cut, too. Not measured."""
    fewer_first: int = 200
    """Devices times micro-batches from which on a race with fewer micro-batches comes first."""
    left_out: float = 0.3
    """Share of the micro-batches that a problem with fewer of them does without, at least."""
    repeated: int = 24
    """What is left out is a multiple of it, or of half of it: windows of several micro-batches can then be repeated."""


@dataclass(frozen=True)
class Counts:
    """How often, or how many."""

    alone: int = 16
    """Devices that are made faster one at a time to say what binds, those that compute longest. Measured: with 64
    devices and 512 micro-batches each takes 0.14 s."""
    large_remembered: int = 3
    """Plans of more ops than `SIZE.remembered_ops` that are kept beside the best one. Measured: 128 devices, 512
    micro-batches, half of 1F1B's memory, 60 s: 1.19 GiB at most, 1.85 with all of them and their lists."""
    looks: int = 2
    """Further looks of the searches with shared and with whole optimizers, where the first say little. Not measured."""
    stage_ends: int = 300
    """Plans next to the best one whose stages end elsewhere. Not measured."""
    next_best: int = 2
    """Plans on other cuts than the best one that a race begins with, too. Measured: 9 devices with a quarter of the
    memory, 41 micro-batches, 30 s: 6.96e6 without, 6.89e6 with these; a named schedule of 7.17e6 had led to 6.73e6."""
    other_routes: int = 2
    """Plans on other routes, not far from the best one (`RACE.mutant`), that a race begins with, too. Measured: 7
    devices, 13 micro-batches, three seeds: 891,650, 876,400, 866,210 without, 873,740, 876,400, 869,800 with these."""
    nearby: int = 6
    """Named schedules that descend from their best cut. Not measured."""
    nearby_starts: int = 3
    """Cuts of its own from which each of them may begin. Not measured."""
    nearby_least: int = 5
    """None begins where its time is up after so many. Time only. Not measured."""
    nearby_cuts: int = 150
    """Cuts that each of them tries. Measured: where 60 bring 0.8 and 0.4 % (see its share of the time), 30 bring 0.75
    and 0.3, and 120 bring 0.9 and 0.4; 5 devices with 6 micro-batches: 2699.5 with 60, 2673.5 with 100.
    """
    moved_ends: int = 2000
    """Moves of ends between stages of different devices that are looked at, before any is simulated. Not measured."""
    memory_steps: int = 8
    """A memory step, of which is asked what it would give, is the power of two at or below such a part of the least
    limit: of 80 GiB 8 GiB. Not measured."""
    best_points: int = 3
    """Points of a family that are searched a second time. Not measured."""
    fitted: int = 6
    """What was found and exceeds some device is looked for again with as much less memory there, so often: named
    orders, stash choices, arms of the race, candidates of the exact search. Measured: of 300 small random instances
    the last finds plans for 244; for 234 with three tries that never take off less again."""
    compared: int = 4
    """Named orders that are fitted by every set of stash policies, those with the least step first. Not measured."""
    uniform: int = 120
    """Plans of uniform grids that are simulated at the most. Not measured."""
    relieved_grids: int = 36
    """Times that uniform grids are fitted by what stashes may become, at the most. Not measured."""
    layouts: int = 8
    """Of uniform grids, that are kept for the next groups of as many devices. Not measured."""
    deepest: int = 24
    """Stages a device in uniform grids at the most. Not measured."""
    laid: int = 3
    """Plans of one group that are laid on all groups after a turn of its search, beside its best. Not measured."""
    techniques: int = 2
    """Sets by which the others are fitted at once: those that did best before. The rest follow. Not measured."""
    copy_lead: int = 2
    """A copied stash is asked for so many ops before its backward."""
    taken_over: int = 3
    """Best plans with fewer micro-batches that are taken over. Not measured."""
    idle_turns: int = 2
    """Turns of quick plans of all ways to form groups that find nothing, one after the other, before long work begins.
    Measured: Llama-7B on a slow network 7.04 s a step with one, 7.12 with no end of them; of 14 devices 60.8 with one,
    58.4 with two."""
    probed_widths: int = 3
    """Most promising ways to form groups that are probed before the best gets the rest."""
    polished: int = 4
    """Arms of the race that windows go on from, beside the best plan."""
    seeds_a_round: int = 64
    """Races of one round at most, so that no two rounds race alike: no effort."""
    balanced: int = 4000
    """Random moves of boundaries in search of a cut that finishes all devices together. Measured: 40 random routes of
    2 to 12 devices, 4 to 96 stages: 2000 come to 0.25 % more, 8000 to 0.3 % less; 0.8 ms compiled, 38 ms otherwise."""
    layer_orders: int = 2
    """Orders of a graph's layers that are searched beside the file's, at most. Not measured."""
    random_moves: int = 3
    """Ends of stages that move at once, at most, to come to another cut at random. Not measured."""
    frontier_limits: int = 3
    """Limits of a frontier at least: one too low, the lowest that is not, and one that does not bind. Not measured."""
    leanest: int = 3
    """A plan that needs less memory than any before is taken for the leanest so often, and less is asked for.
    Not measured."""
    leaner: int = 16
    """By this part of what the leanest plan needs less is asked for. Not measured."""
    roomier: int = 8
    """A solution without a flush that does not fit is looked for again with more room so often."""
    roomier_large: int = 3
    """The same of a large plan. Not measured."""
    near_cuts: int = 100
    """Plans simulated next to the best one that cuts forwards and backwards on their own. Not measured."""
    slower: int = 5
    """Longer periods that are tried with pieces of two chains that do not fit. Not measured."""
    steady_updates: int = 12
    """Updates by which two runs differ from which the predictions of a steady state are counted."""
    extremes: int = 3
    """Plans whose stash choices are looked at one by one, of those that recompute every stash."""
    guest_devices: int = 3
    """Devices beside a stage's mirror to which its stashes may be shipped, those with most room."""
    spreads: int = 16
    """Cuts into stages with replicas of their own that are simulated, of each menu of stash choices. Not measured."""
    numbers_in_flight: int = 4
    """Numbers in flight of each without a flush: as many as partition.OnBlocks.numbers_in_flight has. Not measured."""
    polished_spreads: int = 6
    """Of those, without a flush, the ones that neighbours are looked at of. Not measured."""
    route_numbers: int = 3
    """Numbers of routes that are tried where they are limited. Not measured."""
    stash_groups: int = 4
    """Groups of a pipeline's micro-batches whose stashes are chosen on their own."""


@dataclass(frozen=True)
class Annealing:
    """Annealing of one order: its starts, rules and temperatures."""

    fills: tuple[float, ...] = (0.5, -1.0, 1.0, -1.0)
    """Rules for weight halves (kernels.run) by turns where stashes go to other devices or over links that devices
    share; below 0 they move like every op, as they always do elsewhere. Measured: 8 devices, 32 micro-batches, 2 s: 0.5
    % above the bound without a rule, 1.3 to 1.9 % with."""
    hot: tuple[float, ...] = (0.05, 0.2, 0.15, 0.1)
    """First temperature, in ops of mean length, round by round. Measured: 4 to 16 devices, 5 rounds of 0.05 to 1.2 s:
    from 0.05 to 1 no clear difference, 2 is worse; 3 to 6 (0.02 to 0.005 of the makespan) find nothing with 16x64."""
    cooled: float = 0.01
    """Last temperature, as a share of the first."""
    leads: tuple[int, ...] = (1, 2, 4, 8)
    """How many ops before its backward an offloaded stash is fetched, in the first orders.
    Measured: a plan of 79.9 s that ships and offloads begins at 85.6 in a race, at 91.5 with up to 4 ops."""
    guests: tuple[float, ...] = (0.05, 0.1, 0.2)
    """So much more memory for a plan's orders whose ships do not fit as the arrays count them.
    Measured: 14 devices, 60 % of the memory, 30 s: 75.9 to 76.2, without such arms 78.7 to 79.0; of 60 random plans
    that ship 50 could be raced, now all."""
    elsewhere: float = 0.3
    """How often stashes that a variation ships go to any device, not to their stage's mirror. Not measured."""
    raised: tuple[float, ...] = (0.5, 1.0, 3.0)
    """First orders of offloaded stashes are made for so much more memory. Not measured."""
    offloaded: tuple[float, ...] = (1.0, 0.4)
    """Shares of a pipeline's stages whose stashes are offloaded, in the simpler structures. Not measured."""
    tries: int = 12
    """Greedy orders of a start, the best of which is annealed."""
    fitted_tries: int = 100
    """The same where an arm begins again with less memory. Not measured."""
    least_moves: int = 50
    """Moves of one annealing at least."""
    repetitions: int = 24
    """Windows of time, the shortest a micro-batch first, that are repeated to lengthen an order."""
    overload: float = 1.02
    """A device's load may grow to so many times the largest when a layer moves. Not measured."""


@dataclass(frozen=True)
class Models:
    """Exact models: how large, how exact, how long. Effort is CP-SAT's deterministic time."""

    cuts: int = 256
    """Cuts up to which all are listed; the bound then comes from the candidates alone. Not measured."""
    listed_ops: int = 200_000
    """F and B of all candidates together up to which cuts are all listed. Not measured."""
    ops: int = 2400
    """F and B with one stage a device up to which a model is built, and every way to form groups gets the best bound
    there is. Not measured."""
    choosing: int = 3
    """Where stash policies are chosen, it is this part of them. Not measured."""
    first: float = 0.1
    """Effort of a candidate's first solve. Not measured."""
    first_open: float = 0.4
    """The same where stages choose their devices. Not measured."""
    longer: int = 4
    """A candidate's next solve gets so many times the effort."""
    without_shipping: int = 4
    """How many times the effort models with open devices get that ship nothing there and back: they are far smaller.
    Not measured."""
    open_seconds: int = 4
    """Seconds that models with open devices take for one of deterministic time. Not measured."""
    mirror: float = 0.4
    """Share of a solve's effort that mirrored schedules get."""
    ratio: int = 64
    """Denominators of durations up to which a common divisor is looked for: it says what times are exact.
    Not measured."""
    exact_ticks: int = 200_000
    """Ticks of a horizon up to which that divisor is the tick. Not measured."""
    fine_ticks: int = 2_000_000
    """Ticks of a horizon and an op of its longest path where it is not: rounding down loses less than 1e-6.
    Not measured."""
    coarse_ticks: int = 2_000
    """Ticks of a horizon until a candidate is solved in so many. Measured: with 85,000 exact ones 2 of effort did not
    solve six micro-batches of four stages; with 2,000, and then those, 0.13 did."""
    units: int = 1 << 20
    """Units of memory that a device has at most: they bound integers of sums. Not measured."""
    roomy: int = 4096
    """Largest demands of memory up to which free room is told apart. Not measured."""


@dataclass(frozen=True)
class Races:
    """The race of arms. Effort is in units of deterministic time, about a second each."""

    rate: float = 40e6
    """Runs of one op that are one unit. Not measured."""
    first: float = 0.2
    """Share of the effort for short runs of all arms."""
    restarts: float = 0.2
    """Share for more starts of the best structures: a start's own quality says little about what it leads to."""
    restarted: tuple[int, ...] = (9, 6, 4, 2)
    """How many more starts the best structures of the first round get, the best one most."""
    slice: float = 0.25
    """Effort that a start is worth at least."""
    fewest: int = 8
    """Structures that are tried in any case."""
    of_starts: float = 0.6
    """Share of all starts that may be first ones."""
    mutated: int = 3
    """Best arms that get variations of their stash policies in a round."""
    mutations: int = 3
    """Variations of each; while the best plan keeps every stash, as many stay as there are arms."""
    mutant: float = 1.1
    """Times the best arm's makespan up to which a variation stays. Not measured."""
    narrow: float = 0.1
    """An arm is near its bound where it may shorten the best plan by such a part, at most, of what another may: it and
    its like leave half of the places to others. Measured: 11 devices, 45 % of the memory, host links, 30 s, four seeds:
    141.8 to 144.7; without 155.8 to 157.2, all effort on one direction, whose bound is 156.0."""
    rounds: tuple[tuple[int, float], ...] = ((8, 0.3), (4, 0.35), (2, 0.5), (2, 1.0))
    """How many arms stay on, round after round, and the share of the effort left that each round takes."""
    other_route: int = 4
    """Of so many arms that stay on, one has another route. Measured: before moves were followed, BERT-Large in all that
    people choose, 60 s, three seeds: 0.11161 each, without 0.11161 to 0.11236."""
    neighbours: int = 16
    """Cuts next to one whose bound is reached that are raced at once. Not measured."""
    looked: int = 300
    """Cuts next to one that are looked at, at most. Not measured."""
    walks: int = 3
    """Walks from each cut at most: others have a use for the time. Measured: GPT-2 in everything that people choose, 60
    s: 5.170, without an end of walks 5.243 to 5.296."""
    walked: int = 100
    """Cuts at random of which bounds are looked at where those next to it are none better. Not measured."""
    uphill: float = 0.02
    """By so much of a bound may the next one be worse. Not measured."""
    whole: float = 1.0
    """Seconds of a first race at least, over several calls where one has less; each race has twice the one before. Time
    only. Measured: BERT-Large in everything that people choose, 60 s: most calls had 0.2 to 0.6 s, and every one began
    with fresh starts."""
    doublings: int = 20
    """So often at most: a day. Not measured."""
    an_op: float = 0.005
    """No race takes more seconds than this for each op of an order: then others, on other cuts, find more.
    Measured: 3 devices, 9 layers, two directions, host links, 30 s, ten seeds: 142.6 to 149.7; six with this and
    `two_cuts`: 140.6 to 142.8."""
    of_call: float = 0.25
    """That is no more than so much of what is left of the call: about what races get of it. Time only. Not measured."""
    stretched: int = 8
    """Arms of the race with fewer micro-batches that go on with all of them. Not measured."""
    least: float = 0.2
    """Seconds below which nothing is raced. Not measured."""
    least_effort: float = 0.05
    """The same in units. Not measured."""
    trial: float = 2e6
    """Runs of one op by which the computer's speed is taken. Not measured."""


@dataclass(frozen=True)
class Wandering:
    """Annealing over cuts. Effort is in runs of one op."""

    hot: tuple[float, ...] = (0.001, 0.004)
    """First temperatures, in makespans, each of a walk of its own. Measured: 12 devices, 12 micro-batches, a heavy
    first layer, 1.2 s, three seeds each: 0.001 ends at 794,066 to 800,588, 0.003 at 788,458 to 812,279; both, in 30 s
    of search, at 784,618 by each of three seeds, 0.001 alone at 784,618 to 810,141."""
    polish: int = 60
    """Runs of the whole order that the order gets on another cut. Measured: with the first temperature 0.003, 40 to 150
    make no difference."""
    polish_hot: float = 0.3
    """Their first temperature, in ops of mean length. Not measured."""
    worse: float = 1.03
    """So many times the makespan that would be accepted may an order take on another cut at first. Not measured."""
    together: float = 0.4
    """Share of the moves that shift neighbouring ends in one direction. Measured: 9 devices, 9 micro-batches, 1.5 s:
    0.9945 of the first plan, with 0.7 0.9948, with 0.15 0.9980."""
    two: float = 0.2
    """Share of the moves of two ends. Not measured."""
    look: int = 2_000
    """What one look at a cut counts. Not measured."""
    build: int = 10_000
    """What arrays for another cut count. Measured: 0.25 ms for both and a run of 1,944 ops, most of them known."""
    looks: int = 1_000
    """A walk ends after so many cuts on which no order is worth an annealing. Measured: of 18 random instances against
    peers, on plans of 5 s, 16 have no cut nearby that memory and order allow."""


@dataclass(frozen=True)
class Blocks:
    """The search for periodic blocks. Effort as in `Races`, in runs of one op of their own."""

    rate: float = 1e7
    """Runs of one op that are one unit. Measured: 7e6 to 4e7 a second on one core, 500 to 7,000 ops."""
    share: float = 0.25
    """Of the time that is left, at most, or of a round's effort. Not measured."""
    hunting: float = 0.5
    """Of that time for blocks at random, at most. Not measured."""
    least: float = 0.4
    """Effort that is saved up before there is a search. Not measured."""
    chunks: int = 8
    """Stages a device at most. Not measured."""
    few: tuple[int, ...] = (2, 4, 4, 8, 8)
    """Micro-batches a device that are scheduled, of blocks at random and round by round; others count at the rate of
    the middle ones. Measured: 12 devices, 63 micro-batches, four seeds: what 48 promise is up to 2 % too short, and the
    best promise is not kept best: 5,461,000 in the mean with 4 in all rounds, 5,383,000 with 8."""
    fewest: int = 24
    """The same, in all. Not measured."""
    many: int = 32
    """Devices from which on blocks at random are made on fewer. Measured: 32, 64, 128 devices, half of the memory, 2, 3
    and 6 s, three seeds, means of the best three: 46,811, 174,161, 195,921 without, 46,474, 171,995, 188,356 with."""
    fewer: int = 4
    """So many times fewer. Measured: with 2 times 46,518, 171,664, 189,394."""
    sketched: int = 40
    """Of so many the best is tried with all devices. Measured: with 10 46,566, 172,230, 190,068; the best annealed by
    100 moves 46,726, 173,937, 190,209."""
    sketching: float = 0.25
    """Share of the effort for blocks at random that all structures get, before those near the best. Not measured."""
    likely: float = 1.08
    """Times the best block up to which a structure is near. Not measured."""
    kinds: int = 4
    """Blocks of a structure that are annealed, of so many devices. Not measured."""
    ops: int = 800_000
    """Ops of the most of these micro-batches, all kinds, from which on there is no search. Not measured."""
    hunt: float = 1.0
    """Effort for blocks at random, of all structures. Not measured."""
    usual_ops: int = 10_000
    """Ops of a structure from which on all of this gets more effort, in proportion. Not measured."""
    most_more: float = 4.0
    """So many times as much at most. Not measured."""
    least_tries: int = 4
    """Blocks at random of a structure. Not measured."""
    most_tries: int = 300
    """The same of a small one. Not measured."""
    rounds: tuple[tuple[int, float], ...] = ((12, 1.5), (6, 1.5), (4, 2.0), (2, 1.0))
    """How many blocks stay on, round after round, and the effort of annealing them. Measured: 15 devices, 90 layers, a
    quarter of the memory, three seeds: 16,463, 16,973, 16,395, with (6, 1.0), (6, 2.0) at first 16,341, 18,312, 16,414:
    blocks at random of many stages a device, which are the best here, fall behind; five others the same. Before, four
    problems of 7 to 12 devices, four seeds: with (6, 3, 2) of 2.0 each 0.4 % longer; with six rounds 0.2 % shorter."""
    most_moves: int = 3000
    """Moves of one annealing at most. Not measured."""
    together: tuple[int, ...] = (2, 3)
    """Micro-batches of every pipeline in a period, of the best blocks with one. Not measured."""
    hot: tuple[float, ...] = (0.01, 0.01, 0.005, 0.002)
    """First temperature, as a share of the step, round by round. Not measured."""
    cold: float = 0.0002
    """Last temperature. Not measured."""
    offered: int = 2
    """Blocks that are unrolled after a round. Not measured."""
    near: float = 1.05
    """No more than half of what stays on is of one structure, where others come as near to the best. Not measured."""
    remembered: int = 4
    """Structures whose best blocks are simulated at the end, where they come as near. Not measured."""
    longer: float = 1.0
    """So many times the time for further rounds. Not measured."""
    again: float = 0.35
    """Share of later rounds of a search, where a block is near the best plan: for others, of which nothing is known.
    Measured: of six problems of 5 to 15 devices, 30 s, two or three seeds, one 1.0 % and one 0.1 % shorter than with
    0.2 that goes on with the blocks known, and 1.01 below; four the same in the mean."""
    promising: float = 1.03
    """Times the best plan up to which it is. Measured: with `again`."""
    worth: float = 0.002
    """Each has to find a plan that is shorter by so much. Measured: 10 devices, 68 micro-batches, four seeds: 27,039 in
    the mean instead of 27,673, whose best plans were found by the last moves."""


@dataclass(frozen=True)
class Flowing:
    """Free placement: cuts and devices of one pass a period, annealed."""

    share: float = 0.25
    """Of the time that is left, in the first turn. Measured: twelve problems of 6 to 16 devices, memory 1/4 to 5/8,
    three seeds: 6 s come 0.7 % below 4 s."""
    again: float = 0.08
    """The same in later ones, where the best is near. Not measured."""
    young: float = 0.1
    """Of the time since it began, and that is left, in all turns, before it says anything that none is near.
    Measured: 15 devices, 60 micro-batches in 30 % and 45 % of the memory, 30 s: 4 % and 1.6 % below none; 0.2 is as
    good."""
    in_rounds: float = 0.2
    """Of a round of the search, where the best is near. Not measured."""
    chunks: int = 4
    """Stages a device, at most, of its starts. Not measured."""
    stages: int = 256
    """At the most, and devices of the cluster: of more, links between any two are too many. Not measured."""
    starts: int = 2
    """Of every route, with other random numbers. Not measured."""
    rounds: tuple[tuple[int, float, float], ...] = (
        (100, 0.1, 0.01), (100, 0.4, 0.01), (6, 0.6, 0.005), (2, 1.0, 0.001),
    )  # fmt: skip
    """How many lines are annealed, more where each has all its moves, in which part of the time that is left, and from
    which temperature on, as a share of the seconds. Measured: seven problems of 5 to 16 devices, four seeds: 0.8 % less
    with more lines than without, in 6 s instead of 5. Two that end by chance, twelve seeds: sums of 1.926 without the
    second of these, 1.903 with it; 1.898, 1.893, 1.913 with 0.3, 0.5, 0.7 of the time for it and none for the first;
    seven others the same. Six, two seeds, 7 s: 3.1 % below (0.02, 0.02, 0.005), where some seeds are 8 % behind others.
    Half the lines hotter, half not: 0.15 % less."""
    near: tuple[float, ...] = (1.12, 1.12, 1.05, 1.05)
    """After each of these: no further where the best takes more than so many times what the best plan does.
    Measured: on twelve problems the first round's best takes 0 to 11 % more than the last one's."""
    again_near: float = 1.02
    """The same for later turns. Not measured."""
    offered_near: float = 1.03
    """Lines that promise more than so many times the best plan do not become plans. Not measured."""
    simulations: int = 40
    """More than one becomes a plan only where so many could be simulated in the time that is left. Not measured."""
    offered: int = 3
    """Lines that become plans in a turn. Not measured."""
    kept: int = 6
    """Lines that a turn leaves to the next. Not measured."""
    rate: float = 4e6
    """Moves times stages that are one unit. Measured: 4e6 to 7.5e6 a second, 22 to 30 stages."""
    least: float = 0.1
    """Units for which a turn is worth beginning. Not measured."""
    least_moves: int = 200
    """Of a line in a round. Not measured."""
    most_moves: int = 400_000
    """The same. Measured: 15 devices, heavy first layer, 12 s, four seeds: 23,588 to 23,836; with 60,000, where most of
    the time is left, 23,762 to 24,668."""
    fitted_moves: int = 2000
    """Of a line whose plan exceeds the memory. Not measured."""
    finer: float = 1.01
    """A period is tried after one that is so many times shorter, in annealing. Not measured."""
    finest: float = 1.001
    """The same for plans. Not measured."""


@dataclass(frozen=True)
class Growing:
    """Rules of the dispatcher in large problems. Effort as in `Races`, in runs of one op of their own."""

    rate: float = 1.2e7
    """Runs of one op that are one unit. Measured: 1.4e7 a second on one core, 16 devices."""
    share: float = 0.35
    """Of the time that is left, or of a round's effort, in large problems. Not measured."""
    small_share: float = 0.1
    """The same in others. Not measured."""
    most: float = 25.0
    """Units that one search takes at most. Not measured."""
    least: float = 0.4
    """Effort that is saved up before there is a search. Not measured."""
    ways: int = 2
    """Structures with the least bounds. Measured: with 64 devices at 1F1B's memory four stages a device, round and
    round, come to 2.7 % above the load, two to 4.0 %; back and forth four to 4 %."""
    small_ways: int = 4
    """The same in others. Not measured."""
    ops: int = 1_600_000
    """Ops of a plan, all kinds, up to which there is one: it bounds memory. Not measured."""
    simulations: float = 5.0
    """Simulations of 1F1B that its plan takes as long as, an op. Measured: 4 to 5 with 128 and 256 devices."""
    left: float = 0.6
    """Share of the time left that it may take at most. Not measured."""
    devices: int = 12
    """The fewest devices are no fewer. Not measured."""
    starts: int = 64
    """Lines at first. Measured: 16 devices, 64 micro-batches, 80 runs each: of 40 four to eight come near the bound,
    half end 2 % of the load above these."""
    rounds: tuple[tuple[int, float, float], ...] = ((64, 0.4, 0.3), (12, 0.0, 0.15), (4, 0.0, 0.1))
    """How many lines stay on, the share of rules at random, and of the effort, on the fewest devices. Not measured."""
    kept: int = 4
    """Lines that are grown; with every size half of them are annealed. Not measured."""
    growing: float = 0.45
    """Share of the effort for annealing on more devices. Not measured."""
    hope: tuple[float, ...] = (1.06, 1.03, 1.02)
    """On the fewest devices lines must promise less than so many times the best plan, round by round. Not measured."""
    finer: float = 0.5
    """On more devices moves are so much smaller. Not measured."""
    hot: float = 0.006
    """First temperature, as a share of the step; in later rounds less. Not measured."""
    cold: float = 0.0002
    """Last temperature. Not measured."""
    piece: float = 1e6
    """Ops that are run between two looks at the clock. Not measured."""


@dataclass(frozen=True)
class Rounding:
    """Rounds of a search with more and more effort: a shorter run is the beginning of a longer one."""

    effort: float = 0.25
    """Deterministic effort of the first. Not measured."""
    seconds: float = 2.0
    """Seconds of the first, where effort is not limited. Not measured."""
    simulations: float = 10.0
    """It takes at least so many times the longest simulation. Not measured."""
    growth: float = 2.0
    """Each has so many times the one before. Not measured."""
    idle: float = 0.5
    """What the share of a part that found nothing is multiplied by in the next round. Time only. Not measured."""
    idle_quick: float = 0.25
    """The same of grids and named orders, which are nearly done when they find nothing. Time only. Measured: of the
    second 4 s for Llama-7B on a slow network they took 3."""
    least_credit: float = 0.25
    """It gets no smaller than so many times what it was at first. Time only. Not measured."""
    other_space: int = 3
    """One in so many rounds that are too short for two spaces, with copies and without, is for the one that has not the
    best plan. Not measured."""
    largest: float = 4.0
    """Up to so many times the limit: a round may leave much of its own unused. Not measured."""


@dataclass(frozen=True)
class Placings:
    """The search for forward and backward devices at any size. Effort as in `Races`."""

    rate: float = 5e6
    """Runs of one op that are one unit. Measured: 4.6e6 a second on one core, 64 to 1,000 ops."""
    trial: float = 2e5
    """Runs of one op by which the computer's speed is taken. Not measured."""
    chunks: tuple[int, ...] = (1, 2)
    """Stages a device on cuts that no simulated plan has. Not measured."""
    keyed: int = 3
    """Named orders of one route and cut whose times are keys, and cuts of them that are tried with plain keys.
    Not measured."""
    keyed_orders: int = 12
    """Named orders whose times are keys, of all routes and cuts. Not measured."""
    behind: float = 1e-3
    """Micro-batches that forwards are behind backwards in plain keys: at equal numbers backwards come first.
    Not measured."""
    copies: float = 1.0
    """What stays on a device all the time, as a multiple of its even share, where caps are first chosen.
    Not measured."""
    ahead: tuple[int, ...] = (1, 2)
    """A stash comes back when the backward so many stages later begins, in starts. Not measured."""
    starts: float = 0.2
    """Share of the effort for starts. Not measured."""
    packed: int = 12
    """Starts of an order whose devices have about equal work. Measured: 11 random problems, 2 s, five seeds: with 12
    0.9 % shorter in the mean than with none, 1.6 % than with 32."""
    uneven: float = 0.2
    """What lengths and loads are changed by, there. Not measured."""
    of_an_order: int = 3
    """Best starts of one order that are annealed. Not measured."""
    arms: int = 24
    """Starts that are annealed. Not measured."""
    rounds: tuple[tuple[int, float], ...] = ((24, 0.3), (8, 0.35), (3, 0.4), (2, 0.5))
    """How many arms stay on, round after round, and the share of the effort left that each round takes.
    Not measured."""
    hot: tuple[float, ...] = (0.05, 0.03, 0.02, 0.05)
    """First temperature, as a share of the step, round by round. Not measured."""
    cooled: float = 0.05
    """Last temperature, as a share of the first. Not measured."""
    least_moves: int = 50
    """Moves of one annealing at least. Not measured."""
    enough_moves: int = 6000
    """Moves that an arm gets at least in a round of several. Measured: problem 2106/0 of the mechanisms, one pipeline,
    8 s, six seeds: 6 come to 135 or less with 6000, 4 with 2000, 1 with 500."""
    wave_moves: int = 60_000
    """Moves of all arms after which others have their turn. Not measured."""
    patience: float = 1000.0
    """Moves without a better plan after which there are no more, times devices, stages, micro-batches and stash
    choices. Measured: 4 random problems, 15 s: nothing was found after 20 times as many."""
    fitted: int = 5
    """A plan that does not fit is looked for with less memory so often. Not measured."""


@dataclass(frozen=True)
class Mixing:
    """Annealing without a flush of devices, stash choices and cuts together. Effort as in `Races`."""

    rate: float = 2e6
    """Stages times moves that are one unit. Not measured."""
    chunks: int = 3
    """Stages a device at most. Not measured."""
    stages: int = 8
    """Stages that a plan may have however few its devices are. Not measured."""
    rounds: tuple[tuple[int, float, int], ...] = ((24, 0.4, 100), (4, 0.5, 400), (1, 1.0, 1600))
    """How many starts stay on, round after round, the share of the time left that each round takes, and the moves that
    a start gets at most, times layers and devices. Measured: 1200 moves times those in all, 9 random problems, 2 to 4
    times each, beside half for 24 starts and half for 6: 6 shorter, 7 % the most, 0.1 % longer at most; half for 24 and
    half for 1 as good, for 6 and 2 as good where 6 starts are enough, 19 % longer on one where they are not."""
    patience: int = 2
    """Rounds without a better plan after which there are no more. Not measured."""
    turns: int = 5
    """Times that all of this begins anew, with other random numbers, without a better plan. Not measured."""
    longer: float = 2.0
    """As many times as many moves a start gets at most whenever all of this begins anew. Measured: 30 random problems,
    30 s, with lines that may decide less: 7 shorter, 2 longer, 0.5 % in the mean; those lines alone 3, 2 and 0.4 %."""
    heats: tuple[tuple[float, float], ...] = ((0.05, 0.0), (0.01, 0.5), (0.003, 0.5))
    """First temperature, and how much evenness counts, of one start and the next. Measured: of three random problems
    with 40,000 to 640,000 moves (0.02, 20.0) came last on all, the others first on one each; 16 random problems, 30 s,
    against ((0.05, 0.0), (0.01, 0.5), (0.05, 0.0), (0.02, 20.0)): 7 shorter, up to 6 %, 3 longer, up to 3 %."""
    cooled: float = 0.02
    """Last temperature, as a share of the first. Not measured."""
    cold: float = 0.002
    """The temperature at which a plan that does not fit is made to. Not measured."""
    least_moves: int = 200
    """Moves of one annealing at least. Not measured."""
    fitted: int = 6
    """A plan that does not fit is looked for with less memory so often. Not measured."""


@dataclass(frozen=True)
class Hopes:
    """What is expected of something before it is tried."""

    of_gap: float = 0.5
    """How much of the distance to its bound an arm, or a way to form groups, is trusted to make good."""
    idle: float = 1.5
    """All devices as one group are tried last where their work takes so many times what the best way may."""
    cheap_reduction: float = 0.05
    """Replicas need not be near each other where reductions take no more than this share of the step."""
    copied: float = 0.5
    """How much of what a host link can take in a step is trusted to be copied beside the computing. Not measured."""
    serial: float = 5.0
    """Times the bound above which the best plan runs hardly more than one micro-batch at a time: then updates that
    begin with an empty pipeline are looked at before annealing, which begins from the best plan. Measured: problem
    8501/11 of the mechanisms, 60 s, three seeds: 19.5 s a micro-batch in the mean with them later, 21.1 with them
    before, 19.0 without; 8501/9 60.4 later, 37.9 before."""
    shorter: float = 0.9
    """Steps that take so much less than the last ones are repeated at once, others at the end. Not measured."""
    drained: float = 1.15
    """Updates that begin with an empty pipeline are searched further up to so many times the best period.
    Not measured."""
    early: float = 1.5
    """Times its bound above which the best of the first plans says little of where a search will end. Measured: problem
    3104/8 of the mechanisms, 60 s: 805 with it, 876 and 818 without."""
    nearby: float = 1.2
    """Times the best plan up to which a named schedule is tried on cuts next to its best one. Measured: 40 instances
    against peers, seed 2010: with 1.1 one of them is 1.5 % longer than a V by name; 0.7 s more in the mean."""
    fruitless: float = 0.5
    """What is hoped of a point of a family that found nothing in its turn, as a part of what was. Measured: of 8 A100
    twice over 20 s stayed with one that found nothing any more, 10 % above what its neighbour had to find."""
    waiting: float = 0.5
    """What waiting for messages adds to a uniform grid, times the third power of how full its busiest link is.
    Measured: Llama-7B, 4 nodes on 10 Gb/s, links 89, 73, 50, 47 and 25 % full: 35, 26, 6, 7 and 5 % above the guess."""
    misjudged: float = 1.05
    """What uniform grids of some groups came to beside what was guessed may be so many times too much for others of
    theirs. Measured: on groups of two devices 1.5 to 1.7 for all, of four 1.1 to 1.3, of eight 1.06 (gpt2-64, 16 A100):
    the best of 700 came as the 218th without what was learnt."""
    relieved: float = 0.96
    """What a uniform grid whose stashes are relieved may come to, times its guess, before any of its groups is known.
    Measured: of 30 points of five jobs 0.94 to 3; Llama-13B on 16 A100, 60 s: 12.56 for 12.62."""
    blocks: float = 0.01
    """A plan of whole blocks that takes longer than the best of their parts by a smaller share may soon be shorter.
    Not measured."""
    finer: float = 0.75
    """A plan on equal groups may be shorter by this part of its longest gradient sum with its stages in pieces, whose
    sums are beside backwards: so much longer than the best it is tried so, too. Measured: seven jobs' best plans are
    0.3 to 1.1 % shorter in pieces; on a slow network one of 0.360 s came to 0.345 where 0.366 s was the best before."""
    unlikely: float = 1.5
    """A best plan that takes so many times what 1F1B is expected to is not to be improved but to be replaced.
    Measured: of 24 random problems 23 end below 1.3 times that, one at 1.44; 14 devices with 15 % of the memory that
    1F1B takes stood at 2.5 times it, and stayed at 391 s, when quick plans that change stashes were given up: 101 s."""
    near_width: float = 1.05
    """Stages of a way to form groups are cut finer, and their ends moved, where its plans take at most so many times
    what the best does. Measured: of 30 s on two random jobs 2 and 4 s went to others, which brought nothing."""
    unlaid: float = 1.02
    """A way to form groups whose plans were never the best is thought to have one that takes so many times what the
    best does. Not measured."""
    replicated: float = 1.2
    """Stages with replicas of their own are improved, without a flush, where they take at most so many times what the
    best plan does. Measured: of 110 on random problems, 1 to 3 times as long, none became the best, in a fifth of the
    time."""
    next_way: float = 1.05
    """What stages with replicas of their own promise falls so much with every way in which they have been tried, by how
    many are in flight and whether backwards are halved. Measured: of 8 random problems the best plan comes after 0.8 s
    at the most; 13 where all are tried in their first way, then all in their next."""
    spread: float = 1.2
    """They are not tried where the recursion expects so many times the best step. Measured: of 8 random problems the
    best ones take 0.94 to 1.07 times what it expects."""
    without_copies: float = 1.05
    """The space without copies is left where its plans take so many times what those with copies do. Not measured."""
    held_back: float = 1.02
    """Memory is thought to hold the step back where it is more than so many times its bound."""
    best_window: float = 0.6
    """Share of the windows that go to the best order, the others to any."""
    better_order: float = 0.002
    """An order of a graph's layers is searched where a stage time promises to be less by this share. Not measured."""
    passing: float = 1e-3
    """How closely estimates of a graph's period without a flush are solved that are no bounds. Not measured."""
    uneven: float = 0.1
    """What an uneven cut costs: of the mean load, for a stage twice the mean of all."""
    hidden: float = 0.1
    """Share of their seconds that copies, messages and recomputation cost a step where nothing is too busy for them.
    Not measured."""
    worst: float = 24.0
    """Exponent by which the worst device counts most in a cut."""
    handed_on: float = 0.6
    """Share of random moves of boundaries that move a run of them in one direction. Measured: 100 routes of random
    problems 0.02 % above the best of eight ways to look in the mean, at most 0.8 %; 0.4 and 6 % without such moves."""
    slack: float = 0.2
    """How much worse a moved boundary may make a cut, where moves downhill alone have ended. Measured: 160 routes of
    12 layers 0.00 % above the best, with 0.1 0.03 %, with moves downhill alone 0.6 %."""
    update_room: tuple[float, ...] = (0.5, 1.0)
    """Shares of an update's STEP that every micro-batch leaves time for, in variants."""
    narrower: float = 0.7
    """Intervals that may fit are looked for again when the period is so much shorter: time only."""


@dataclass(frozen=True)
class Seconds:
    """Seconds of the clock; none of them is measured by deterministic effort."""

    grace: float = 0.25
    """After the time limit, what was begun before it may come to its end; then it is given up."""
    explained: float = 5.0
    """Each of the searches that say what memory, a micro-batch more or less and one more device would give, at most a
    quarter of the time limit. Measured: on the toy model with 8 micro-batches what is found in 5 s is found in 1."""
    both_sharings: float = 1.0
    """Shorter searches do not look at whole optimizers beside shared ones before their end. Not measured."""
    compilation: float = 18.0
    """A first compilation of the kernels on a slow, busy computer, at most."""
    ahead: int = 900
    """A compilation in a process of its own, for later calls, ends itself after so many. Not measured."""
    timetable: float = 45.0
    """Shorter calls do not compile the timetable without a flush. Measured: that takes 33 s on a core that others use
    too."""
    window: float = 3.0
    """A window, without a deterministic limit."""
    window_effort: float = 0.5
    """A window's deterministic seconds, where effort is limited."""
    progress: float = 0.2
    """Between two looks at the clock while arms run or a solve does."""
    tried: float = 0.5
    """What had less has not had its turn: that it found nothing does not count. Measured: 14 devices with 15 % of the
    memory of 1F1B, a first look of 0.1 s at either sharing: 391 s where it counted, else 101 s."""
    width_turn: float = 1.0
    """A turn of a way to form groups, at the least: its parts would find nothing in less."""
    both_spaces: float = 10.0
    """Rounds that have less are for one space, with copies or without. Measured with turns of groups,
    `width_turn`: before, BERT-Large on 8 RTX 4090 in 30 s had 0.2 s of order search at a time, which found nothing."""
    no_progress: float = 0.1
    """A round that took less has nothing to do: rounds end."""
    head_start: float = 0.5
    """The first solve of a model runs alone for so long, then others start."""
    patience: float = 0.3
    """A solve that has been stopped may end within; then it is left to itself."""
    leaving: float = 30.0
    """Those that were left may end within before the process does."""
    solve: float = 0.01
    """A solve gets at least, and a window counts for at least, of the clock or deterministic."""
    stopping: float = 0.02
    """Between two calls to a solve that it stop."""
    shortest: float = 1e-12
    """A period is taken to be no shorter where nothing takes any time."""
    tick: float = 1e-3
    """What took no measurable time or effort counts for so much."""
    timed: float = 0.05
    """A part of a race that took more is a measure of the computer's speed."""


@dataclass(frozen=True)
class Tolerances:
    """Shares by which numbers may differ, and count as equal."""

    proven: float = PROVEN_GAP
    """A plan whose gap is no larger is optimal."""
    same: float = 1e-9
    """Round-off of sums of durations: what is not shorter by more is not better; periods are looked for so closely."""
    chains: float = 1e-7
    """How closely periods are looked for where forwards and backwards are cut on their own. Not measured."""
    whole: float = 1e-6
    """A solver's bound is a whole number if it lies above it by no more."""
    serial: float = 1e-6
    """A step of one op at a time is taken to be so much longer, so that it is a horizon."""
    sums: float = 1e-12
    """Round-off of one sum: estimates of periods are widened by it, and what is shorter by more is the best plan."""
    overhead: float = 0.02
    """Overheads that nobody measured are worth a line where such as are usual lengthen a plan by more. Not measured."""


SHARE, SIZE, COUNT, HOPE = Shares(), Sizes(), Counts(), Hopes()
ANNEALING, RACE, PLACE, MIXTURE, MODEL = Annealing(), Races(), Placings(), Mixing(), Models()
WANDERING = Wandering()
BLOCK, FLOW, GROWTH = Blocks(), Flowing(), Growing()
ROUND = Rounding()
SECONDS, TOLERANCE = Seconds(), Tolerances()
