"""Named orders whose stashes are shipped to other devices where their own do not hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ... import bounds
from ...basics import PlanError, check_time
from ...forecast import Timeline, simulate_orders
from ...graph import Candidate
from ...lower import assembled
from ...partition import Cuts, cut
from ...plan import Op
from ...schedules import Layout, capped
from ..common import COUNT, SIZE, Session, missing
from .fullest import in_flight
from .portfolio import Order, busiest_s, caps, named_layouts, not_split, place, whole_backwards
from .shipping import Shipping, with_guests
