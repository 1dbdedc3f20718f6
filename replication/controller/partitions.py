"""Decide which registrations follow from an event, over many partitions.

Nothing is written here. All functions read the context and return *changes*, which hold only
partitions that do change. Called again for the same event after a partial write, they return the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import TRANSACTION_STATE
from replication.common.messages import AlterPartitionItem, AlterPartitionResult, ElectionType
from replication.common.state import (
    MAX_EPOCH_OF_A_LOG,
    NO_LEADER,
    UNKNOWN_EPOCH,
    PartitionRegistration,
    RecoveryState,
    TopicPartition,
)
from replication.controller.context import Changes, ControllerContext
from replication.controller.topics import Reassignment
from replication.decisions.election import (
    Mode,
    change,
    check_alter,
    is_already_applied,
)

HasLost = Callable[[TopicPartition], bool]

MAX_REBALANCES = 1000  # the most elections in one run of the periodic task, as in Kafka


class PartitionDecisions:
    """``elr_enabled`` is ``eligible.leader.replicas.enable`` (KIP-966).

    Beside a real Kafka there are no such replicas (X-94): as a leader it commits with fewer than
    ``min.insync.replicas``, and as a controller it writes states without them.
    """

    def __init__(self, context: ControllerContext, elr_enabled: bool) -> None:
        self._context = context
        self._elr_enabled = elr_enabled

    # -- one partition ---------------------------------------------------------------------------

    def decide(
        self,
        tp: TopicPartition,
        *,
        mode: Mode | None = None,
        isr: Collection[int] | None = None,
        unclean: Collection[int] = (),
        lost: Collection[int] = (),
        recovery_state: RecoveryState | None = None,
        move: Reassignment | None = None,
        min_isr: int | None = None,
    ) -> PartitionRegistration:
        """Call ``election.change`` with the state of the context.

        A broker in controlled shutdown is no candidate, but it goes on leading if no other broker
        can without a loss (R-65): there is no unclean election while it leads. A reassignment
        completes as soon as the ISR holds all targets (R-62).

        Args:
            mode: by default online, or unclean if the topic allows it (R-59).
            move: a reassignment that begins now, replacing a present one.
            min_isr: ``min.insync.replicas``; by default the topic's.
        """
        context = self._context
        now = context.partitions[tp]
        has_elr = self._elr_enabled and not (context.beside_kafka and now.isr)
        if mode is None:
            unclean_allowed = context.topics[tp.topic].config.unclean_leader_election_enable
            mode = Mode.UNCLEAN if unclean_allowed else Mode.ONLINE

        kept: tuple[int, ...] = ()

        def may_lead(broker: int) -> bool:
            is_going = broker in context.shutting_down and broker not in kept
            return context.is_online(broker, tp) and not is_going

        def decided(
            isr: Collection[int] | None, replicas: tuple[int, ...], mode: Mode
        ) -> PartitionRegistration:
            return change(
                now,
                may_lead,
                min_isr=context.min_isr(tp.topic, len(replicas), min_isr),
                elr_enabled=has_elr,
                mode=mode,
                isr=isr,
                unclean_replicas=unclean,
                lost_replicas=lost,
                last_choice=context.lacking(tp),
                replicas=replicas,
                recovery_state=recovery_state,
            )

        replicas = now.replicas if move is None else move.replicas
        stays = now.leader in context.shutting_down and context.is_online(now.leader, tp)
        mode = self._mode_beside(stays, mode)
        after = decided(isr, replicas, mode)
        if after.leader == NO_LEADER and stays:
            kept = (now.leader,)
            after = decided(isr, replicas, mode)
        target = self._target(tp) if move is None else move.target
        if target and set(target) <= set(after.isr):
            completed = decided([r for r in after.isr if r in target], target, mode)
            if completed.leader != NO_LEADER or after.leader == NO_LEADER:
                after = completed
        is_own = recovery_state is None  # not a proposal of the leader, which gets an answer
        same = after.isr != now.isr and after.leader_epoch == now.leader_epoch
        if is_own and same and context.is_foreign(after.leader):
            after = after._replace(leader_epoch=now.leader_epoch + 1)  # or it takes no order
        return after

    @staticmethod
    def _mode_beside(stays: bool, mode: Mode) -> Mode:
        """The mode of an election.

        ``stays``: the leader is stopping, and leads on if no other broker can.
        """
        return Mode.ONLINE if stays and mode is Mode.UNCLEAN else mode

    def _target(self, tp: TopicPartition) -> tuple[int, ...] | None:
        """The replicas after the present reassignment, if there is one."""
        topic = self._context.topics[tp.topic].assignment
        adding, removing = topic.adding.get(tp.partition), topic.removing.get(tp.partition, ())
        if not adding and not removing:
            return None
        replicas = self._context.partitions[tp].replicas
        return tuple(replica for replica in replicas if replica not in removing)

    def reassign(self, tp: TopicPartition, move: Reassignment) -> PartitionRegistration:
        """The first step of a reassignment, which may also be the last (R-62).

        A new replica starts a leader epoch, as in Kafka's ZooKeeper mode, so that a late
        StopReplica from before cannot remove it.
        """
        now = self._context.partitions[tp]
        after = self.decide(tp, move=move)
        joins = any(replica not in now.replicas for replica in after.replicas)
        if joins and after.leader_epoch == now.leader_epoch:
            after = after._replace(leader_epoch=now.leader_epoch + 1)
        return after

    def complete_reassignments(self) -> Changes:
        """Complete reassignments that were ready when the last controller stopped."""
        listed = (
            TopicPartition(name, number)
            for name, topic in self._context.topics.items()
            for number in (*topic.assignment.adding, *topic.assignment.removing)
        )
        return self._changes(filter(self._context.is_active, dict.fromkeys(listed)), self.decide)

    # -- brokers ---------------------------------------------------------------------------------

    def lower_min_isr(self, name: str, min_isr: int) -> Changes:
        """Changes before a leader may commit with fewer replicas: a replica that was eligible
        because nothing could be committed without it no longer is (KIP-966).
        """
        numbers = self._context.topics[name].assignment.partitions
        listed = (TopicPartition(name, number) for number in numbers)
        return self._changes(
            filter(self._context.is_active, listed), lambda tp: self.decide(tp, min_isr=min_isr)
        )

    def fence(
        self,
        gone: Collection[int],
        unclean: Collection[int],
        lost: Mapping[int, HasLost],
    ) -> Changes:
        """Remove brokers that are down, or whose new incarnation is not processed yet (R-59, R-64).

        A controller of Kafka's that wrote a state after the last term of ours has dealt with the
        restarts meanwhile: whoever is in that ISR has fetched since, though no epoch proves it
        (X-98). ``gone`` brokers leave every ISR. Those of ``unclean`` came back without proof of a
        clean stop and leave every ELR too (R-70), as those of ``lost`` do for the partitions whose
        logs they have lost. There are no unclean elections yet, because a broker of
        ``gone`` that is coming back may have everything: ``elect_leaderless`` follows.
        """

        def after(tp: TopicPartition) -> PartitionRegistration:
            isr = [r for r in self._context.partitions[tp].isr if r not in gone]
            if tp in self._context.by_kafka:
                return self.decide(tp, mode=Mode.ONLINE, isr=isr)
            lacking = [broker for broker, has_lost in lost.items() if has_lost(tp)]
            return self.decide(tp, mode=Mode.ONLINE, isr=isr, unclean=unclean, lost=lacking)

        return self._changes(self._on(gone), after)

    def distrust(self, doubtful: Mapping[TopicPartition, Collection[int]]) -> Changes:
        """Remove replicas that came back uncleanly while nobody could decide on their partition."""

        def after(tp: TopicPartition) -> PartitionRegistration:
            isr = [r for r in self._context.partitions[tp].isr if r not in doubtful[tp]]
            return self.decide(tp, mode=Mode.ONLINE, isr=isr, unclean=doubtful[tp])

        return self._changes(doubtful, after)

    def elect_leaderless(self) -> Changes:
        """Elect leaders where there is none, after a broker came up and periodically (R-59)."""
        return self._changes([*self._context.leaderless], self.decide)

    def first_states(self) -> Changes:
        """The first states of partitions with at least one live replica."""
        context = self._context
        changes: Changes = {}
        for tp in context.uninitialised:
            replicas = context.topics[tp.topic].assignment.partitions[tp.partition]
            alive = tuple(r for r in replicas if r in context.live)
            fit = tuple(r for r in alive if r not in context.shutting_down)
            if alive:
                isr = fit or alive
                is_coordinators = tp.topic == TRANSACTION_STATE
                epoch = max(0, context.coordinator_epoch) if is_coordinators else 0
                changes[tp] = PartitionRegistration(replicas, isr, isr[0], epoch, 0)
        return changes

    def outrank(self, log_epochs: Mapping[TopicPartition, int]) -> Changes:
        """Let the present leaders begin an epoch above all that their replicas' logs know
        (R-181)."""
        partitions = self._context.partitions
        return {
            tp: _elected_again(partitions[tp], epoch + 1)
            for tp, epoch in log_epochs.items()
            if self._context.is_active(tp)
            and partitions[tp].leader_epoch <= epoch <= MAX_EPOCH_OF_A_LOG
        }

    def outrank_coordinators(self) -> Changes:
        """Let the markers of coordinators count in all logs (R-182)."""
        context, epoch = self._context, self._context.coordinator_epoch
        topic = None if epoch == UNKNOWN_EPOCH else context.topics.get(TRANSACTION_STATE)
        if topic is None:
            return {}
        tps = (TopicPartition(TRANSACTION_STATE, number) for number in topic.assignment.partitions)
        return {
            tp: _elected_again(context.partitions[tp], epoch)
            for tp in filter(context.is_active, tps)
            if context.partitions[tp].leader_epoch < epoch
        }

    def shut_down(self, broker: int) -> Changes:
        """Remove a broker in controlled shutdown from ISRs, and move leaderships that others can
        take.

        The broker is in ``shutting_down`` already. It keeps leaderships that no other broker can
        take.
        """

        def after(tp: TopicPartition) -> PartitionRegistration:
            now = self._context.partitions[tp]
            left = self.decide(tp, isr=[r for r in now.isr if r != broker])
            return now if left.leader in (NO_LEADER, broker) else left

        return self._changes(self._on([broker]), after)

    def led_by(self, broker: int) -> tuple[TopicPartition, ...]:
        """Partitions that a broker leads although other brokers have replicas of them."""
        partitions = self._context.partitions
        return tuple(
            tp
            for tp in self._context.active_partitions_on(broker)
            if partitions[tp].leader == broker and len(partitions[tp].replicas) > 1
        )

    def lose_replicas(self, broker: int, lost: Iterable[TopicPartition]) -> Changes:
        """Treat a broker as dead for partitions whose log directory failed (R-66).

        The ``lost`` partitions are in ``offline`` already.
        """

        def after(tp: TopicPartition) -> PartitionRegistration:
            isr = [r for r in self._context.partitions[tp].isr if r != broker]
            return self.decide(tp, isr=isr)

        return self._changes(lost, after)

    def rebalance(self) -> Changes:
        """Elect preferred replicas wherever they can lead (R-61)."""
        changes: Changes = {}
        for tp in self._context.imbalanced:
            after = self.decide(tp, mode=Mode.PREFERRED)
            if after.leader == after.replicas[0]:
                changes[tp] = after
                if len(changes) == MAX_REBALANCES:
                    break
        return changes

    # -- requests --------------------------------------------------------------------------------

    def alter(
        self, sender: int, items: Iterable[AlterPartitionItem]
    ) -> tuple[Changes, Callable[[], tuple[AlterPartitionResult, ...]]]:
        """Judge a leader's proposals (R-42 … R-49).

        Returns:
            The changes, and what to answer once they are written.
        """
        context = self._context
        changes: Changes = {}
        verdicts: list[tuple[AlterPartitionItem, ErrorCode]] = []
        accepted: set[TopicPartition] = set()
        for item in items:
            tp = item.tp
            error = self._error_of(item, sender)
            if error is ErrorCode.NONE:
                if tp in accepted:
                    error = ErrorCode.INVALID_REQUEST
                accepted.add(tp)
            now = context.partitions.get(tp)
            if error is ErrorCode.NONE and now is not None and _is_new(item, now):
                after = self.decide(
                    tp, isr=[r for r, _ in item.new_isr], recovery_state=item.recovery_state
                )
                if after.partition_epoch != now.partition_epoch:
                    changes[tp] = after
                if after.leader != sender:
                    error = ErrorCode.NEW_LEADER_ELECTED
            verdicts.append((item, error))

        def results() -> tuple[AlterPartitionResult, ...]:
            return tuple(
                AlterPartitionResult(item.tp, error, topic_id=item.topic_id)
                if error is not ErrorCode.NONE
                else self._result(item)
                for item, error in verdicts
            )

        return changes, results

    def _error_of(self, item: AlterPartitionItem, sender: int) -> ErrorCode:
        topic = self._context.topics.get(item.tp.topic)
        if topic is None or item.topic_id != topic.assignment.topic_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if not self._context.is_active(item.tp):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        now = self._context.partitions[item.tp]
        if is_already_applied(now, item, sender):
            return ErrorCode.NONE
        error = check_alter(now, item, sender, self._context.is_eligible)
        own_epoch = dict(item.new_isr).get(sender, UNKNOWN_EPOCH)
        known = self._context.live.get(sender)
        is_current = own_epoch == UNKNOWN_EPOCH or (
            known is not None and own_epoch == known.broker_epoch
        )
        if error is ErrorCode.NONE and not is_current:
            return ErrorCode.INELIGIBLE_REPLICA  # proposed before the sender registered again
        return error

    def elect_leaders(
        self,
        kind: ElectionType,
        wanted: Iterable[TopicPartition] | None,
        tried: Collection[TopicPartition] = (),
    ) -> tuple[Changes, tuple[tuple[TopicPartition, ErrorCode], ...]]:
        """Elect as requested (R-60).

        For all partitions (``wanted`` is None) those that need no election are not listed.

        Args:
            tried: partitions that this request has elected before with an unknown outcome.
        """
        context = self._context
        everything = filter(context.is_active, context.partitions)
        listed = everything if wanted is None else dict.fromkeys(wanted)
        changes: Changes = {}
        verdicts = []
        for tp in listed:
            if not context.is_active(tp):
                verdicts.append((tp, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            now = context.partitions[tp]
            if kind is ElectionType.PREFERRED:
                needless = now.leader == now.replicas[0]
                mode, failed = Mode.PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            else:
                needless = now.leader != NO_LEADER
                mode, failed = Mode.UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            if needless:
                if tp in tried:
                    verdicts.append((tp, ErrorCode.NONE))
                elif wanted is not None:
                    verdicts.append((tp, ErrorCode.ELECTION_NOT_NEEDED))
                continue
            after = self.decide(tp, mode=mode)
            if after.leader in (now.leader, NO_LEADER):
                verdicts.append((tp, failed))
            else:
                changes[tp] = after
                verdicts.append((tp, ErrorCode.NONE))
        return changes, tuple(verdicts)

    # -- parts -----------------------------------------------------------------------------------

    def _result(self, item: AlterPartitionItem) -> AlterPartitionResult:
        now = self._context.partitions[item.tp]
        return AlterPartitionResult(
            item.tp,
            ErrorCode.NONE,
            now.leader,
            now.leader_epoch,
            now.isr,
            now.partition_epoch,
            now.recovery_state,
            item.topic_id,
            self._context.min_isr(item.tp.topic, len(now.replicas)),
        )

    def _on(self, brokers: Iterable[int]) -> Iterable[TopicPartition]:
        return dict.fromkeys(
            tp for broker in brokers for tp in self._context.active_partitions_on(broker)
        )

    def _changes(
        self,
        partitions: Iterable[TopicPartition],
        after: Callable[[TopicPartition], PartitionRegistration],
    ) -> Changes:
        changes: Changes = {}
        for tp in partitions:
            decided, now = after(tp), self._context.partitions[tp]
            if decided.partition_epoch != now.partition_epoch:
                changes[tp] = decided
        return changes


def _elected_again(now: PartitionRegistration, leader_epoch: int) -> PartitionRegistration:
    return now._replace(leader_epoch=leader_epoch, partition_epoch=now.partition_epoch + 1)


def _is_new(item: AlterPartitionItem, now: PartitionRegistration) -> bool:
    """Whether a proposal is new.

    One that is accepted with an older partition epoch was applied before (S-25).
    """
    return item.partition_epoch == now.partition_epoch
