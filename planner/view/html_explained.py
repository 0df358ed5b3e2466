"""Why a plan takes as long as it does, for the page: gaps to colour, and the sentences and tables of the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..forecast import Cause
from ..search import Explanation
from .html_columns import coded
from .palette import SHORT
from .reasons import binding, gap_sentence, idle_sentence, idle_table, meanings, what_if_table

_CAUSES = list(Cause)


def explained_data(found: Explanation, devices: int) -> dict[str, Any]:
    """`spans`: columns of the gaps in the forecast, `cause` counting as in `Cause`; the rest is text."""
    rows, same = what_if_table(found)
    return {
        "binding": binding(found, devices),
        "spans": {
            "device": [span.device for span in found.spans],
            "start_s": coded(np.array([span.start_s for span in found.spans])),
            "end_s": coded(np.array([span.end_s for span in found.spans])),
            "cause": [_CAUSES.index(span.cause) for span in found.spans],
        },
        "idle": idle_sentence(found, devices),
        "table": idle_table(found, devices),
        "causes": [[SHORT[cause], cause.value] for cause in Cause],
        "meanings": meanings(found),
        "gap": gap_sentence(found),
        "what_if": rows,
        "same": same,
    }
