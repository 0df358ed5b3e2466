"""Stashes that leave a rank and come back, as its list says.

OFFLOAD and FETCH are handed to threads that copy, SEND_S and RECV_S post. Nothing here blocks but FREE.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...planner.plan import Kind, Op
from ..place import OpRecord
from .stashes import Layouts, Stashes
from .step_state import StepState, Transfer
from .worker import Handler, Worker


class StashOps:
    """What a rank's list moves of its stashes.

    Attributes:
        stashes: those that are away, and how they come back.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, around = worker, worker.around
        layouts = {n: Layouts.of(own, worker.agreed[n]) for n, own in worker.resized.items()}
        self.stashes = self._stashes = Stashes(
            worker.transport,
            layouts,
            lambda op, piece: worker.to.stash_tag(op, piece),
            around.track,
            around.place,
            worker.finish,
            around.hosted,
        )
        self.handlers: Mapping[Kind, Handler] = {
            Kind.OFFLOAD: self._offload,
            Kind.FETCH: self._fetch,
            Kind.FREE: self._free,
            Kind.SEND_S: self._send,
            Kind.RECV_S: self._receive,
        }

    def _offload(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker = self._worker
        home, back = worker.to.devices(op)
        sent = None
        if worker.stash_policy(op).versioned and worker.course.versions is not None:
            weights = worker.replicas[op.stage].weights
            version = state.versions[op.stage].at(worker.course.versions.backward[op.stage, op.micro_batch])
            sent = {name: version[name] for name in weights.trained}
        reader = None if home == back else back
        transfer = self._stashes.offload(state, op, record, worker.stash_policy(op), reader, sent)
        state.departed[op.stage, op.micro_batch] = transfer
        worker.leave(state, transfer)

    def _fetch(self, state: StepState, op: Op, record: OpRecord) -> None:
        """Starts at its position or, where the forecast has it wait in line, after the op that it waits for.

        A rank that queues waits for another one's host copy itself: not before it has posted all that is listed before
        its next op in line, which may be what the other one waits for.
        """
        worker = self._worker
        position = state.position
        listed = [state.leaving[k] for k in state.leaving if worker.course.order[k].kind in (Kind.OFFLOAD, Kind.SEND_S)]
        gate = worker.course.waits.starts[position]
        home, back = worker.to.devices(op)
        if home == back:
            arrived = state.departed[op.stage, op.micro_batch]
        else:
            arrived = self._stashes.expect_host_copy(state, op, home)

        blocks = home != back and worker.place.queues

        def start() -> None:
            if blocks:
                worker.finish(state, arrived)
            left = [state.leaving[k] for k in worker.course.waits.left[position] if k in state.leaving]
            self._stashes.fetch(state, op, record, list(dict.fromkeys([*left, *listed])), arrived)

        if gate < position and not blocks:
            start()
        else:
            state.waiting.append((max(gate, position), start))

    def _free(self, state: StepState, op: Op, record: OpRecord) -> None:
        departed = state.departed.get((op.stage, op.micro_batch))  # none: its backward has used it already
        self._worker.finish(state, departed)
        state.times.end(record)

    def _send(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker = self._worker
        home, _ = worker.to.devices(op)
        key = (op.stage, op.micro_batch)
        if home != worker.transport.rank:
            worker.leave(state, self._stashes.send_back(state, op, record))
            return
        if key in state.inputs:
            kept = [tensor.contiguous() for tensor in state.inputs.pop(key)]
            tags = [worker.to.stash_tag(op, number) for number in range(len(kept))]
            handles = [worker.transport.post_send(t, op.peer, tag) for t, tag in zip(kept, tags, strict=True)]
            transfer = Transfer(kept, handles, record)
        else:
            transfer = self._stashes.send(state, op, record)
        state.departed[key] = transfer
        worker.leave(state, transfer)

    def _receive(self, state: StepState, op: Op, record: OpRecord) -> None:
        worker = self._worker
        home, back = worker.to.devices(op)
        if home == back:
            self._stashes.receive(state, op, record, home)
        elif worker.stash_policy(op).remade:
            part = worker.passing.parts[op.stage]
            buffers = worker.buffers(state, op.stage, op.micro_batch, (part.takes[k] for k in part.kept))
            tags = [worker.to.stash_tag(op, number) for number in range(len(buffers))]
            handles = [worker.transport.post_receive(b, op.peer, tag) for b, tag in zip(buffers, tags, strict=True)]
            transfer = Transfer(buffers, handles, record, receives=True)
            state.received[Kind.RECV_S, op.stage, op.micro_batch, -1] = transfer
        else:
            self._stashes.receive_for_good(state, op, record)
