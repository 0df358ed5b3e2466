"""Columns in the page's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..graph import Floats, Ints


def coded(values: Ints | Floats) -> dict[str, list[Any]]:
    """A column as a table of its values, ascending, and for every entry its place there."""
    table, index = np.unique(values, return_inverse=True)
    return {"table": table.tolist(), "index": index.reshape(-1).tolist()}


def columns_of(data: Mapping[str, Any]) -> list[Any]:
    """The entries of a coded column."""
    return [data["table"][place] for place in data["index"]]
