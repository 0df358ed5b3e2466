"""The loop of `balanced`: one function, run as plain Python for a little work and compiled by numba for much."""

from __future__ import annotations

from typing import Any

RANDOM = 7
"""Random numbers of a move."""


def descend(
    ends: Any, best: Any, trial: Any, busy: Any, after: Any, first: Any,
    load: Any, forward: Any, device: Any, pace: Any, new: Any,
    randoms: Any, slack: float, together: float, each: float, mean: float, even: float, worst: float,
) -> float:  # fmt: skip
    """Moves the boundaries `ends` [stages+1] at random towards the least cost; leaves the best ones in `best`.

    First downhill alone, later up to `slack` of the cost uphill, too. A move is one boundary or two by a layer, or, in
    the share `together` of them, neighbours in one direction: these hand a layer on from a stage to one far from it.

    Work: trial [stages+1]; busy, after [devices+1] seconds of a micro-batch of each route, and by how much stages
    differ from their mean; first [devices]. Given: load, forward [layers+1] sums; device, pace [routes * stages]; new:
    1 where a route comes to a device for the first time, -1 where it has been to all; randoms [moves * RANDOM].
    """
    stages, devices, moves = len(ends) - 1, len(first), len(randoms) // RANDOM
    routes, usual = len(device) // stages, load[-1] / stages
    if usual <= 0:
        usual = 1.0
    for r in range(routes):
        for s in range(stages):
            busy[device[r * stages + s]] += (load[ends[s + 1]] - load[ends[s]]) * pace[r * stages + s]
    for s in range(stages):
        busy[devices] += abs(load[ends[s + 1]] - load[ends[s]] - usual)
    for s in range(stages + 1):
        trial[s] = ends[s]
    for d in range(devices + 1):
        after[d] = busy[d]
    cost = least = 0.0
    for move in range(-1, moves):
        low, high = 1, 0
        uphill = 0.0
        if move >= 0:
            at = move * RANDOM
            left = 2 * (1 - move / moves)
            if left < 1:
                uphill = slack * randoms[at] * left
            one = 1 + int(randoms[at + 2] * (stages - 1))
            other = 1 + int(randoms[at + 3] * (stages - 1))
            low, high = min(one, other), max(one, other)
            by = 1 if randoms[at + 4] < 0.5 else -1
            if randoms[at + 1] < together:
                for s in range(low, high + 1):
                    trial[s] += by
            elif randoms[at + 5] < 0.5:
                low = high = one
                trial[one] += by
            else:
                trial[one] += by
                trial[other] += 1 if randoms[at + 6] < 0.5 else -1
            fits = True
            for s in range(low - 1, high + 1):
                if trial[s] >= trial[s + 1]:  # a stage would be empty
                    fits = False
            if not fits:
                for s in range(low, high + 1):
                    trial[s] = ends[s]
                continue
            for d in range(devices + 1):
                after[d] = busy[d]
            for s in range(low, high + 1):
                more = load[trial[s]] - load[ends[s]]
                for r in range(routes):
                    behind = r * stages + s
                    after[device[behind - 1]] += more * pace[behind - 1]
                    after[device[behind]] -= more * pace[behind]
            for s in range(low - 1, high + 1):
                after[devices] += abs(load[trial[s + 1]] - load[trial[s]] - usual)
                after[devices] -= abs(load[ends[s + 1]] - load[ends[s]] - usual)
        for d in range(devices):
            first[d] = -1.0
        for r in range(routes):
            there = 0.0
            for s in range(stages):
                k = r * stages + s
                if new[k] < 0:
                    break
                if new[k] > 0 and (first[device[k]] < 0 or there < first[device[k]]):
                    first[device[k]] = there
                there += (forward[trial[s + 1]] - forward[trial[s]]) * pace[k]
        most = total = 0.0
        for d in range(devices):
            most = max(most, each * after[d] + first[d])
        for d in range(devices):  # of the worst, whose own power may be more than a number holds
            total += ((each * after[d] + first[d]) / (most if most > 0 else 1.0)) ** worst
        value = most / mean * total ** (1 / worst) + even * after[devices] / usual
        if move >= 0 and value > cost * (1 + uphill):
            for s in range(low, high + 1):
                trial[s] = ends[s]
            continue
        cost = value
        for s in range(low, high + 1):
            ends[s] = trial[s]
        for d in range(devices + 1):
            busy[d] = after[d]
        if move < 0 or cost < least:
            least = cost
            for s in range(stages + 1):
                best[s] = ends[s]
    return least
