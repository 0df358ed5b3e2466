"""Every message of a step: the only enumeration there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..plan import Kind, Op, Pipeline
from ..problem import StageCosts, returned_bytes
from .candidate import Structured, closings
from .policies import ship_target, stash_policy
from .replicas import holders, parameter_returns


class Message(NamedTuple):
    """One tensor (or the parameters of a stage) that crosses devices, and the ops at its two ends."""

    source: int
    send: Op
    target: int
    receive: Op
    bytes: int


def messages(plan: Structured, costs: StageCosts) -> Iterator[Message]:
    """Every message of a step, even of 0 bytes: activations forward, gradients back, stashes, and new parameters.

    None between stages on one device. A stash goes from the forward to the backward device, or is shipped there and
    back. Stages without parameters return none in a synchronous plan; in others, their versions count all the same.
    """
    for number, pipeline in enumerate(plan.pipelines):
        for producer, consumer, size in costs.edges:
            a, b = pipeline.forward[producer], pipeline.forward[consumer]
            c, d = pipeline.backward[consumer], pipeline.backward[producer]
            for m in pipeline.micro_batches:
                if a != b:
                    send, receive = Op(Kind.SEND_F, producer, m, consumer), Op(Kind.RECV_F, consumer, m, producer)
                    yield Message(a, send, b, receive, size)
                if c != d:
                    send, receive = Op(Kind.SEND_B, consumer, m, producer), Op(Kind.RECV_B, producer, m, consumer)
                    yield Message(c, send, d, receive, size)
        for stage, policy in enumerate(plan.stash[number]):
            size = int(stash_policy(policy).moved_bytes(costs)[stage])
            for source, target in stash_hops(pipeline, stage, policy):
                for m in pipeline.micro_batches:
                    send, receive = Op(Kind.SEND_S, stage, m, target), Op(Kind.RECV_S, stage, m, source)
                    yield Message(source, send, target, receive, size)
    for stage, source, target in parameter_returns(plan, costs):
        trained = [s for s, owners in holders(plan).items() if target in owners]
        size = returned_bytes(int(costs.trained_bytes[stage]), costs.ties, stage, trained)
        for m in closings(plan):
            send, receive = Op(Kind.SEND_P, stage, m, target), Op(Kind.RECV_P, stage, m, source)
            yield Message(source, send, target, receive, size)


def stash_hops(pipeline: Pipeline, stage: int, policy: str) -> list[tuple[int, int]]:
    """The pairs of devices between which a stage's stash (recompute: what it keeps) goes as a message, in order."""
    home, back, away = pipeline.forward[stage], pipeline.backward[stage], ship_target(policy)
    if away is not None:
        return [(home, away), (away, home)] if home == back != away else []
    return [(home, back)] if home != back and stash_policy(policy).crosses else []
