"""Requests to the brokers: in order, one at a time each, repeated until answered.

A channel belongs to one incarnation of a broker. What waits in it is kept by partition, so that a
newer state takes the place of an older one that was not sent yet.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import TypeAlias

from checkpoints.loggers import get_logger
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionChange,
    Response,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.common.retrying import Backoff, Reaction, RetryingCall, Settle, reactions
from replication.common.runtime import Actor, Runtime
from replication.common.state import LiveBroker, TopicPartition
from replication.common.transport import Transport
from replication.controller.context import ControllerContext

logger = get_logger(__name__)

BACKOFF = Backoff(100, 1000)
REFUSED_BACKOFF = Backoff(100, 10_000)  # of single partitions, while the others go on

ControlRequest: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
ControlResponse: TypeAlias = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse
OnResponse: TypeAlias = Callable[[int, ControlRequest, ControlResponse], None]
Changed: TypeAlias = dict[TopicPartition, PartitionChange]
Replica: TypeAlias = tuple[TopicPartition, uuid.UUID | None]  # of one topic under that name

_RESPONSES = {
    LeaderAndIsrRequest: LeaderAndIsrResponse,
    UpdateMetadataRequest: UpdateMetadataResponse,
    StopReplicaRequest: StopReplicaResponse,
}


def _all_but(*codes: ErrorCode) -> list[ErrorCode]:
    return [code for code in ErrorCode if code not in codes]


_E = ErrorCode

REQUEST_REACTIONS = reactions({
    Reaction.DONE: [_E.NONE],
    # Of a newer controller, or of a copy that was overtaken: whether the term is over, the tree
    # tells. If it is not, the broker has to hear it all the same.
    Reaction.FIND_CONTROLLER: [_E.STALE_CONTROLLER_EPOCH],
    # STALE_BROKER_EPOCH: it has just registered and does not know its new epoch yet, or it is
    # another incarnation by now, and this channel is closed before long.
    Reaction.AGAIN: _all_but(_E.NONE, _E.STALE_CONTROLLER_EPOCH),
})  # fmt: skip
"""What follows from the answer to a request as a whole."""

ROLE_REACTIONS = reactions({
    Reaction.DONE: [_E.NONE, _E.STALE_CONTROLLER_EPOCH],  # it knows a newer state already
    Reaction.GIVE_UP: [_E.KAFKA_STORAGE_ERROR],  # until the broker starts anew
    Reaction.AGAIN: _all_but(_E.NONE, _E.STALE_CONTROLLER_EPOCH, _E.KAFKA_STORAGE_ERROR),
})  # fmt: skip
"""What follows for one partition of a LeaderAndIsr request."""

_GONE = (
    _E.NONE, _E.UNKNOWN_TOPIC_OR_PARTITION, _E.UNKNOWN_TOPIC_ID, _E.INCONSISTENT_TOPIC_ID,
)  # fmt: skip

STOP_REACTIONS = reactions({
    Reaction.DONE: _GONE,  # the replica is not there any more
    Reaction.GIVE_UP: [_E.FENCED_LEADER_EPOCH],  # by a later decision it is a replica again
    Reaction.AGAIN: _all_but(*_GONE, _E.FENCED_LEADER_EPOCH),
})  # fmt: skip
"""What follows for one partition of a StopReplica request."""


class Numbers:
    """How many requests each incarnation of a broker was sent under one controller epoch.

    Brokers refuse what is numbered below what they know, so the numbers outlive the channels: one
    epoch may see several take-overs of the same controller.
    """

    def __init__(self) -> None:
        self._controller_epoch = -1
        self._last: dict[int, int] = {}  # by broker epoch

    def next(self, controller_epoch: int, broker_epoch: int) -> int:
        if controller_epoch != self._controller_epoch:
            self._controller_epoch = controller_epoch
            self._last.clear()
        number = self._last[broker_epoch] = self._last.get(broker_epoch, 0) + 1
        return number


class Channel:
    """To one incarnation of a broker. Only for the controller's actor.

    Goes on for ever while there is no answer: ``close`` it when the broker is gone or the term
    is over.

    Args:
        controller: its id and epoch.
        on_response: told of every request that the broker has accepted.
        on_stale: told that the broker knows of a later controller, or of a later request.
    """

    def __init__(
        self,
        broker: LiveBroker,
        actor: Actor,
        runtime: Runtime,
        transport: Transport,
        controller: tuple[int, int],
        numbers: Numbers,
        context: ControllerContext,
        on_response: OnResponse,
        on_stale: Callable[[], None],
        timeout_ms: int,
    ) -> None:
        self.broker_epoch = broker.broker_epoch
        self._broker_id = broker.registration.broker_id
        self._actor, self._runtime, self._transport = actor, runtime, transport
        self._controller = controller
        self._numbers = numbers
        self._context = context
        self._on_response = on_response
        self._timeout_ms = timeout_ms
        self._roles: Changed = {}
        self._all_roles = False  # those of ``_roles`` are all that the broker has
        self._metadata: Changed = {}
        self._all_metadata = False  # ``_metadata`` is all that there is
        self._metadata_due = False  # the brokers are news too
        self._stops: dict[Replica, StopReplicaPartition] = {}
        self._refused = False  # single partitions, which are asked again after a pause
        self._refused_stops: dict[Replica, StopReplicaPartition] = {}
        self._refusals = 0  # in a row
        self._in_flight: ControlRequest | None = None
        self._response: Response | None = None
        self._closed = False
        self._call = RetryingCall(
            runtime, actor, BACKOFF, self._ask, lambda reaction: self._on_answer(),
            find_controller=on_stale,
        )  # fmt: skip

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    # -- what is to be told ------------------------------------------------------------------

    def tell_all_roles(self) -> None:
        """All that the broker has, so that it can part with what was moved away or deleted while
        it was down, and tells which replicas are in failed log directories (R-66)."""
        self.lead_and_follow({
            tp: self._context.change_of(tp)
            for tp in self._context.active_partitions_on(self._broker_id)
        })  # fmt: skip
        self._all_roles = True

    def lead_and_follow(self, changes: Changed) -> None:
        for tp, change in changes.items():
            for stops in (self._stops, self._refused_stops):
                stops.pop((tp, change.topic_id), None)
        self._roles.update(changes)

    def tell_all_metadata(self, everything: Changed) -> None:
        """So that the broker forgets what was deleted while it did not hear of it."""
        self.update_metadata(everything)
        self._all_metadata = True

    def update_metadata(self, changes: Changed) -> None:
        self._metadata_due = True
        self._metadata.update(changes)

    def stop(self, stops: Iterable[StopReplicaPartition]) -> None:
        for stop in stops:
            if _is_of(self._roles, stop):
                del self._roles[stop.tp]
            self._stops[stop.tp, stop.topic_id] = stop

    def send(self) -> None:
        """Send the next request unless one is on its way."""
        if self._roles or self._all_roles or self._metadata_due or self._stops:
            self._call.start()

    # -- one request -------------------------------------------------------------------------

    def _ask(self, settle: Settle) -> None:
        if self._in_flight is not None:
            self._put_back(self._in_flight)
        request = self._in_flight = self._next()
        if request is None:
            settle(Reaction.DONE)
            return

        def on_reply(response: Response | None) -> None:
            self._response = response
            settle(self._reaction_to(request, response))

        self._transport.send(self._broker_id, request, on_reply, self._timeout_ms)

    def _next(self) -> ControlRequest | None:
        """Kafka's order: new roles, then what everybody should know, then what has to go.

        What has to go comes first where a later topic of its name waits for the place, and where
        the broker would set aside what is not among its roles.
        """
        if self._stops and (
            self._all_roles or any(tp in self._roles for tp, topic_id in self._stops)
        ):
            return self._next_stops()
        if self._roles or self._all_roles:
            is_full = self._all_roles and not self._context.unreadable
            roles, self._roles, self._all_roles = self._roles, {}, False
            return LeaderAndIsrRequest(
                *self._header(), tuple(roles.values()), tuple(self._context.live.values()),
                self._number(), is_full,
            )  # fmt: skip
        if self._metadata_due:
            is_full = self._all_metadata and not self._context.unreadable
            metadata, self._metadata, self._metadata_due = self._metadata, {}, False
            self._all_metadata = False
            return UpdateMetadataRequest(
                *self._header(), tuple(metadata.values()), tuple(self._context.live.values()),
                tuple(self._context.shutting_down), self._number(), is_full,
            )  # fmt: skip
        return self._next_stops() if self._stops else None

    def _next_stops(self) -> StopReplicaRequest:
        stops, self._stops = self._stops, {}
        return StopReplicaRequest(*self._header(), tuple(stops.values()), self._number())

    def _header(self) -> tuple[int, int, int]:
        return (*self._controller, self.broker_epoch)

    def _number(self) -> int:
        return self._numbers.next(self._controller[1], self.broker_epoch)

    def _put_back(self, request: ControlRequest) -> None:
        """What was not answered, below what came after it."""
        if isinstance(request, LeaderAndIsrRequest):
            earlier = {c.tp: c for c in request.partitions if (c.tp, c.topic_id) not in self._stops}
            self._roles = {**earlier, **self._roles}
            self._all_roles |= request.is_full
        elif isinstance(request, UpdateMetadataRequest):
            self._metadata = {**{c.tp: c for c in request.partitions}, **self._metadata}
            self._metadata_due = True
            self._all_metadata |= request.is_full
        else:
            going = {
                (s.tp, s.topic_id): s for s in request.partitions if not _is_of(self._roles, s)
            }
            self._stops = {**going, **self._stops}

    # -- its answer --------------------------------------------------------------------------

    def _reaction_to(self, request: ControlRequest, response: Response | None) -> Reaction:
        if not isinstance(response, _RESPONSES[type(request)]):
            return Reaction.AGAIN
        assert isinstance(response, ControlResponse)
        code = response.error_code
        if code not in (_E.NONE, _E.STALE_BROKER_EPOCH):
            logger.warning("broker %s answers %s", self._broker_id, code.name)
        return REQUEST_REACTIONS[code]

    def _on_answer(self) -> None:
        request, response = self._in_flight, self._response
        self._in_flight = self._response = None
        if request is None or not isinstance(response, ControlResponse):
            self.send()  # what came since the last look, which found nothing
            return
        self._look_at_parts(request, response)
        self.send()
        self._on_response(self._broker_id, request, response)

    def _look_at_parts(self, request: ControlRequest, response: ControlResponse) -> None:
        """Ask again for single partitions, after a pause of their own: the others go on."""
        if isinstance(response, UpdateMetadataResponse):
            return
        table = ROLE_REACTIONS if isinstance(request, LeaderAndIsrRequest) else STOP_REACTIONS
        refused = {tp: code for tp, code in response.partitions if table[code] is Reaction.AGAIN}
        for tp, code in refused.items():
            logger.warning("broker %s answers %s for %s", self._broker_id, code.name, tp)
        if isinstance(request, StopReplicaRequest):
            for stop in request.partitions:
                if stop.tp in refused and not _is_of(self._roles, stop):
                    self._refused_stops[stop.tp, stop.topic_id] = stop
        if self._refused:
            return  # their time comes
        if not refused:
            self._refusals = 0
            return
        self._refused = True
        self._refusals += 1
        delay_ms = REFUSED_BACKOFF.delay_ms(self._refusals, self._runtime.random)
        self._runtime.call_later(delay_ms, lambda: self._actor.post(self._ask_again))

    def _ask_again(self) -> None:
        """All roles, in case that a log which should not be there is in the way of one."""
        if self._closed:
            return
        self._refused = False
        stops, self._refused_stops = self._refused_stops, {}
        self._stops = {**stops, **self._stops}
        self.tell_all_roles()
        self.send()


def _is_of(roles: Changed, stop: StopReplicaPartition) -> bool:
    """Whether a role is of the very topic that a replica of is to stop."""
    role = roles.get(stop.tp)
    return role is not None and role.topic_id == stop.topic_id
