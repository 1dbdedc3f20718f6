"""Requests to brokers, in order, one at a time for each, repeated until answered.

A channel belongs to one incarnation of a broker. Its waiting changes are kept by partition, so that
a newer state replaces an older one that was not sent yet. The roles of many partitions go in
pieces, and elections go before the first roles of new partitions: while a broker makes the logs of
a large topic, an election waits for one piece at most. To a real Kafka broker another one is
introduced before any role that may name it (X-92): it refuses to follow a leader that its metadata
cache does not know, and does not say so in its answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TypeAlias

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    ControlRequest,
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

BACKOFF = Backoff(100, 1000)
REFUSED_BACKOFF = Backoff(100, 10_000)  # for single partitions, while the others go on
PIECE = 50  # the most roles in a request: tenths of a second, if each log has to be made

ControlResponse: TypeAlias = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse
OnResponse: TypeAlias = Callable[[int, ControlRequest, ControlResponse], None]
Changed: TypeAlias = dict[TopicPartition, PartitionChange]
TopicIdPartition: TypeAlias = tuple[TopicPartition, uuid.UUID | None]  # for one topic of that name

_RESPONSES = {
    LeaderAndIsrRequest: LeaderAndIsrResponse,
    UpdateMetadataRequest: UpdateMetadataResponse,
    StopReplicaRequest: StopReplicaResponse,
}


_E = ErrorCode
REQUEST_REACTIONS = reactions(
    {
        Reaction.DONE: [_E.NONE],
        # From a newer controller, or for a copy that was overtaken. The tree shows whether the term
        # is over. If it is not, the broker still needs the request.
        Reaction.FIND_CONTROLLER: [_E.STALE_CONTROLLER_EPOCH],
    },
    # STALE_BROKER_EPOCH: the broker has just registered and does not know its new epoch yet, or
    # it has restarted, and this channel will be closed soon.
    otherwise=Reaction.AGAIN,
)
"""The reaction to the error code of a whole answer."""

ROLE_REACTIONS = reactions(
    {
        Reaction.DONE: [_E.NONE, _E.STALE_CONTROLLER_EPOCH],  # it knows a newer state already
        Reaction.GIVE_UP: [_E.KAFKA_STORAGE_ERROR],  # until the broker restarts
    },
    otherwise=Reaction.AGAIN,
)
"""The reaction for one partition of a LeaderAndIsr answer."""

_GONE = (
    _E.NONE,
    _E.UNKNOWN_TOPIC_OR_PARTITION,
    _E.UNKNOWN_TOPIC_ID,
    _E.INCONSISTENT_TOPIC_ID,
)

STOP_REACTIONS = reactions(
    {
        Reaction.DONE: _GONE,  # the replica no longer exists
        Reaction.GIVE_UP: [_E.FENCED_LEADER_EPOCH],  # a later decision made it a replica again
    },
    otherwise=Reaction.AGAIN,
)
"""The reaction for one partition of a StopReplica answer."""


class Numbers:
    """Counts the requests to each incarnation of a broker under one controller epoch.

    Brokers refuse a lower number than they know. The numbers outlive the channels, because the same
    controller may take over several times under one epoch.
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


class BrokerChannel:
    """The channel to one incarnation of a broker. Only for the controller's actor.

    It repeats a request forever without an answer: ``close`` it when the broker is gone or the term
    is over.

    Args:
        controller: its id and epoch.
        on_response: called with every request that the broker has accepted.
        on_stale: called if the broker knows a later controller or a later request.
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
        self._is_foreign = broker.registration.is_foreign
        self._given: dict[TopicIdPartition, int] = {}  # leader epochs that a foreign broker has
        self._roles: Changed = {}
        self._all_roles = False  # ``_roles`` has all roles of the broker
        self._urgent: dict[TopicPartition, None] = {}  # elections, in their order
        self._metadata: Changed = {}
        self._urgent_metadata: dict[TopicPartition, None] | None = None  # None: none is urgent
        self._all_metadata = False  # ``_metadata`` has all metadata
        self._metadata_due = False  # the brokers have changed too
        self._introduced: frozenset[int] = frozenset()  # epochs of the brokers that it knows
        self._stops: dict[TopicIdPartition, StopReplicaPartition] = {}
        self._refused = False  # single partitions, which are sent again after a pause
        self._refused_stops: dict[TopicIdPartition, StopReplicaPartition] = {}
        self._refusals = 0  # in a row
        self._in_flight: ControlRequest | None = None
        self._response: Response | None = None
        self._closed = False
        self._call = RetryingCall(
            runtime,
            actor,
            BACKOFF,
            self._send_next,
            lambda reaction: self._on_answer(),
            find_controller=on_stale,
        )

    @property
    def failures(self) -> int:
        """The number of tries in a row that have failed."""
        return self._call.failures

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    # -- what to send ------------------------------------------------------------------

    def send_all_roles(self) -> None:
        """Send all roles, so that the broker drops what was moved away or deleted while it was
        down, and reports which replicas are in failed log directories (R-66).
        """
        self._put_roles(
            {
                tp: self._context.change_of(tp)
                for tp in self._context.active_partitions_on(self._broker_id)
            }
        )
        self._all_roles = True

    def lead_and_follow(self, changes: Changed) -> None:
        if self._is_foreign:
            changes = {tp: change for tp, change in changes.items() if self._is_role(change)}
        self._put_roles(changes)
        self._urgent.update((tp, None) for tp, change in changes.items() if not _is_first(change))

    def _is_role(self, change: PartitionChange) -> bool:
        """Whether a change is more than metadata for a real Kafka broker, which refuses a leader
        epoch that it has: the leader of a new ISR learns of it by the answer to its proposal
        (X-95)."""
        sent = self._in_flight
        if isinstance(sent, LeaderAndIsrRequest) and change.tp in {c.tp for c in sent.partitions}:
            return True  # it may have to be sent again
        known = self._given.get((change.tp, change.topic_id), -1)
        return change.tp in self._roles or change.registration.leader_epoch > known

    def _put_roles(self, changes: Changed) -> None:
        for tp, change in changes.items():
            for stops in (self._stops, self._refused_stops):
                stops.pop((tp, change.topic_id), None)
            if self._is_foreign:
                self._given[tp, change.topic_id] = change.registration.leader_epoch
        self._roles.update(changes)

    def send_all_metadata(self, everything: Changed) -> None:
        """Send all metadata, so that the broker forgets what was deleted without its knowledge."""
        self.update_metadata(everything)
        self._all_metadata = True

    def update_metadata(self, changes: Changed) -> None:
        self._metadata_due = True
        self._metadata.update(changes)
        urgent = [tp for tp, change in changes.items() if not _is_first(change)]
        if urgent or not changes:  # or the brokers have changed
            self._urgent_metadata = self._urgent_metadata or {}
            self._urgent_metadata.update(dict.fromkeys(urgent))

    def stop(self, stops: Iterable[StopReplicaPartition]) -> None:
        for stop in stops:
            if _is_of(self._roles, stop):
                del self._roles[stop.tp]
            self._stops[stop.tp, stop.topic_id] = stop
            self._given.pop((stop.tp, stop.topic_id), None)

    def send(self) -> None:
        """Send the next request unless one is on its way."""
        if self._roles or self._all_roles or self._metadata_due or self._stops:
            self._call.start()

    # -- one request -------------------------------------------------------------------------

    def _send_next(self, settle: Settle) -> None:
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
        """The next request, in Kafka's order: brokers that came, new roles, metadata, replicas to
        stop.

        Stops come before roles if a later topic of that name waits for the place, and if the broker
        would set aside replicas that are not among its roles.
        """
        if self._is_foreign and self._roles_wait() and not self._brokers() <= self._introduced:
            return self._metadata_of({}, is_full=False)
        if self._stops and (
            self._all_roles or any(tp in self._roles for tp, topic_id in self._stops)
        ):
            return self._next_stops()
        if self._roles_wait() and (self._all_roles or self._all_metadata or self._next_is_a_role()):
            return self._next_roles()
        if self._metadata_due:
            return self._next_metadata()
        return self._next_stops() if self._stops else None

    def _roles_wait(self) -> bool:
        return bool(self._roles) or self._all_roles

    def _brokers(self) -> frozenset[int]:
        return frozenset(live.broker_epoch for live in self._context.live.values())

    def _next_is_a_role(self) -> bool:
        """Whether roles come before metadata: all of an event do, unless they are many."""
        if len(self._roles) <= PIECE or self._urgent_metadata is None:
            return True
        return any(tp in self._roles for tp in self._urgent)

    def _next_roles(self) -> LeaderAndIsrRequest:
        is_full = self._all_roles and not self._context.unreadable
        self._all_roles = False
        roles: Changed = {}
        if len(self._roles) <= PIECE:
            roles, self._roles = self._roles, roles
            self._urgent.clear()
        else:
            for tp in chain(self._urgent, self._roles):
                if tp in self._roles:
                    roles[tp] = self._roles[tp]
                if len(roles) == PIECE:
                    break
            for tp in roles:
                del self._roles[tp]
                self._urgent.pop(tp, None)
        request = LeaderAndIsrRequest(
            *self._header(),
            tuple(roles.values()),
            tuple(self._context.live.values()),
            self._number(),
            is_full,
        )
        if not is_full:
            return request
        topics = {name: topic.assignment for name, topic in self._context.topics.items()}
        return request._replace(topics=topics, deleted=frozenset(self._context.deleted))

    def _next_metadata(self) -> UpdateMetadataRequest:
        """All that is due; while roles wait, what is urgent of partitions without such a role."""
        metadata: Changed = {}
        is_full = self._all_metadata and not self._context.unreadable
        if not self._roles:
            metadata, self._metadata = self._metadata, metadata
            self._metadata_due = self._all_metadata = False
        else:
            for tp in self._urgent_metadata or ():
                if tp in self._metadata and tp not in self._roles:
                    metadata[tp] = self._metadata.pop(tp)
        self._urgent_metadata = None
        return self._metadata_of(metadata, is_full)

    def _metadata_of(self, metadata: Changed, is_full: bool) -> UpdateMetadataRequest:
        return UpdateMetadataRequest(
            *self._header(),
            tuple(metadata.values()),
            tuple(self._context.live.values()),
            tuple(self._context.shutting_down),
            self._number(),
            is_full,
        )

    def _next_stops(self) -> StopReplicaRequest:
        stops, self._stops = self._stops, {}
        return StopReplicaRequest(*self._header(), tuple(stops.values()), self._number())

    def _header(self) -> tuple[int, int, int]:
        return (*self._controller, self.broker_epoch)

    def _number(self) -> int:
        return self._numbers.next(self._controller[1], self.broker_epoch)

    def _put_back(self, request: ControlRequest) -> None:
        """Put an unanswered request back, below later changes."""
        if isinstance(request, LeaderAndIsrRequest):
            earlier = {c.tp: c for c in request.partitions if (c.tp, c.topic_id) not in self._stops}
            self._roles = {**earlier, **self._roles}
            self._all_roles |= request.is_full
        elif isinstance(request, UpdateMetadataRequest):
            earlier = {c.tp: c for c in request.partitions}
            self._metadata = {**earlier, **self._metadata}
            self._metadata_due = True
            self._urgent_metadata = {**dict.fromkeys(earlier), **(self._urgent_metadata or {})}
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
            self._context.log.warning(
                "broker %s answers %s", self._broker_id, code.name, about=(self._broker_id, code)
            )
        return REQUEST_REACTIONS[code]

    def _on_answer(self) -> None:
        request, response = self._in_flight, self._response
        self._in_flight = self._response = None
        if request is None or not isinstance(response, ControlResponse):
            self.send()  # changes since the last check, which found none
            return
        if isinstance(request, UpdateMetadataRequest):
            self._introduced = frozenset(live.broker_epoch for live in request.live_brokers)
        self._look_at_parts(request, response)
        self.send()
        self._on_response(self._broker_id, request, response)

    def _look_at_parts(self, request: ControlRequest, response: ControlResponse) -> None:
        """Send single partitions again after a pause of their own, while the others go on."""
        if isinstance(response, UpdateMetadataResponse):
            return
        table = ROLE_REACTIONS if isinstance(request, LeaderAndIsrRequest) else STOP_REACTIONS
        refused = {tp: code for tp, code in response.partitions if table[code] is Reaction.AGAIN}
        for tp, code in refused.items():
            self._context.log.warning(
                "broker %s answers %s for %s",
                self._broker_id,
                code.name,
                tp,
                about=(self._broker_id, code),
            )
        if isinstance(request, StopReplicaRequest):
            for stop in request.partitions:
                if stop.tp in refused and not _is_of(self._roles, stop):
                    self._refused_stops[stop.tp, stop.topic_id] = stop
        if self._refused:
            return  # their pause will end
        if not refused:
            if not self._roles and not self._stops:  # the last piece of all that is asked again
                self._refusals = 0
            return
        self._refused = True
        self._refusals += 1
        delay_ms = REFUSED_BACKOFF.delay_ms(self._refusals, self._runtime.random)
        self._runtime.call_later(delay_ms, lambda: self._actor.post(self._ask_again))

    def _ask_again(self) -> None:
        """Send all roles again, in case a log that should not exist blocks one."""
        if self._closed:
            return
        self._refused = False
        stops, self._refused_stops = self._refused_stops, {}
        self._stops = {**stops, **self._stops}
        self.send_all_roles()
        self.send()


def _is_first(change: PartitionChange) -> bool:
    """Whether it is the first state of a new partition, which nobody uses yet."""
    return change.registration.leader_epoch == change.registration.partition_epoch == 0


def _is_of(roles: Changed, stop: StopReplicaPartition) -> bool:
    """Whether a role belongs to the same topic as a replica to stop."""
    role = roles.get(stop.tp)
    return role is not None and role.topic_id == stop.topic_id
