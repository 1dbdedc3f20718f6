"""The work of a controller during its term: each event is a method, run on its actor.

An event reads the context, writes to the coordinator's tree, and updates the context after every
write that succeeded. It may stop half-way (no answer, or a node that differs). Run again, it reads
what is in doubt and finds the rest of its work.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random

from checkpoints.loggers import get_logger
from logstore.common.errors import LogstoreError
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.messages import (
    UNRESOLVED,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionItem,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    LeaderAndIsrResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    StopReplicaRequest,
    StopReplicaResponse,
    TopicResponse,
)
from replication.common.retrying import Reaction
from replication.common.runtime import Task
from replication.common.state import (
    BrokerRegistration,
    LiveBroker,
    TopicAssignment,
    TopicPartition,
)
from replication.common.transport import OnReply
from replication.controller.channels import (
    ROLE_REACTIONS,
    STOP_REACTIONS,
    BrokerChannel,
    ControlResponse,
    OnResponse,
)
from replication.controller.context import (
    Changes,
    ControllerContext,
    ControllerStats,
    LeftOut,
)
from replication.controller.outbox import Outbox
from replication.controller.partitions import HasLost, PartitionDecisions
from replication.controller.store import ControllerStore, DeposedError
from replication.controller.topics import (
    Reassignment,
    altered_config,
    move_to,
    new_partitions,
    new_topic,
)
from replication.controller.writer import TermWriter

logger = get_logger(__name__)

OpenChannel = Callable[[LiveBroker, ControllerContext, OnResponse], BrokerChannel]


class ControllerTerm:
    """One term. All methods raise as those of `ControllerStore`.

    Args:
        later: queues another event, which runs after this one, repeatedly if needed.
    """

    def __init__(
        self,
        store: ControllerStore,
        open_channel: OpenChannel,
        later: Callable[[Task], None],
        config: ReplicationConfig,
        rng: Random,
        stats: ControllerStats,
    ) -> None:
        """Reads only a little; ``take_over`` reads the rest."""
        self.context = store.begin()
        self.store = store
        self._later = later
        self._config = config
        self._rng = rng
        self._decisions = PartitionDecisions(self.context, config.eligible_leader_replicas)
        self._outbox = Outbox(
            self.context, lambda broker: open_channel(broker, self.context, self._on_response)
        )
        self._writer = TermWriter(store, self.context, self._outbox, stats)
        self._commit = self._writer.commit
        self.resolve_doubts = self._writer.resolve_doubts  # of the last event, before every one
        self.flush = self._outbox.flush  # after it
        self.close = self._outbox.close

    def take_over(self) -> None:
        """Read everything and finish the work of an earlier controller.

        There are no elections before it is known which brokers were fenced and which stopped
        cleanly (S-25). Run again after a lost answer, it continues reading where it stopped.
        Brokers are informed when it is complete.
        """
        self.store.read(self.context)
        self.store.outrank(known.controller_epoch for known in self.context.partitions.values())
        self.context.unread_deletions = True
        self.resolve_doubts()  # so that brokers to which an earlier try was announced are told
        self.on_brokers()
        self._commit(self._decisions.complete_reassignments())
        for name in [*self.context.deleting]:
            self._finish_deletion(name)
        self.on_log_dir_events()
        self.store.note_term()
        self.context.by_kafka.clear()
        self.check()

    def check(self) -> None:
        """
        Raises:
            DeposedError: the term is over.
        """
        if self.store.is_deposed():
            raise DeposedError("another controller was elected, or this one was removed")
        self.store.sign()

    # -- brokers ---------------------------------------------------------------------------------

    def on_brokers(self) -> None:
        """Process brokers that came, went, or both (R-59, R-63, R-64).

        At once only brokers count as up that are registered and whose incarnation was processed. A
        new incarnation first counts as dead, and its epoch is stored only when it has left the
        ISRs, so a controller that stops in between leaves the same work to the next one. All dead
        brokers are processed, not only those that died now, because an earlier run may have stopped
        half-way.
        """
        context, remembered = self.context, self.context.remembered
        before, seen = context.live, self.store.brokers()
        context.beside_kafka = any(live.registration.is_foreign for live in seen.values())
        epochs = {broker: live.broker_epoch for broker, live in seen.items()}
        joined = {b: epoch for b, epoch in epochs.items() if remembered.get(b) != epoch}
        unclean = [
            broker
            for broker in joined
            if broker in remembered and not seen[broker].registration.continues(remembered[broker])
        ]
        lost = {b: _loss(seen[b].registration, remembered.get(b)) for b in joined}
        context.set_live({b: live for b, live in seen.items() if b not in joined})
        gone = [broker for broker in context.on_broker if broker not in context.live]
        if context.live != before:
            self._outbox.announce()
        self._distrust_left_out()
        self._commit(self._decisions.fence(gone, unclean, lost))
        doubted = dict(context.distrusted)
        for each in context.unreadable:
            found = {*unclean, *(b for b in joined if _lacks(seen[b].registration, each))}
            if found:
                doubted[each] = doubted.get(each, frozenset()) | found
        if doubted != context.distrusted:
            self.store.distrust(context, doubted)
        if joined:
            self.store.remember(joined)
            remembered.update(joined)
            context.set_live(seen)
            self._outbox.announce()
        self._commit(self._decisions.outrank_coordinators())
        self._commit(self._decisions.first_states())
        self._commit(self._decisions.elect_leaderless())

    def _distrust_left_out(self) -> None:
        """Process unclean restarts that were missed by what was left out meanwhile (R-70)."""
        context = self.context
        if not context.distrusted:
            return
        self._commit(self._decisions.distrust(context.doubtful_replicas()))
        still = context.still_distrusted()
        if still != context.distrusted:
            self.store.distrust(context, still)

    def controlled_shutdown(self, request: ControlledShutdownRequest, reply: OnReply) -> None:
        """Move the broker's leaderships away, and answer when it may stop (R-65)."""
        broker, context = request.broker_id, self.context
        if not self._is_current(broker, request.broker_epoch):
            reply(ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH))
            return
        if broker not in context.shutting_down:
            context.shutting_down[broker] = None
            self._outbox.announce()
        self._commit(self._decisions.shut_down(broker))
        reply(ControlledShutdownResponse(ErrorCode.NONE, self._decisions.led_by(broker)))

    def allocate_producer_ids(self, request: AllocateProducerIdsRequest, reply: OnReply) -> None:
        """Judge whether a broker gets ids. Who serves the controller's requests has them (X-74)."""
        code = ErrorCode.NONE
        if request.broker_id not in self.context.live:
            code = ErrorCode.BROKER_ID_NOT_REGISTERED
        elif not self._is_current(request.broker_id, request.broker_epoch):
            code = ErrorCode.STALE_BROKER_EPOCH
        reply(AllocateProducerIdsResponse(code))

    def on_log_dir_events(self) -> None:
        """Ask brokers which replicas are lost with a log directory (R-66)."""
        paths, brokers = self.store.log_dir_events()
        for broker in dict.fromkeys(brokers):
            self._outbox.all_roles_to(broker)
        self.store.remove(paths)

    def _is_current(self, broker: int, broker_epoch: int) -> bool:
        known = self.context.live.get(broker)
        return known is not None and known.broker_epoch == broker_epoch

    def _on_response(self, broker: int, request: ControlRequest, response: ControlResponse) -> None:
        if isinstance(response, LeaderAndIsrResponse):
            self._on_roles(broker, response)
        elif isinstance(request, StopReplicaRequest) and isinstance(response, StopReplicaResponse):
            self._on_stopped(broker, request, response)

    def _on_roles(self, broker: int, response: LeaderAndIsrResponse) -> None:
        """Note which replicas are in failed log directories (R-66), and elect above the epochs of
        logs that are ahead (R-181)."""
        offline = self.context.offline.setdefault(broker, {})
        lost = []
        for tp, error in response.partitions:
            if error is ErrorCode.NONE:
                offline.pop(tp, None)
            elif ROLE_REACTIONS[error] is Reaction.GIVE_UP and tp not in offline:
                offline[tp] = None
                lost.append(tp)
        if response.log_epochs:
            self._later(lambda: self._commit(self._decisions.outrank(response.log_epochs)))

        def lose() -> None:
            active = filter(self.context.is_active, lost)
            self._commit(self._decisions.lose_replicas(broker, active))

        if lost:
            self._later(lose)

    # -- partitions ------------------------------------------------------------------------------

    def alter_partition(self, request: AlterPartitionRequest, reply: OnReply) -> None:
        """Judge the proposals of a leader, and write those that hold (R-42 … R-49)."""
        if not self._is_current(request.broker_id, request.broker_epoch):
            reply(AlterPartitionResponse(ErrorCode.STALE_BROKER_EPOCH))
            return
        items = self._with_names(request.partitions)
        changes, results = self._decisions.alter(request.broker_id, items)
        self._commit(changes)
        answers = results()
        ahead = [each.tp for each in answers if each.error_code is ErrorCode.NOT_CONTROLLER]
        if ahead:  # it knows epochs that this controller does not
            self._later(partial(self._check_ahead, ahead))
        reply(AlterPartitionResponse(ErrorCode.NONE, answers))

    def _with_names(self, items: Iterable[AlterPartitionItem]) -> list[AlterPartitionItem]:
        """Look up the topics of proposals that came with ids alone, in the state of now."""
        if not any(item.tp.topic.startswith(UNRESOLVED) for item in items):
            return [*items]
        names = {topic.assignment.topic_id: name for name, topic in self.context.topics.items()}
        return [
            item._replace(tp=TopicPartition(names[item.topic_id], item.tp.partition))
            if item.topic_id in names
            else item
            for item in items
        ]

    def _check_ahead(self, ahead: list[TopicPartition]) -> None:
        """Look whether there is another controller, which has elected these leaders."""
        self.check()
        for tp in ahead:
            self.context.log.error(
                "the leader of %s was elected later than the coordinator knows: an older state was "
                "put back there",
                tp,
                about=tp,
            )

    def election_task(self, request: ElectLeadersRequest, reply: OnReply) -> Task:
        """Make an event that remembers what it has tried to elect (R-60)."""
        tried: set[TopicPartition] = set()

        def elect() -> None:
            changes, verdicts = self._decisions.elect_leaders(
                request.election_type, request.partitions, tried
            )
            tried.update(changes)
            self._commit(changes)
            reply(ElectLeadersResponse(ErrorCode.NONE, verdicts))

        return elect

    def retry_elections(self) -> None:
        """Periodically elect leaders for partitions without one (R-59), and finish requested
        elections.
        """
        left_out = self.context.left_out_topics()
        if left_out:
            self._later(self.look_again_task(*left_out))
        self._commit(self._decisions.first_states())
        self._commit(self._decisions.elect_leaderless())

    def look_again_task(self, *names: str) -> Task:
        """Make an event that reads, once, what is left out of topics, because a node has changed.

        What can be read again has missed what happened to brokers meanwhile.
        """
        unread = [*names]

        def read_again() -> None:
            while unread:
                self.context.read_left_out(unread.pop())
            self.resolve_doubts()
            self.on_brokers()

        return read_again

    def rebalance(self) -> None:
        """Periodically elect preferred replicas that do not lead (R-61)."""
        self._commit(self._decisions.rebalance())

    def reassignment_task(
        self, request: AlterPartitionReassignmentsRequest, reply: OnReply
    ) -> Task:
        """Make an event that remembers which moves it has tried to begin or to cancel (R-62)."""
        tried: set[TopicPartition] = set()

        def reassign() -> None:
            changes: Changes = {}
            moves: dict[TopicPartition, Reassignment] = {}
            verdicts: dict[TopicPartition, ErrorCode] = {}
            for tp, target in dict(request.targets).items():
                verdicts[tp] = ErrorCode.NONE
                try:
                    move = move_to(tp, target, self.context, request.may_change_factor)
                except LogstoreError as error:
                    code = error_code_of(error)
                    if code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS or tp not in tried:
                        verdicts[tp] = code
                    continue
                after = self._decisions.reassign(tp, move)
                if after.partition_epoch != self.context.partitions[tp].partition_epoch:
                    changes[tp], moves[tp] = after, move
            tried.update(changes)
            self._commit(changes, moves)
            reply(AlterPartitionReassignmentsResponse(ErrorCode.NONE, tuple(verdicts.items())))

        return reassign

    def list_reassignments(
        self, request: ListPartitionReassignmentsRequest, reply: OnReply
    ) -> None:
        """Answer with the present moves."""
        self.check()
        found = []
        for name, topic in sorted(self.context.topics.items()):
            known = topic.assignment
            for number in sorted(known.adding.keys() | known.removing.keys()):
                tp = TopicPartition(name, number)
                if request.partitions is None or tp in request.partitions:
                    moves = known.adding.get(number, ()), known.removing.get(number, ())
                    found.append(OngoingReassignment(tp, known.partitions[number], *moves))
        reply(ListPartitionReassignmentsResponse(ErrorCode.NONE, tuple(found)))

    # -- topics ----------------------------------------------------------------------------------

    def _refuse(self, reply: OnReply, error: LogstoreError) -> None:
        """Refuse a request after checking the term.

        A refusal writes nothing, so no write proves that the term still holds, and a deposed
        controller may know neither topic nor name.
        """
        self.check()
        reply(TopicResponse(error_code_of(error), str(error)))

    def topic_creation_task(self, request: CreateTopicRequest, reply: OnReply) -> Task:
        """Make an event that remembers its topic, so that a retry continues with the same one."""
        name = request.topic
        topic: TopicAssignment | None = None

        def create() -> None:
            nonlocal topic
            context = self.context
            if topic is None:
                try:
                    wanted = new_topic(request, context, self._config, self._rng)
                except LogstoreError as error:
                    self._refuse(reply, error)
                    return
                if request.validate_only:
                    self.check()
                    reply(TopicResponse(ErrorCode.NONE))
                    return
                topic = wanted
            if name not in context.topics:
                found = self.store.topic(name)
                if found is None:
                    self._writer.create_topic(name, topic)
                else:
                    context.put_topic(name, *found)
            if context.topics[name].assignment.topic_id != topic.topic_id:  # by another controller
                reply(TopicResponse(ErrorCode.TOPIC_ALREADY_EXISTS))
                return
            self._commit(self._decisions.first_states())
            reply(TopicResponse(ErrorCode.NONE))

        return create

    def delete_topic(self, request: DeleteTopicRequest, reply: OnReply) -> None:
        """Answer when the topic is marked. Its nodes are deleted when all replicas are gone.

        That includes replicas of dead brokers, and the name is taken until then: a broker that
        comes back with files of the old topic must not meet a new one.
        """
        name = self._to_delete(request)
        if isinstance(name, ErrorCode):
            self.check()
            reply(TopicResponse(name))
            return
        self._writer.delete_topic(name)
        reply(TopicResponse(ErrorCode.NONE))
        self._later(partial(self._finish_deletion, name))

    def _to_delete(self, request: DeleteTopicRequest) -> str | ErrorCode:
        """The name of the topic to delete, or an error."""
        topics, name, topic_id = self.context.topics, request.topic, request.topic_id
        if (name is None) == (topic_id is None):
            return ErrorCode.INVALID_REQUEST
        if name is not None:
            return name if name in topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for known, topic in topics.items():
            if topic.assignment.topic_id == topic_id:
                return known
        return ErrorCode.UNKNOWN_TOPIC_ID

    def partition_growth_task(self, request: CreatePartitionsRequest, reply: OnReply) -> Task:
        """Make an event that remembers what it has tried to add, so that a retry recognises it."""
        tried: tuple[uuid.UUID, dict[int, tuple[int, ...]]] | None = None

        def grow() -> None:
            nonlocal tried
            known = self.context.topics.get(request.topic)
            topic = None if known is None else known.assignment
            if topic is None or tried is None or not _is_there(topic, *tried):
                try:
                    new = new_partitions(request, self.context, self._rng)
                except LogstoreError as error:
                    self._refuse(reply, error)
                    return
                if request.validate_only:
                    self.check()
                else:
                    tried = self.context.topics[request.topic].assignment.topic_id, new
                    self._writer.add_partitions(request.topic, new)
            self._commit(self._decisions.first_states())
            reply(TopicResponse(ErrorCode.NONE))

        return grow

    def alter_topic(self, request: IncrementalAlterConfigsRequest, reply: OnReply) -> None:
        """Change a configuration. A retry changes nothing more, and brokers get the present one.

        A lower ``min.insync.replicas`` ends the eligibility of replicas before any leader gets it.
        A higher one is sent before any replica becomes eligible by it.
        """
        name, context = request.topic, self.context
        try:
            config = altered_config(request, context)
        except LogstoreError as error:
            self._refuse(reply, error)
            return
        self.check()
        if not request.validate_only:
            if config != context.topics[name].assignment.config:
                min_isr = context.resolve(name, config).min_insync_replicas
                if min_isr < context.topics[name].config.min_insync_replicas:
                    self._commit(self._decisions.lower_min_isr(name, min_isr))
                self._writer.alter_topic(name, config)
            self._commit(self._decisions.elect_leaderless())
        reply(TopicResponse(ErrorCode.NONE))

    def _on_stopped(
        self, broker: int, request: StopReplicaRequest, response: StopReplicaResponse
    ) -> None:
        codes: dict[TopicPartition, ErrorCode] = {}
        for tp, code in response.partitions:
            if STOP_REACTIONS[codes.get(tp, ErrorCode.NONE)] is Reaction.DONE:
                codes[tp] = code  # of two topics of a name, the one that is not gone counts
        for stop in request.partitions:
            topic = self.context.topics.get(stop.tp.topic)
            if topic is None or topic.assignment.topic_id != stop.topic_id:
                continue  # an earlier topic of that name
            code = codes.get(stop.tp, ErrorCode.UNKNOWN_SERVER_ERROR)
            is_gone = STOP_REACTIONS[code] is Reaction.DONE
            if is_gone and self.context.confirm_deletion(stop.tp, broker):
                self._later(partial(self._finish_deletion, stop.tp.topic))

    def _finish_deletion(self, name: str) -> None:
        if self.context.deleting.get(name) == {}:
            topic_id = self.context.topics[name].assignment.topic_id
            self.context.deleted = self.store.delete_topic(name, topic_id)
            self.context.remove_topic(name)


def _lacks(registration: BrokerRegistration, each: LeftOut) -> bool:
    """Whether a log of what is left out is not proven."""
    if not isinstance(each, str):
        return registration.lacks(each)
    unproven = registration.unproven
    return unproven is None or any(tp.topic == each for tp in unproven)


def _loss(registration: BrokerRegistration, remembered: int | None) -> HasLost:
    """Which logs a new incarnation has lost."""
    if remembered is not None and registration.is_of_another_time(remembered):
        logger.error(
            "broker %s is back with log directories of another time: they were closed in its "
            "epoch %s, and its last one is %s; none of its replicas counts as in sync",
            registration.broker_id,
            registration.previous_broker_epoch,
            remembered,
        )
        return lambda tp: True
    return registration.lacks


def _is_there(
    topic: TopicAssignment, topic_id: uuid.UUID, new: Mapping[int, tuple[int, ...]]
) -> bool:
    return topic.topic_id == topic_id and new.items() <= topic.partitions.items()
