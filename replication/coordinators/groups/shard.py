"""The groups of one partition of ``__consumer_offsets``, as a state machine.

A crash loses nothing that the log holds, and clients are shown nothing else: an offset or an
assignment counts once its record is committed. All else about members is in memory only. After a
change of the leader members find their group as the last record has it. If the group had gone on
since, they join again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.config import MAX_LONG
from logstore.common.random_id import RandomId
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AppendDone,
    AppendTimedOut,
    ClientRequest,
    Effect,
    Event,
    MarkerWritten,
    RequestReceived,
    TimerFired,
)
from replication.coordinators.groups import records
from replication.coordinators.groups.classic import ClassicProtocol
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.groups.group import (
    CONSUMER_PROTOCOL,
    NO_GENERATION,
    ClassicGroup,
    is_no_member,
)
from replication.coordinators.groups.offsets import NO_EXPIRY, CommittedOffset, OffsetStore
from replication.coordinators.groups.states import (
    COMMIT_ERRORS,
    GROUP_ERRORS,
    GroupState,
    GroupStats,
)
from replication.coordinators.outbox import OnDone, ShardOutbox
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import CONSUMER_OFFSETS, decode_key, decode_value
from replication.protocol.partitions import by_partition, by_topic, partitions_of

MAX_RECORDS_OF_AN_APPEND = 1000  # of deletions, which may be many
MS_PER_MINUTE = 60_000
NO_RETENTION = -1
CLASSIC = "classic"  # the type of all groups here, as a broker writes it

# First versions whose clients know GROUP_ID_NOT_FOUND.
COMMIT_NOT_FOUND = 9  # OffsetCommit
DESCRIBE_NOT_FOUND = 6

Codes: TypeAlias = dict[TopicPartition, ErrorCode]
CommitRequest: TypeAlias = wire.OffsetCommitRequest | wire.TxnOffsetCommitRequest

logger = get_logger(__name__)


class ForgetTopics(NamedTuple):
    """Delete the offsets of topics that were deleted. Answered by an ``ErrorCode``."""

    topics: frozenset[str]


class ExpiryTimer(NamedTuple):
    """Fires when it is time to look for offsets that are too old."""


class GroupShard:
    """See the module, and ``Shard``.

    A request is a ``ClientRequest`` of a message about one group, whose topics are known by name.
    The answer is that of the protocol to joins, syncs and leaves; the group of it to a description
    or a fetch of offsets; an ``ErrorCode``, or one by partition, to all else.

    Args:
        random_id: where member ids come from.
        stats: of all shards of the broker.
    """

    def __init__(
        self, config: GroupConfig, random_id: RandomId, stats: GroupStats | None = None
    ) -> None:
        self._config = config
        self._stats = stats or GroupStats()
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets = OffsetStore()
        self._number = 0  # of the last change, in the order of the log
        self._now_ms = 0
        self._out = ShardOutbox()
        self._classic = ClassicProtocol(
            config, self._groups, self._out, self._drop_if_void, random_id, self._stats
        )
        self._handlers: dict[type, Callable[[Hashable, ClientRequest], None]] = {
            wire.JoinGroupRequest: self._classic.join,
            wire.SyncGroupRequest: self._classic.sync,
            wire.HeartbeatRequest: self._classic.heartbeat,
            wire.LeaveGroupRequest: self._classic.leave,
            wire.OffsetCommitRequest: self._commit,
            wire.TxnOffsetCommitRequest: self._commit,
            wire.OffsetFetchRequest: self._fetch,
            wire.OffsetDeleteRequest: self._delete_offsets,
            ForgetTopics: self._forget_topics,
            wire.DescribeGroupsRequest: self._describe,
            wire.ListGroupsRequest: self._list,
            wire.DeleteGroupsRequest: self._delete_group,
        }

    @property
    def states(self) -> Counter[GroupState]:
        """Groups by state, as they are at this instant; from any thread."""
        return Counter(group.state for group in self._groups.copy().values())

    # -- replay --------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None, *, producer_id: int = NO_PRODUCER_ID) -> None:
        known = decode_key(CONSUMER_OFFSETS, key)
        said = None if known is None or value is None else decode_value(known, value)
        self._number += 1
        match known:
            case None:  # of a kind that is not served here (W-116)
                pass
            case wire.OffsetCommitKey(group_id, topic, partition):
                tp = TopicPartition(topic, partition)
                if said is None:
                    self._offsets.delete(group_id, tp, self._number)
                elif producer_id == NO_PRODUCER_ID:
                    self._offsets.commit(group_id, tp, said, self._number)
                else:
                    self._offsets.add_pending(producer_id, group_id, tp, said, self._number)
            case wire.GroupMetadataKey(group_id):
                if said is None:
                    self._groups.pop(group_id, None)
                else:
                    self._groups[group_id] = records.group_of(group_id, said)

    def replay_marker(self, producer_id: int, producer_epoch: int, is_commit: bool) -> None:
        self._offsets.end_transaction(producer_id, is_commit)

    def on_loaded(self, now_ms: int) -> list[Effect]:
        self._begin(now_ms)
        for group_id in self._offsets.groups():
            self._group_of_offsets(group_id)
        for group in list(self._groups.values()):
            self._classic.on_loaded(group)
        self._out.start_timer(ExpiryTimer(), self._config.offsets_retention_check_interval_ms)
        return self._out.take_effects()

    def _group_of_offsets(self, group_id: str) -> ClassicGroup:
        """The group of some offsets; it is made if there is none."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ClassicGroup(group_id)
        return group

    # -- events --------------------------------------------------------------------------------

    def on_event(self, event: Event, now_ms: int) -> list[Effect]:
        self._begin(now_ms)
        match event:
            case RequestReceived():
                assert isinstance(event.request, ClientRequest)
                self._handlers[type(event.request.message)](event.to, event.request)
            case AppendDone():
                self._out.append_done(event.token, event.error_code)
            case AppendTimedOut():
                self._out.append_late(event.token)
            case TimerFired(ExpiryTimer()):
                self._expire()
            case TimerFired():
                self._classic.on_timer(event.key)  # type: ignore[arg-type]  # it starts all others
            case MarkerWritten():
                self._end_transaction(event)
            case _:
                raise AssertionError(f"not an event of groups: {event}")
        return self._out.take_effects()

    def _begin(self, now_ms: int) -> None:
        self._now_ms = self._classic.now_ms = now_ms

    def _end_transaction(self, event: MarkerWritten) -> None:
        for group_id in self._offsets.end_transaction(event.producer_id, event.is_commit):
            if self._offsets.has(group_id):
                self._group_of_offsets(group_id)
            elif group_id in self._groups:
                self._drop_if_void(self._groups[group_id])

    def _drop_if_void(self, group: ClassicGroup) -> None:
        """Forget a group that is in no log and has no offsets and no members. Otherwise a client
        could fill the memory with names."""
        if (
            group.state is GroupState.EMPTY
            and not group.generation
            and not group.pending_members
            and self._groups.get(group.group_id) is group
            and not self._offsets.has(group.group_id)
            and not self._offsets.expects(group.group_id)
        ):
            group.become(GroupState.DEAD, self._now_ms)
            del self._groups[group.group_id]

    # -- commit --------------------------------------------------------------------------------

    def _commit(self, to: Hashable, request: ClientRequest) -> None:
        commit: CommitRequest = request.message
        group = self._groups.get(commit.group_id)
        asked = dict(by_partition(commit.topics))
        code = self._check_commit(group, commit, request.version)
        if code is not ErrorCode.NONE:
            self._out.reply(to, dict.fromkeys(asked, code))
            return
        if group is None:
            group = self._group_of_offsets(commit.group_id)
        self._classic.prolong(group, commit.member_id)
        codes: Codes = {
            tp: self._check_metadata(each.committed_metadata) for tp, each in asked.items()
        }
        if ErrorCode.NONE not in codes.values():
            self._out.reply(to, codes)
            self._drop_if_void(group)
            return
        accepted = {tp: each for tp, each in asked.items() if codes[tp] is ErrorCode.NONE}
        offsets = self._committed(commit, accepted)
        in_transaction = isinstance(commit, wire.TxnOffsetCommitRequest)
        producer = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        if isinstance(commit, wire.TxnOffsetCommitRequest):
            producer = commit.producer_id, commit.producer_epoch
        self._number += 1
        number = self._number
        for tp in offsets:
            self._offsets.begin_write(commit.group_id, tp, in_transaction=in_transaction)
        is_answered = False

        def answer(code: ErrorCode) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                self._out.reply(to, codes | dict.fromkeys(offsets, COMMIT_ERRORS[code]))

        def done(code: ErrorCode) -> None:
            for tp, offset in offsets.items():
                self._offsets.end_write(commit.group_id, tp, in_transaction=in_transaction)
                if code is not ErrorCode.NONE:
                    continue
                if in_transaction:
                    self._offsets.add_pending(producer[0], commit.group_id, tp, offset, number)
                else:
                    self._offsets.commit(commit.group_id, tp, offset, number)
            answer(code)
            self._stats.committed_offsets += len(offsets) if code is ErrorCode.NONE else 0
            if code is not ErrorCode.NONE:
                self._drop_if_void(group)
            elif not in_transaction:
                self._group_of_offsets(commit.group_id)

        self._out.append(
            [records.encode_offset(commit.group_id, tp, each) for tp, each in offsets.items()],
            done,
            answer,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )

    def _committed(
        self, commit: CommitRequest, accepted: Mapping[TopicPartition, Any]
    ) -> dict[TopicPartition, CommittedOffset]:
        topic_ids, expire_ms = {}, NO_EXPIRY
        if isinstance(commit, wire.OffsetCommitRequest):  # without topic ids in a transaction
            topic_ids = {topic.name: topic.topic_id for topic in commit.topics}
            if commit.retention_time_ms > NO_RETENTION:  # up to the last that a record has room for
                expire_ms = min(self._now_ms + commit.retention_time_ms, MAX_LONG)
        return {
            tp: CommittedOffset(
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata or "",
                self._now_ms,
                expire_ms,
                topic_ids.get(tp.topic, ZERO_UUID),
            )
            for tp, each in accepted.items()
        }

    def _check_metadata(self, metadata: str | None) -> ErrorCode:
        # The key says bytes, and Kafka counts units of UTF-16, as Java's strings do.
        size = len((metadata or "").encode("utf-16-le")) // 2
        is_too_long = size > self._config.offset_metadata_max_bytes
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if is_too_long else ErrorCode.NONE

    def _check_commit(
        self, group: ClassicGroup | None, commit: CommitRequest, version: int
    ) -> ErrorCode:
        """The error if the sender may not commit. A member of this generation may, and any client
        if there are no members (W-112). A transaction has no generation in its older versions; its
        producer's epoch fences it (W-158)."""
        in_transaction = isinstance(commit, wire.TxnOffsetCommitRequest)
        if isinstance(commit, wire.TxnOffsetCommitRequest):
            generation = commit.generation_id
        else:
            generation = commit.generation_id_or_member_epoch
        if group is None:
            if generation <= NO_GENERATION:
                return ErrorCode.NONE
            knows_absence = not in_transaction and version >= COMMIT_NOT_FOUND
            return ErrorCode.GROUP_ID_NOT_FOUND if knows_absence else ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation <= NO_GENERATION and group.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if is_no_member(generation, commit.member_id, commit.group_instance_id):
            if not in_transaction and group.state is not GroupState.EMPTY:
                return ErrorCode.UNKNOWN_MEMBER_ID
        else:
            code = group.check_generation(commit.member_id, commit.group_instance_id, generation)
            if code is not ErrorCode.NONE:
                return code
        if not in_transaction and group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # -- fetch and delete ----------------------------------------------------------------------

    def _fetch(self, to: Hashable, request: ClientRequest) -> None:
        """Answer for every partition of the one group that is asked for, or all that have an offset
        (W-113)."""
        fetch: wire.OffsetFetchRequest = request.message
        (group,) = fetch.groups
        kind = wire.OffsetFetchResponse

        def offset_of(tp: TopicPartition) -> wire.OffsetFetchResponse.OffsetFetchResponsePartitions:
            known = self._offsets.get(group.group_id, tp)
            if fetch.require_stable and self._offsets.is_unstable(group.group_id, tp):
                return no_offset(tp.partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if known is None:
                return no_offset(tp.partition)
            return kind.OffsetFetchResponsePartitions(
                tp.partition, known.offset, known.leader_epoch, known.metadata, ErrorCode.NONE
            )

        if group.topics is None:
            every = ((tp, offset_of(tp)) for tp in sorted(self._offsets.of(group.group_id)))
            topics = by_topic(
                every, lambda name, parts: kind.OffsetFetchResponseTopics(name, ZERO_UUID, parts)
            )
        else:
            topics = tuple(
                kind.OffsetFetchResponseTopics(
                    name, topic_id, tuple(offset_of(TopicPartition(name, each)) for each in indexes)
                )
                for name, topic_id, indexes in group.topics
            )
        self._out.reply(to, kind.OffsetFetchResponseGroup(group.group_id, topics, ErrorCode.NONE))

    def _delete_offsets(self, to: Hashable, request: ClientRequest) -> None:
        delete: wire.OffsetDeleteRequest = request.message
        group = self._groups.get(delete.group_id)
        if group is None or group.state is GroupState.DEAD:
            self._out.reply(to, ErrorCode.GROUP_ID_NOT_FOUND)
            return
        has_members = group.state is not GroupState.EMPTY
        if has_members and group.protocol_type != CONSUMER_PROTOCOL:
            self._out.reply(to, ErrorCode.NON_EMPTY_GROUP)
            return
        codes: Codes = {
            tp: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if has_members and _reads(group, tp.topic)
            else ErrorCode.NONE
            for tp in partitions_of(delete.topics)
        }
        deleted = [
            (group.group_id, tp)
            for tp, code in codes.items()
            if code is ErrorCode.NONE and self._offsets.get(group.group_id, tp) is not None
        ]

        def answer(code: ErrorCode) -> None:
            self._out.reply(to, codes | {tp: GROUP_ERRORS[code] for _, tp in deleted})

        self._delete(deleted, [], answer)

    def _forget_topics(self, to: Hashable, request: ClientRequest) -> None:
        """Delete offsets of topics. Those not committed yet go too, since they would count for the
        next topic of the name."""
        deleted = [
            (group_id, tp)
            for group_id in self._offsets.groups()
            for tp in self._offsets.all_of(group_id)
            if tp.topic in request.message.topics
        ]

        def answer(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                logger.warning("offsets of deleted topics stay until they expire: %s", code.name)
            self._out.reply(to, code)

        self._delete(deleted, [], answer)

    def _delete(
        self,
        offsets: Sequence[tuple[str, TopicPartition]],
        groups: Sequence[ClassicGroup],
        answer: OnDone,
    ) -> None:
        """Delete offsets, then whole groups, which are Dead already.

        ``answer`` is called once: with the first error, or when it takes long.
        """
        self._number += 1
        number = self._number
        deleted: list[tuple[str, TopicPartition] | ClassicGroup] = [*offsets, *groups]
        if not deleted:
            answer(ErrorCode.NONE)
            return
        starts = range(0, len(deleted), MAX_RECORDS_OF_AN_APPEND)
        pieces = [deleted[at : at + MAX_RECORDS_OF_AN_APPEND] for at in starts]
        waiting = [answer]  # until it is answered
        codes: list[ErrorCode] = []

        def answer_once(code: ErrorCode) -> None:
            if waiting:
                waiting.pop()(code)

        def done(piece: list[tuple[str, TopicPartition] | ClassicGroup], code: ErrorCode) -> None:
            for each in piece:
                if not isinstance(each, ClassicGroup):
                    if code is ErrorCode.NONE:
                        self._offset_deleted(*each, number)
                elif code is ErrorCode.NONE:
                    self._group_deleted(each)
                else:
                    self._group_kept(each)
            codes.append(code)
            if len(codes) == len(pieces):
                answer_once(next((each for each in codes if each is not ErrorCode.NONE), code))

        for piece in pieces:
            tombstones = [
                records.encode_group_tombstone(each.group_id)
                if isinstance(each, ClassicGroup)
                else records.encode_offset_tombstone(*each)
                for each in piece
            ]
            self._out.append(tombstones, partial(done, piece), answer_once)

    def _offset_deleted(self, group_id: str, tp: TopicPartition, number: int) -> None:
        self._offsets.delete(group_id, tp, number)
        group = self._groups.get(group_id)
        if group is not None:
            self._drop_if_void(group)

    def _group_deleted(self, group: ClassicGroup) -> None:
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
            if self._offsets.has(group.group_id):
                self._group_of_offsets(group.group_id)  # a transaction has committed it since

    def _group_kept(self, group: ClassicGroup) -> None:
        """Keep a group whose tombstone was not written."""
        kept = ClassicGroup(group.group_id)
        kept.generation, kept.protocol_type = group.generation, group.protocol_type
        kept.state_since_ms = self._now_ms
        self._groups[group.group_id] = kept

    # -- groups --------------------------------------------------------------------------------

    def _describe(self, to: Hashable, request: ClientRequest) -> None:
        """An unknown group is Dead, for those who do not know that a group may be missing. While
        members join, metadata is empty and the assignment is that of the generation before."""
        (group_id,) = request.message.groups
        kind = wire.DescribeGroupsResponse
        group = self._groups.get(group_id)
        if group is None:
            code, reason = ErrorCode.NONE, None
            if request.version >= DESCRIBE_NOT_FOUND:
                code, reason = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
            dead = kind.DescribedGroup(code, reason, group_id, GroupState.DEAD.value)
            self._out.reply(to, dead)
            return
        name = group.protocol_name if group.state is GroupState.STABLE else None
        members = tuple(
            kind.DescribedGroupMember(
                member.member_id,
                member.instance_id,
                member.terms.client_id,
                member.terms.client_host,
                member.metadata(name),
                member.assignment,
            )
            for member in group.members.values()
        )
        state, protocol_type = group.state.value, group.protocol_type or ""
        self._out.reply(
            to, kind.DescribedGroup(0, None, group_id, state, protocol_type, name or "", members)
        )

    def _list(self, to: Hashable, request: ClientRequest) -> None:
        kind = wire.ListGroupsResponse.ListedGroup
        groups = [
            kind(group.group_id, group.protocol_type or "", group.state.value, CLASSIC)
            for group in self._groups.values()
        ]
        self._out.reply(to, groups)

    def _delete_group(self, to: Hashable, request: ClientRequest) -> None:
        (group_id,) = request.message.groups_names
        group = self._groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            self._out.reply(to, ErrorCode.GROUP_ID_NOT_FOUND)
        elif group.state is not GroupState.EMPTY:
            self._out.reply(to, ErrorCode.NON_EMPTY_GROUP)
        else:
            group.become(GroupState.DEAD, self._now_ms)
            offsets = [(group.group_id, tp) for tp in self._offsets.all_of(group.group_id)]

            def answer(code: ErrorCode) -> None:
                self._out.reply(to, GROUP_ERRORS[code])

            self._delete(offsets, [group], answer)

    # -- expiry --------------------------------------------------------------------------------

    def _expire(self) -> None:
        """Delete offsets that have expired, and empty groups without offsets (W-115)."""
        offsets: list[tuple[str, TopicPartition]] = []
        groups = []
        for group in list(self._groups.values()):
            if group.state is GroupState.DEAD:
                continue
            known = self._offsets.of(group.group_id)
            expired = [tp for tp, offset in known.items() if self._is_expired(group, tp, offset)]
            offsets += [(group.group_id, tp) for tp in expired]
            if (
                group.state is GroupState.EMPTY
                and not group.pending_members
                and len(expired) == len(known)
                and not self._offsets.expects(group.group_id)
            ):
                group.become(GroupState.DEAD, self._now_ms)
                groups.append(group)
        self._stats.expired_offsets += len(offsets)
        self._delete(offsets, groups, lambda code: None)
        self._out.start_timer(ExpiryTimer(), self._config.offsets_retention_check_interval_ms)

    def _is_expired(self, group: ClassicGroup, tp: TopicPartition, offset: CommittedOffset) -> bool:
        """Whether an offset has expired. Its time runs from when the group became empty. In a group
        that never had members, and for a topic that members no longer read, it runs from the
        commit."""
        group_id = group.group_id
        if self._offsets.is_unstable(group_id, tp) or self._offsets.is_in_flight(group_id, tp):
            return False
        since_ms = offset.commit_timestamp
        if group.state is GroupState.EMPTY:
            if group.protocol_type is not None and group.state_since_ms is not None:
                since_ms = max(since_ms, group.state_since_ms)
        elif group.state is not GroupState.STABLE or _reads(group, tp.topic):
            return False
        if offset.expire_timestamp != NO_EXPIRY:
            return self._now_ms >= offset.expire_timestamp
        return self._now_ms - since_ms >= self._config.offsets_retention_minutes * MS_PER_MINUTE


def _reads(group: ClassicGroup, topic: str) -> bool:
    """Whether members may read a topic. Members whose topics are not known may read any."""
    return group.subscribed_topics is None or topic in group.subscribed_topics


def no_offset(
    partition: int, code: ErrorCode = ErrorCode.NONE
) -> wire.OffsetFetchResponse.OffsetFetchResponsePartitions:
    """The answer for a partition of which none is committed, or none is shown."""
    return wire.OffsetFetchResponse.OffsetFetchResponsePartitions(partition, -1, -1, "", code)
