"""What one rank's list posts beside its compute: messages, reductions, and stashes that move. Nothing here blocks.

RECV_* allocates and posts, SEND_* posts, OFFLOAD and FETCH are handed to threads that copy, REDUCE and TIE launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...planner.graph import StashPolicy, stash_policy
from ...planner.plan import Kind, Op
from ..place import OpRecord, Place
from ..state import Addresses, Blueprint, StageReplica, by_name, own_copies, repeated
from ..wires import Transport
from .course import Course
from .observe import Observer
from .stashes import Stashes
from .step_state import Incoming, Key, StepState, Transfer


class Posting:
    """The part of an interpreter that posts; its attributes are the interpreter's."""

    blueprint: Blueprint
    transport: Transport
    replicas: Mapping[int, StageReplica]
    _replicas: Mapping[int, Mapping[int, StageReplica]]
    _course: Course
    _observer: Observer
    _place: Place
    _stashes: Stashes
    _to: Addresses

    def _receive(self, state: StepState, op: Op, record: OpRecord) -> None:
        buffer = self._buffer(state, op.stage if op.kind is Kind.RECV_F else op.peer, op.micro_batch)
        handle = self.transport.post_receive(buffer, self._to.device(op), self._to.tag(op, op.peer, op.stage))
        state.received[op.kind, op.stage, op.micro_batch] = Transfer([buffer], [handle], record, receives=True)

    def _send(self, state: StepState, op: Op, record: OpRecord) -> None:
        if op.kind is Kind.SEND_F:
            tensor = state.activations.pop((op.stage, op.micro_batch))
        else:
            tensor = state.gradients.pop((op.peer, op.micro_batch))
        tensor = tensor.contiguous()
        handle = self.transport.post_send(tensor, self._to.device(op), self._to.tag(op, op.stage, op.peer))
        self._leave(state, Transfer([tensor], [handle], record))

    def _arrived(
        self,
        state: StepState,
        kind: Kind,
        stage: int,
        m: int,
        local: dict[Key, Tensor],
        producer: int,
    ) -> Tensor:
        """A tensor from another device, waited for, or one that this device computed itself."""
        arriving = state.received.pop((kind, stage, m), None)
        if arriving is None:
            return local.pop((producer, m))
        self._finish(state, arriving)
        return arriving.tensors[0]

    def _reduce(self, state: StepState, op: Op, record: OpRecord) -> None:
        group, tensors = self.replicas[op.stage].sums(op)
        if group is not None:
            handles = [self.transport.all_reduce(tensor, group) for tensor in tensors]
            state.reductions[op.collective] = Transfer([], handles, record)
            record.moved_bytes = sum(tensor.nbytes for tensor in tensors)

    def _leave(self, state: StepState, transfer: Transfer) -> None:
        state.leaving[state.place] = transfer

    def _complete(self, state: StepState, places: Sequence[int]) -> None:
        """Waits for what left at these places of the list, and lets go of what is complete anyway."""
        for place in places:
            self._finish(state, state.leaving.pop(place, None))
        for place in [place for place, transfer in state.leaving.items() if transfer.done()]:
            self._finish(state, state.leaving.pop(place))

    # ------------------------------------------------------------ stashes that move

    def _offload(self, state: StepState, op: Op, record: OpRecord) -> None:
        home, back = self._to.devices(op)
        carried = None
        if self._stash_policy(op).versioned and self._course.versions is not None:
            weights = self.replicas[op.stage].weights
            version = state.versions[op.stage].at(self._course.versions.backward[op.stage, op.micro_batch])
            carried = {name: version[name] for name in weights.trained}
        reader = None if home == back else back
        transfer = self._stashes.offload(state, op, record, self._stash_policy(op), reader, carried)
        state.departed[op.stage, op.micro_batch] = transfer
        self._leave(state, transfer)

    def _fetch(self, state: StepState, op: Op, record: OpRecord) -> None:
        """Starts at its place or, where the forecast has it wait in line, after the op that it waits for.

        A rank that queues waits for another one's host copy itself: not before it has posted all that is listed before
        its next op in line, which may be what the other one waits for.
        """
        place = state.place
        listed = [state.leaving[k] for k in state.leaving if self._course.order[k].kind in (Kind.OFFLOAD, Kind.SEND_S)]
        gate = self._course.waits.starts[place]
        home, back = self._to.devices(op)
        if home == back:
            arrived = state.departed[op.stage, op.micro_batch]
        else:
            arrived = self._stashes.expect_host_copy(state, op, home)

        blocks = home != back and self._place.queues

        def start() -> None:
            if blocks:
                self._finish(state, arrived)
            left = [state.leaving[k] for k in self._course.waits.left[place] if k in state.leaving]
            self._stashes.fetch(state, op, record, list(dict.fromkeys([*left, *listed])), arrived)

        if gate < place and not blocks:
            start()
        else:
            state.waiting.append((max(gate, place), start))

    def _start_fetches(self, state: StepState, place: int) -> None:
        while state.waiting and state.waiting[0][0] < place:
            state.waiting.pop(0)[1]()

    def _free(self, state: StepState, op: Op, record: OpRecord) -> None:
        self._finish(state, state.departed.get((op.stage, op.micro_batch)))  # none: its backward has used it already
        state.times.end(record)

    def _send_stash(self, state: StepState, op: Op, record: OpRecord) -> None:
        home, _ = self._to.devices(op)
        key = (op.stage, op.micro_batch)
        if home != self.transport.rank:
            self._leave(state, self._stashes.send_back(state, op, record))
            return
        if key in state.inputs:
            kept = [state.inputs.pop(key).contiguous()]
            handle = self.transport.post_send(kept[0], op.peer, self._to.stash_tag(op, 0))
            transfer = Transfer(kept, [handle], record)
        else:
            transfer = self._stashes.send(state, op, record)
        state.departed[key] = transfer
        self._leave(state, transfer)

    def _receive_stash(self, state: StepState, op: Op, record: OpRecord) -> None:
        home, back = self._to.devices(op)
        if home == back:
            self._stashes.receive(state, op, record, home)
        elif self._stash_policy(op).remade:
            buffer = self._buffer(state, op.stage, op.micro_batch)
            handle = self.transport.post_receive(buffer, op.peer, self._to.stash_tag(op, 0))
            state.received[Kind.RECV_S, op.stage, op.micro_batch] = Transfer([buffer], [handle], record, receives=True)
        else:
            self._stashes.receive_for_good(state, op, record)

    def _exchange_parameters(self, state: StepState, op: Op, record: OpRecord) -> None:
        """SEND_P or RECV_P of a flush: from the parameters into the parameters, in place."""
        if self._course.versions is not None:
            self._exchange_version(state, op, record)
            return
        named = self._exchanged(op, self.replicas[op.stage].weights.parameters)
        self._leave(state, self._exchange(op, named, record))

    def _exchange_version(self, state: StepState, op: Op, record: OpRecord) -> None:
        """SEND_P of a copy, or of what was predicted for it; RECV_P beside the parameters, see `_install`."""
        parameters = self.replicas[op.stage].weights.parameters
        if op.kind is Kind.SEND_P:
            predicted = state.predicted.pop(op.stage, None)
            named = self._exchanged(op, parameters if predicted is None else predicted)
            if predicted is None:
                named = {name: tensor.clone() for name, tensor in named.items()}
            self._leave(state, self._exchange(op, named, record))
            return
        incoming = state.incoming.get(op.stage)
        if incoming is None:  # else no forward uses what was expected before: this comes after it, in its place
            named = {name: torch.empty_like(tensor) for name, tensor in self._exchanged(op, parameters).items()}
            incoming = state.incoming[op.stage] = Incoming(named)
        incoming.places.append(state.place)
        incoming.transfers.append(self._exchange(op, incoming.tensors, record))

    def _install(self, state: StepState, stage: int) -> None:
        """Puts what has been received of a stage's parameters in their place; before its next forward."""
        incoming = state.incoming.pop(stage, None)
        if incoming is None:
            return
        for place, transfer in zip(incoming.places, incoming.transfers, strict=True):
            self._finish(state, transfer)
            state.versions[stage].replace(keep=place in self._course.replaced)
        with torch.no_grad():
            for name, value in incoming.tensors.items():
                self.replicas[stage].weights.parameters[name].copy_(value)

    def _exchanged(self, op: Op, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those that are trained and the receiver does not step itself, each once, in the order that both ends have."""
        target, model = op.peer if op.kind is Kind.SEND_P else self.transport.rank, self.blueprint.model
        skipped = own_copies(self.blueprint.plan, model, op.stage, target) | repeated(model, parameters)
        skipped |= self.replicas[op.stage].weights.frozen
        return by_name({name: tensor for name, tensor in parameters.items() if name not in skipped})

    def _exchange(self, op: Op, named: Mapping[str, Tensor], record: OpRecord) -> Transfer:
        sends = op.kind is Kind.SEND_P
        post = self.transport.post_send if sends else self.transport.post_receive
        first, tensors = self._to.parameter_tag(op.stage), list(named.values())
        handles = [post(tensor, op.peer, first + number) for number, tensor in enumerate(tensors)]
        return Transfer(tensors, handles, record, receives=not sends)

    # ------------------------------------------------------------ for all

    def _replica(self, state: StepState, op: Op) -> StageReplica:
        """The rank's copy of a stage as it runs the op's micro-batch."""
        return self._replicas[state.samples(op.micro_batch)][op.stage]

    def _buffer(self, state: StepState, stage: int, micro_batch: int) -> Tensor:
        """Memory for the input of a stage or its gradient."""
        return self.blueprint.shape(stage, state.samples(micro_batch)).empty(self._place.device)

    def _stash_policy(self, op: Op) -> StashPolicy:
        """What becomes of the op's stash; raises PlanError: unknown."""
        return stash_policy(self._course.plan.stash[self._course.routes[op.micro_batch]][op.stage])

    def _finish(self, state: StepState, transfer: Transfer | None) -> None:
        if transfer is not None:
            self._observer.wait(transfer.op)
            transfer.finish(state.times.end)
            self._observer.resume()
