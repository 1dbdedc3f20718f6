"""The channels of brokers, and changes of an event on their way into them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from replication.common.messages import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    PartitionChange,
    StopReplicaPartition,
)
from replication.common.state import LiveBroker, PartitionRegistration, TopicPartition
from replication.controller.channels import BrokerChannel, Changed
from replication.controller.context import ControllerContext


class Outbox:
    """Gathers in the channels what an event changed. ``flush`` comes after the event, so that each
    broker gets one request of each kind."""

    def __init__(
        self, context: ControllerContext, open_channel: Callable[[LiveBroker], BrokerChannel]
    ) -> None:
        self._context = context
        self._open_channel = open_channel
        self._channels: dict[int, BrokerChannel] = {}

    def changed(self, *partitions: TopicPartition) -> None:
        context = self._context
        changes = {tp: context.change_of(tp) for tp in partitions if context.is_active(tp)}
        for broker, channel in self._channels.items() if changes else ():
            roles = {tp: c for tp, c in changes.items() if broker in c.registration.replicas}
            if roles:
                channel.lead_and_follow(roles)
            channel.update_metadata(changes)

    def announce(self) -> None:
        """Announce a changed set of live brokers, or of brokers that shut down.

        A new incarnation gets the full state, and its pending deletions again.
        """
        context, channels = self._context, self._channels
        for broker, channel in [*channels.items()]:
            known = context.live.get(broker)
            if known is None or known.broker_epoch != channel.broker_epoch:
                channels.pop(broker).close()
        for channel in channels.values():
            channel.update_metadata({})
        new = [broker for broker in context.live if broker not in channels]
        everything: Changed = {}
        if new:
            active = filter(context.is_active, context.partitions)
            everything = {tp: context.change_of(tp) for tp in active}
            for name in context.deleting:
                everything |= self._gone_of(name)
        for broker in new:
            channel = channels[broker] = self._open_channel(context.live[broker])
            channel.send_all_roles()
            channel.send_all_metadata(everything)
        for name in context.deleting:
            self._stop_deleted(name, new)

    def all_roles_to(self, broker: int) -> None:
        """Send a broker all its partitions, so that it reports which are offline (R-66)."""
        if broker in self._channels:
            self._channels[broker].send_all_roles()

    def delete_topic(self, name: str) -> None:
        """Announce the deletion of a topic, and stop its remaining replicas."""
        gone = self._gone_of(name)
        for channel in self._channels.values():
            channel.update_metadata(gone)
        self._stop_deleted(name, self._channels)

    def _stop_deleted(self, name: str, among: Collection[int]) -> None:
        for tp, brokers in self._context.deleting[name].items():
            for broker in brokers:
                if broker in among:
                    self.stop_replica(broker, tp, EPOCH_DURING_DELETE)

    def stop_replica(self, broker: int, tp: TopicPartition, leader_epoch: int) -> None:
        """Stop a replica and delete its files."""
        topic_id = self._context.topics[tp.topic].assignment.topic_id
        if broker in self._channels:
            stop = StopReplicaPartition(tp, leader_epoch, delete=True, topic_id=topic_id)
            self._channels[broker].stop([stop])

    def flush(self) -> None:
        for channel in self._channels.values():
            channel.send()

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
