"""What a controller does while it is one: each event as a method, to be run on its actor.

An event reads the context, writes to the coordinator's tree, and changes the context with every
write that succeeded. It may stop half-way (no answer, a node other than expected): done again, it
finds what is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random

from logstore.errors import LogstoreError
from replication.config import ReplicationConfig
from replication.controller.channels import Channel, ControlResponse, OnResponse, Outbox
from replication.controller.context import Changes, ControllerContext, ControllerStats
from replication.controller.partitions import Decisions
from replication.controller.store import ControllerStore, DeposedError
from replication.controller.topics import Move, move, new_topic
from replication.controller.writer import Writer
from replication.error_codes import ErrorCode, error_code_of
from replication.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    LeaderAndIsrResponse,
    StopReplicaResponse,
    TopicResponse,
)
from replication.runtime import Task
from replication.state import LiveBroker, TopicAssignment, TopicPartition
from replication.transport import OnReply

OpenChannel = Callable[[LiveBroker, ControllerContext, OnResponse], Channel]
Reassigned = Callable[[Mapping[TopicPartition, ErrorCode]], None]


class ControllerTerm:
    """One term, from reading everything on. All methods raise as ``ControllerStore``'s do.

    Args:
        run: runs an event now, and again as long as it has to be.
    """

    def __init__(
        self,
        store: ControllerStore,
        open_channel: OpenChannel,
        run: Callable[[Task], None],
        config: ReplicationConfig,
        rng: Random,
        stats: ControllerStats,
    ) -> None:
        self.context = store.load()
        self._store = store
        self._run = run
        self._config = config
        self._rng = rng
        self._decisions = Decisions(self.context, config.eligible_leader_replicas)
        self._outbox = Outbox(
            self.context, lambda broker: open_channel(broker, self.context, self._on_response)
        )
        self._writer = Writer(store, self.context, self._outbox, stats)
        self._commit = self._writer.commit

    def take_over(self) -> None:
        """Do what an earlier controller left undone; elect nobody before it is known who was
        fenced and who stopped cleanly (S-25)."""
        self._fence_and_elect([*self.context.on_broker])
        self._commit(self._decisions.complete_reassignments())
        for name in [*self.context.deleting]:
            self._finish_deletion(name)
        self.on_isr_changes()
        self.on_log_dir_events()

    def flush(self) -> None:
        """Send the brokers what has changed since the last time."""
        self._outbox.flush()

    def close(self) -> None:
        self._outbox.close()

    def check(self) -> None:
        """
        Raises:
            DeposedError: the term is over.
        """
        if self._store.is_deposed():
            raise DeposedError("another controller was elected, or this one was removed")

    # -- brokers ---------------------------------------------------------------------------------

    def on_brokers(self) -> None:
        """Somebody came, went, or both (R-59, R-63, R-64)."""
        self._fence_and_elect([*self.context.live])

    def _fence_and_elect(self, expected: Iterable[int]) -> None:
        """Those of ``expected`` who are not there are dead.

        A new incarnation first counts as dead, and its epoch is remembered only when it has left
        the ISRs: a controller that stops in between leaves the same work to the next one.
        """
        context, remembered = self.context, self.context.remembered
        seen = self._store.brokers()
        epochs = {broker: live.broker_epoch for broker, live in seen.items()}
        gone = [broker for broker in expected if broker not in seen]
        again = [b for b, epoch in epochs.items() if remembered.get(b, epoch) != epoch]
        unclean = [b for b in again if seen[b].registration.previous_broker_epoch != remembered[b]]
        alive = {b for b, epoch in epochs.items() if remembered.get(b) == epoch}
        if gone or again:
            self._commit(self._decisions.fence({*gone, *again}, unclean, alive))
        news = {b: epoch for b, epoch in epochs.items() if b not in alive}
        if news:
            self._store.remember(news)
            remembered.update(news)
        if seen != context.live:
            context.set_live(seen)
            self._outbox.announce()
        self._commit(self._decisions.first_states())
        self._commit(self._decisions.elect_leaderless())

    def controlled_shutdown(self, request: ControlledShutdownRequest, reply: OnReply) -> None:
        """R-65."""
        broker, context = request.broker_id, self.context
        if not self._is_current(broker, request.broker_epoch):
            reply(ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH))
            return
        if broker not in context.shutting_down:
            context.shutting_down[broker] = None
            self._outbox.announce()
        self._commit(self._decisions.shut_down(broker))
        reply(ControlledShutdownResponse(ErrorCode.NONE, self._decisions.led_by(broker)))

    def on_log_dir_events(self) -> None:
        """R-66: the brokers' answers tell which replicas are lost."""
        paths, brokers = self._store.log_dir_events()
        for broker in dict.fromkeys(brokers):
            self._outbox.all_roles_to(broker)
        self._store.remove(paths)

    def _is_current(self, broker: int, broker_epoch: int) -> bool:
        known = self.context.live.get(broker)
        return known is not None and known.broker_epoch == broker_epoch

    def _on_response(self, broker: int, response: ControlResponse) -> None:
        if response.error_code is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._run(self.check)
        elif isinstance(response, LeaderAndIsrResponse):
            self._on_roles(broker, response)
        elif isinstance(response, StopReplicaResponse):
            self._on_stopped(broker, response)

    def _on_roles(self, broker: int, response: LeaderAndIsrResponse) -> None:
        """Which replicas are in failed log directories (R-66)."""
        offline = self.context.offline.setdefault(broker, {})
        lost = []
        for tp, error in response.partitions:
            if error is ErrorCode.NONE:
                offline.pop(tp, None)
            elif error is ErrorCode.KAFKA_STORAGE_ERROR and tp not in offline:
                offline[tp] = None
                lost.append(tp)

        def lose() -> None:
            active = filter(self.context.is_active, lost)
            self._commit(self._decisions.lose_replicas(broker, active))

        if lost:
            self._run(lose)

    # -- partitions ------------------------------------------------------------------------------

    def alter_partition(self, request: AlterPartitionRequest, reply: OnReply) -> None:
        """R-42 … R-49."""
        if not self._is_current(request.broker_id, request.broker_epoch):
            reply(AlterPartitionResponse(ErrorCode.STALE_BROKER_EPOCH))
            return
        changes, results = self._decisions.alter(request.broker_id, request.partitions)
        self._commit(changes)
        reply(AlterPartitionResponse(ErrorCode.NONE, results()))

    def elect_leaders(self, request: ElectLeadersRequest, reply: OnReply) -> None:
        """R-60."""
        changes, verdicts = self._decisions.elect_leaders(request.election_type, request.partitions)
        self._commit(changes)
        reply(ElectLeadersResponse(ErrorCode.NONE, verdicts))

    def retry_elections(self) -> None:
        """R-59, periodically."""
        self._commit(self._decisions.elect_leaderless())

    def rebalance(self) -> None:
        """R-61, periodically."""
        self._commit(self._decisions.rebalance())

    def reassign(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None], reply: Reassigned
    ) -> None:
        """R-62."""
        changes: Changes = {}
        moves: dict[TopicPartition, Move] = {}
        verdicts: dict[TopicPartition, ErrorCode] = {}
        for tp, target in targets.items():
            verdicts[tp] = ErrorCode.NONE
            try:
                moves[tp] = move(tp, target, self.context)
            except LogstoreError as error:
                verdicts[tp] = error_code_of(error)
                continue
            after = self._decisions.reassign(tp, moves[tp])
            if after.partition_epoch != self.context.partitions[tp].partition_epoch:
                changes[tp] = after
        self._commit(changes, moves)
        reply(verdicts)

    def on_isr_changes(self) -> None:
        """Brokers changed registrations in the tree themselves."""
        paths, changed = self._store.isr_changes()
        self._writer.read_again(filter(self.context.is_active, dict.fromkeys(changed)))
        self._store.remove(paths)

    # -- topics ----------------------------------------------------------------------------------

    def creation(self, request: CreateTopicRequest, reply: OnReply) -> Task:
        """An event that remembers its topic: done again, it goes on with the same one."""
        name = request.topic
        topic: TopicAssignment | None = None

        def create() -> None:
            nonlocal topic
            context = self.context
            if topic is None:
                try:
                    topic = new_topic(request, context, self._config, self._rng)
                except LogstoreError as error:
                    reply(TopicResponse(error_code_of(error), str(error)))
                    return
            if name not in context.topics:
                found = self._store.topic(name)
                if found is None:
                    self._store.create_topic(name, topic)
                    found = topic, 0
                context.put_topic(name, *found)
            if context.topics[name].assignment.topic_id != topic.topic_id:  # past this controller
                reply(TopicResponse(ErrorCode.TOPIC_ALREADY_EXISTS))
                return
            self._commit(self._decisions.first_states())
            reply(TopicResponse(ErrorCode.NONE))

        return create

    def delete_topic(self, request: DeleteTopicRequest, reply: OnReply) -> None:
        """Answered when the topic is marked; its nodes go when all its replicas are gone.

        Replicas of dead brokers are waited for, and the name is taken until then: a broker that
        comes back with files of the old topic must not meet a new one.
        """
        name = request.topic
        if name not in self.context.topics:
            reply(TopicResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        self._store.mark_deleted(name)
        self.context.start_deletion(name)
        self._outbox.delete_topic(name)
        reply(TopicResponse(ErrorCode.NONE))
        self._run(partial(self._finish_deletion, name))

    def _on_stopped(self, broker: int, response: StopReplicaResponse) -> None:
        gone = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for tp, error in response.partitions:
            if error in gone and self.context.confirm_deletion(tp, broker):
                self._run(partial(self._finish_deletion, tp.topic))

    def _finish_deletion(self, name: str) -> None:
        if self.context.deleting.get(name) == {}:
            self._store.delete_topic(name)
            self.context.remove_topic(name)
