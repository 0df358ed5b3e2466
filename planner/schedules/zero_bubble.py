"""Zero-bubble schedules with the stages in device order: ZB-H1, ZB-H2 and interleaved 1F1B with split backwards.

ZB-H1, 3 devices, 4 micro-batches, F = I = W, one column a slot:

    device 0   F0 F1 F2 .  .  I0 W0 F3 I1 W1 .  I2 W2 .  I3 W3
"""

from __future__ import annotations

from ..plan import Op
from .layout import Layout, forward, input_backward, pipeline, require
from .list_order import with_weights
from .one_way import grouped_order, looped


def zb_h1(devices: int, micro_batches: int) -> Layout:
    """1F1B with split backwards and its memory, D stashes (Qi et al., arXiv:2401.10241, section 2.1).

    Bubble (D-1)(F + I - W) for W <= F, W <= I and N >= D.
    """
    return _split_1f1b("zb-h1", [devices - s for s in range(devices)], micro_batches, devices)


def zb_h2(devices: int, micro_batches: int) -> Layout:
    """Stage s starts with 2(D-s) - 1 forwards and holds up to 2D - 1 stashes (arXiv:2401.10241, section 2.2).

    From its first op to its last a device idles (D-1)(F + I - 2W) at most, for W <= F, W <= I and N >= 2D - 1;
    devices start and end one F after each other, which an optimizer step that waits for nobody would hide.
    """
    warm = [2 * (devices - s) - 1 for s in range(devices)]
    return _split_1f1b("zb-h2", warm, micro_batches, 2 * devices - 1)


def _split_1f1b(name: str, warm: list[int], micro_batches: int, most: int) -> Layout:
    devices = len(warm)
    orders: list[list[Op]] = []
    for s, before in enumerate(warm):
        order = [forward(s, m) for m in range(min(before, micro_batches))]
        for m in range(micro_batches):
            order.append(input_backward(s, m))
            if m + before < micro_batches:
                order.append(forward(s, m + before))
        orders.append(order)
    placed = with_weights(orders, range(devices), most)
    return Layout(name, devices, (pipeline(range(devices), range(micro_batches)),), placed, most=most)


def interleaved_zb(devices: int, micro_batches: int, chunks: int = 2) -> Layout:
    """Interleaved 1F1B with split backwards and 1F1B's memory: D stashes of a device's share.

    Groups of D micro-batches visit a chunk one after the other (arXiv:2104.04473); a device begins with one F for
    every device behind it, not two as where backwards are whole: its I comes back sooner (arXiv:2401.10241). Bubble
    (D-1)F/v for F = I = W and N >= D. A last group of fewer micro-batches keeps the order of a whole one.
    """
    return _grouped(f"interleaved-zb-{chunks}", devices, micro_batches, chunks, devices)


def interleaved_zb_half(devices: int, micro_batches: int, chunks: int = 2) -> Layout:
    """The same in groups of half the devices: (v-1)D/2 + D stashes of a chunk, 3/4 of 1F1B's at v = 2, 5/8 at v = 4.

    (Qi et al., arXiv:2405.15362, grouped interleaving.) A chunk's stashes live as long as its group is on its way, so
    smaller groups hold less, and wait for their first micro-batch at every lap.
    """
    return _grouped(f"interleaved-zb-half-{chunks}", devices, micro_batches, chunks, (devices + 1) // 2)


def interleaved_zb_wide(devices: int, micro_batches: int, chunks: int = 2) -> Layout:
    """Interleaved zero-bubble with two F for every device behind, as where backwards are whole.

    It takes (v+1)D-1 stashes of a chunk and hides messages that take as long as an F.
    """
    return _grouped(f"interleaved-zb-wide-{chunks}", devices, micro_batches, chunks, devices, lead=2)


def _grouped(name: str, devices: int, micro_batches: int, chunks: int, group: int, lead: int = 1) -> Layout:
    require(chunks >= 2, name, f"needs at least 2 chunks a device, got {chunks}")
    whole = -(-micro_batches // group) * group
    ahead = (chunks - 1) * group
    orders = [
        [
            op
            for op in grouped_order(d, devices, whole, chunks, group, ahead + lead * (devices - 1 - d), input_backward)
            if op.micro_batch < micro_batches
        ]
        for d in range(devices)
    ]
    route = looped(devices, micro_batches, chunks)
    most = ahead + lead * (devices - 1) + 1
    return Layout(name, devices * chunks, (route,), with_weights(orders, route.forward, most), most=most)
