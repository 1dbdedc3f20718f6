"""Changes of an event on their way into the channels of brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from replication.common.messages import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    PartitionChange,
    StopReplicaPartition,
)
from replication.common.state import LiveBroker, PartitionRegistration, TopicPartition
from replication.controller.channels import BrokerChannel, Changed, TopicIdPartition
from replication.controller.context import ControllerContext, Partitions


class Outbox:
    """Collects what one event changed, so that each broker gets one request of each kind."""

    def __init__(
        self, context: ControllerContext, open_channel: Callable[[LiveBroker], BrokerChannel]
    ) -> None:
        self._context = context
        self._open_channel = open_channel
        self._channels: dict[int, BrokerChannel] = {}
        self._changed: Partitions = {}
        self._gone: Changed = {}
        self._stops: dict[int, dict[TopicIdPartition, StopReplicaPartition]] = {}
        self._roles_to: dict[int, None] = {}
        self._announce = False

    def changed(self, tp: TopicPartition) -> None:
        self._changed[tp] = None

    def announce(self) -> None:
        """Announce a changed set of live brokers, or of brokers that shut down."""
        self._announce = True

    def all_roles_to(self, broker: int) -> None:
        """Send a broker all its partitions, so that it reports which are offline (R-66)."""
        self._roles_to[broker] = None

    def delete_topic(self, name: str) -> None:
        """Announce the deletion of a topic, and stop its remaining replicas."""
        self._gone.update(self._gone_of(name))
        for tp, brokers in self._context.deleting[name].items():
            for broker in brokers:
                self.stop_replica(broker, tp, EPOCH_DURING_DELETE)

    def stop_replica(self, broker: int, tp: TopicPartition, leader_epoch: int) -> None:
        """Stop a replica and delete its files."""
        topic_id = self._context.topics[tp.topic].assignment.topic_id
        stop = StopReplicaPartition(tp, leader_epoch, delete=True, topic_id=topic_id)
        self._stops.setdefault(broker, {})[tp, topic_id] = stop

    def flush(self) -> None:
        """Pass all changes to the channels of live brokers.

        A new incarnation gets the full state.
        """
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
            if broker in new or broker in self._roles_to:
                channel.send_all_roles()
            elif broker in roles:
                channel.lead_and_follow(roles[broker])
            if broker in new:
                channel.send_all_metadata(everything)
            elif metadata or self._announce:
                channel.update_metadata(metadata)
            channel.stop(self._stops.get(broker, {}).values())
            channel.send()
        self._changed, self._gone, self._stops, self._roles_to = {}, {}, {}, {}
        self._announce = False

    def _everything(self, new: Iterable[int]) -> Changed:
        """All metadata. ``new`` incarnations also get their pending deletions again."""
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
