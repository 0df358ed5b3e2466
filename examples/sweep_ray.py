"""Ray over clusters: many plans at once, on this machine or on whatever cluster Ray has.

pip install "contraflow[examples]" ray
python examples/sweep_ray.py --cpus 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import ray
from sweep_problem import MIB, MODEL, Machine, machines, planned, tell

from contraflow.planner import Result


def sweep(devices: Iterable[int], memories: Iterable[int]) -> dict[Machine, Result]:
    """Every number of devices with every memory, as many at a time as Ray has processors; the model is sent once."""
    asked, task = machines(devices, memories), ray.remote(num_cpus=1)(planned)
    model = ray.put(MODEL)
    return dict(zip(asked, ray.get([task.remote(model, *one) for one in asked]), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpus", type=int, default=2)
    ray.init(num_cpus=parser.parse_args().cpus, include_dashboard=False, log_to_driver=False)
    tell(sweep((2, 4, 8), (256 * MIB, 1024 * MIB)))
