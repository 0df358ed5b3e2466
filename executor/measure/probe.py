"""What `contraflow env` asks in a process of its own, since an import may fail, crash or take its time.

`python -m contraflow.executor.probe kernels` or `torch` prints one JSON object a line; what is printed before a crash
counts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA_SETS = ("fashion-mnist", "mnist-5k", "reviews", "verses")


def kernels() -> Iterator[dict[str, Any]]:
    """Where compiled kernels are cached, whether they are, and whether more can be."""
    from ...planner.search import kernel_cache

    folder, warm = kernel_cache()
    writable = folder is not None and _writable(folder)
    yield {"kernels": {"cache": folder and str(folder), "warm": warm, "writable": writable}}


def _writable(folder: Path) -> bool:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return os.access(existing, os.W_OK)


def with_torch() -> Iterator[dict[str, Any]]:
    """Torch's build and devices, and the data sets that are found."""
    import torch
    from torch import distributed

    there = distributed.is_available()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield {
        "torch": {
            "version": str(torch.__version__),
            "commit": torch.version.git_version,
            "cuda": torch.version.cuda,
            "threads": torch.get_num_threads(),
            "gloo": there and distributed.is_gloo_available(),
            "nccl": there and distributed.is_nccl_available(),
            "gpus": [torch.cuda.get_device_name(k) for k in range(count)],
        }
    }
    yield {"data": {name: _found(name) for name in DATA_SETS}}


def _found(name: str) -> bool:
    from ...models.data import MissingData, load

    try:
        load(name)
    except MissingData:
        return False
    return True


def main() -> None:
    """Prints what is asked for."""
    for answer in {"kernels": kernels, "torch": with_torch}[sys.argv[1]]():
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
