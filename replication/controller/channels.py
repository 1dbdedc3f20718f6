"""Requests to the brokers: in order, one at a time each, repeated until answered.

A channel belongs to one incarnation of a broker. What waits in it is kept by partition, so that a
newer state takes the place of an older one that was not sent yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from checkpoints.loggers import get_logger
from replication.controller.context import ControllerContext, Partitions
from replication.error_codes import ErrorCode
from replication.messages import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
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
from replication.runtime import Actor, Runtime
from replication.state import (
    LiveBroker,
    PartitionRegistration,
    TopicPartition,
)
from replication.transport import Transport

logger = get_logger(__name__)

RETRY_MS = 100

ControlRequest: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
ControlResponse: TypeAlias = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse
OnResponse: TypeAlias = Callable[[int, ControlResponse], None]
Changed: TypeAlias = dict[TopicPartition, PartitionChange]


class Channel:
    """To one incarnation of a broker. Only for the controller's actor.

    Goes on for ever while there is no answer: ``close`` it when the broker is gone or the term
    is over.
    """

    def __init__(
        self,
        broker: LiveBroker,
        actor: Actor,
        runtime: Runtime,
        transport: Transport,
        controller: tuple[int, int],
        context: ControllerContext,
        on_response: OnResponse,
    ) -> None:
        self.broker_epoch = broker.broker_epoch
        self.is_new = True  # nothing was sent to this incarnation yet
        self._broker_id = broker.registration.broker_id
        self._actor, self._runtime, self._transport = actor, runtime, transport
        self._controller = controller  # its id and epoch
        self._context = context
        self._on_response = on_response
        self._roles: Changed = {}
        self._metadata: Changed = {}
        self._metadata_due = False  # the brokers are news too
        self._stops: dict[TopicPartition, StopReplicaPartition] = {}
        self._in_flight: ControlRequest | None = None
        self._sequence = 0  # of the last request
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def lead_and_follow(self, changes: Changed) -> None:
        for tp in changes:
            self._stops.pop(tp, None)
        self._roles.update(changes)

    def update_metadata(self, changes: Changed) -> None:
        self._metadata_due = True
        self._metadata.update(changes)

    def stop(self, stops: Mapping[TopicPartition, StopReplicaPartition]) -> None:
        for tp in stops:
            self._roles.pop(tp, None)
        self._stops.update(stops)

    def send(self) -> None:
        """Send the next request unless one is on its way."""
        self.is_new = False
        if self._closed or self._in_flight is not None:
            return
        request = self._next()
        if request is None:
            return
        self._in_flight = request

        def on_reply(response: Response | None) -> None:
            self._actor.post(lambda: self._on_reply(request, response))

        self._transport.send(self._broker_id, request, on_reply)

    def _next(self) -> ControlRequest | None:
        """Kafka's order: new roles, then what everybody should know, then what has to go."""
        live = tuple(self._context.live.values())
        header = (*self._controller, self.broker_epoch)
        number = self._sequence + 1
        if self._roles:
            roles, self._roles = self._roles, {}
            self._sequence = number
            return LeaderAndIsrRequest(*header, tuple(roles.values()), live, sequence=number)
        if self._metadata_due:
            metadata, self._metadata, self._metadata_due = self._metadata, {}, False
            self._sequence = number
            return UpdateMetadataRequest(
                *header, tuple(metadata.values()), live, tuple(self._context.shutting_down),
                sequence=number,
            )  # fmt: skip
        if self._stops:
            stops, self._stops = self._stops, {}
            self._sequence = number
            return StopReplicaRequest(*header, tuple(stops.values()), sequence=number)
        return None

    def _on_reply(self, request: ControlRequest, response: Response | None) -> None:
        if self._closed or request is not self._in_flight:
            return
        self._in_flight = None
        if (
            isinstance(response, ControlResponse)
            # A broker that has just registered may not know its new epoch yet. One that is another
            # incarnation by now refuses for good, and this channel is closed before long.
            and response.error_code is not ErrorCode.STALE_BROKER_EPOCH
        ):
            if response.error_code is not ErrorCode.NONE:
                logger.error("broker %s answers %s", self._broker_id, response.error_code.name)
            self.send()
            self._on_response(self._broker_id, response)
        else:
            self._again(request)
            self._runtime.call_later(RETRY_MS, lambda: self._actor.post(self.send))

    def _again(self, request: ControlRequest) -> None:
        """Put back what was not answered, below what came after it."""
        if isinstance(request, LeaderAndIsrRequest):
            earlier = {c.tp: c for c in request.partitions if c.tp not in self._stops}
            self._roles = {**earlier, **self._roles}
        elif isinstance(request, UpdateMetadataRequest):
            self._metadata = {**{c.tp: c for c in request.partitions}, **self._metadata}
            self._metadata_due = True
        else:
            stops = {s.tp: s for s in request.partitions if s.tp not in self._roles}
            self._stops = {**stops, **self._stops}


class Outbox:
    """Collects what one event changed, so that each broker gets one request of each kind."""

    def __init__(
        self, context: ControllerContext, open_channel: Callable[[LiveBroker], Channel]
    ) -> None:
        self._context = context
        self._open_channel = open_channel
        self._channels: dict[int, Channel] = {}
        self._changed: Partitions = {}
        self._gone: Changed = {}
        self._stops: dict[int, dict[TopicPartition, StopReplicaPartition]] = {}
        self._roles_to: dict[int, None] = {}
        self._announce = False

    def changed(self, tp: TopicPartition) -> None:
        self._changed[tp] = None

    def announce(self) -> None:
        """The live brokers, or those that shut down, are others."""
        self._announce = True

    def all_roles_to(self, broker: int) -> None:
        """All its partitions, so that it tells which are offline (R-66)."""
        self._roles_to[broker] = None

    def delete_topic(self, name: str) -> None:
        """Nobody may use its partitions from now on, and the replicas that are left go."""
        self._gone.update(self._gone_of(name))
        for tp, brokers in self._context.deleting[name].items():
            for broker in brokers:
                self.stop_replica(broker, tp, EPOCH_DURING_DELETE)

    def stop_replica(self, broker: int, tp: TopicPartition, leader_epoch: int) -> None:
        """Its files go too."""
        topic_id = self._context.topics[tp.topic].assignment.topic_id
        stop = StopReplicaPartition(tp, leader_epoch, delete=True, topic_id=topic_id)
        self._stops.setdefault(broker, {})[tp] = stop

    def flush(self) -> None:
        """Hand everything to the channels of the live brokers; a new incarnation gets it all."""
        context, channels = self._context, self._channels
        for broker, channel in [*channels.items()]:
            known = context.live.get(broker)
            if known is None or known.broker_epoch != channel.broker_epoch:
                channels.pop(broker).close()
        changes = {tp: context.change_of(tp) for tp in self._changed if context.is_active(tp)}
        roles: dict[int, Changed] = {}
        for tp, change in changes.items():
            for broker in change.registration.replicas:
                roles.setdefault(broker, {})[tp] = change
        metadata = {**self._gone, **changes}
        new = [broker for broker in context.live if broker not in channels]
        for broker in new:
            channels[broker] = self._open_channel(context.live[broker])
        everything = self._everything(new) if new else {}
        for broker, channel in channels.items():
            is_new = channel.is_new
            if is_new or broker in self._roles_to:
                own = {tp: context.change_of(tp) for tp in context.active_partitions_on(broker)}
                channel.lead_and_follow(own)
            elif broker in roles:
                channel.lead_and_follow(roles[broker])
            if is_new or metadata or self._announce:
                channel.update_metadata(everything if is_new else metadata)
            channel.stop(self._stops.get(broker, {}))
            channel.send()
        self._changed, self._gone, self._stops, self._roles_to = {}, {}, {}, {}
        self._announce = False

    def _everything(self, new: Iterable[int]) -> Changed:
        """All metadata; and ``new`` incarnations are told again what they have to delete."""
        context = self._context
        found = {tp: context.change_of(tp) for tp in context.partitions if context.is_active(tp)}
        for name, waiting in context.deleting.items():
            found.update(self._gone_of(name))
            for tp, brokers in waiting.items():
                for broker in new:
                    if broker in brokers:
                        self.stop_replica(broker, tp, EPOCH_DURING_DELETE)
        return found

    def _gone_of(self, name: str) -> Changed:
        topic = self._context.topics[name].assignment
        gone: Changed = {}
        for number, replicas in topic.partitions.items():
            tp = TopicPartition(name, number)
            state = PartitionRegistration(
                replicas, (), LEADER_DURING_DELETE, EPOCH_DURING_DELETE, 0
            )
            gone[tp] = PartitionChange(tp, state, topic.topic_id)
        return gone

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
