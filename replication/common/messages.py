"""Requests and responses as plain values, with the fields of Kafka's protocol and its error codes.

Topic and partition are one field, ``tp``; the nesting by topic is a matter of the wire. ``records``
are batches as they stand in a segment. −1 is "unknown" or "none" wherever Kafka has it so.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from checkpoints.types import TopicPartition
from logstore.common.types import Buffer
from logstore.format.index_entry import AbortedTxn
from logstore.segments.producer_state import TransactionCheck
from logstore.storage import FileSlice
from replication.common.error_codes import ErrorCode
from replication.common.state import (
    NO_LEADER,
    UNKNOWN_EPOCH,
    LiveBroker,
    PartitionRegistration,
    RecoveryState,
    TopicAssignment,
)

CONSUMER = -1  # replica id of a fetch that is not a broker's


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class EpochEndOffset(NamedTuple):
    """The end of ``epoch`` in a log; (−1, −1) when it is not known (F-208)."""

    epoch: int = -1
    end_offset: int = -1


# -- produce ------------------------------------------------------------------------------------


class ProducePartition(NamedTuple):
    """``leader_epoch``: what was decided in it is not to be written in another one."""

    tp: TopicPartition
    records: Buffer
    leader_epoch: int = UNKNOWN_EPOCH


class TransactionSupport(IntEnum):
    """The protocol of a transactional producer, by the version of its request (Kafka's
    ``TransactionSupportedOperation``)."""

    DEFAULT_ERROR = 0  # up to 10
    GENERIC_ERROR = 1  # 11: TRANSACTION_ABORTABLE
    ADD_PARTITION = 2  # from 12 on: the leader adds the partition to the transaction (W-35)


class ProduceRequest(NamedTuple):
    acks: int  # 0, 1 or −1 (all in-sync replicas)
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]
    transactional_id: str | None = None
    transaction_support: TransactionSupport = TransactionSupport.DEFAULT_ERROR


class ProducePartitionResponse(NamedTuple):
    tp: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str = ""
    record_errors: tuple[tuple[int, str], ...] = ()
    current_leader: tuple[int, int] = (NO_LEADER, -1)  # (id, leader epoch), with NOT_LEADER


class ProduceResponse(NamedTuple):
    partitions: tuple[ProducePartitionResponse, ...]


# -- fetch --------------------------------------------------------------------------------------

# Fetch sessions (KIP-227). A full request (epoch 0) lists all partitions and asks for a session;
# those that follow (1, 2, …) say what is different; a last one (−1) has, and leaves, none.
NO_SESSION = 0
INITIAL_SESSION_EPOCH = 0
FINAL_SESSION_EPOCH = -1
MAX_SESSION_EPOCH = 2**31 - 1


def next_session_epoch(epoch: int) -> int:
    return 1 if epoch == MAX_SESSION_EPOCH else epoch + 1


UNRESOLVED = "?"  # begins a name that no topic can have


def unresolved_topic(topic_id: uuid.UUID) -> str:
    """A substitute for the name of a topic while only its id is known.

    So the topic has a place in a session, and is read as soon as the broker knows it.
    """
    return f"{UNRESOLVED}{topic_id}"


class FetchPartition(NamedTuple):
    tp: TopicPartition
    fetch_offset: int
    partition_max_bytes: int = 1 << 20
    current_leader_epoch: int = UNKNOWN_EPOCH
    last_fetched_epoch: int = UNKNOWN_EPOCH
    log_start_offset: int = -1  # of the follower
    topic_id: uuid.UUID | None = None


class FetchRequest(NamedTuple):
    partitions: tuple[FetchPartition, ...]
    replica_id: int = CONSUMER
    replica_epoch: int = UNKNOWN_EPOCH  # broker epoch of the follower
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    rack_id: str = ""
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_SESSION_EPOCH
    forgotten: tuple[tuple[TopicPartition, uuid.UUID | None], ...] = ()  # no longer in the session
    takes_slices: bool = False  # records may be a ``FileSlice``
    names_by_id: bool | None = None  # a client's whole session does, or does not; None: no matter
    # Of every topic of the session, by id, for whoever reads the answer; None: of ``partitions``.
    topic_names: Mapping[uuid.UUID | None, str] | None = None


class FetchPartitionResponse(NamedTuple):
    tp: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Buffer | FileSlice = b""
    diverging_epoch: EpochEndOffset | None = None
    aborted_transactions: tuple[AbortedTxn, ...] = ()
    preferred_read_replica: int = -1
    current_leader: tuple[int, int] = (NO_LEADER, -1)
    topic_id: uuid.UUID | None = None  # as it was asked for

    @property
    def batches(self) -> Buffer:
        """The records, for a request without slices."""
        records = self.records
        assert not isinstance(records, FileSlice)
        return records


class FetchResponse(NamedTuple):
    """In a session, ``partitions`` are those with changes; ``NO_SESSION``: it has ended."""

    partitions: tuple[FetchPartitionResponse, ...]
    error_code: ErrorCode = ErrorCode.NONE
    session_id: int = NO_SESSION
    throttle_time_ms: int = 0  # for a quota: until then the sender is to ask nothing


# -- offsets ------------------------------------------------------------------------------------


class OffsetForLeaderPartition(NamedTuple):
    tp: TopicPartition
    leader_epoch: int  # whose end is asked for
    current_leader_epoch: int = UNKNOWN_EPOCH
    topic_id: uuid.UUID | None = None  # a later topic of the same name is not meant


class OffsetForLeaderEpochRequest(NamedTuple):
    partitions: tuple[OffsetForLeaderPartition, ...]
    replica_id: int = CONSUMER


class OffsetForLeaderPartitionResponse(NamedTuple):
    tp: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderEpochResponse(NamedTuple):
    partitions: tuple[OffsetForLeaderPartitionResponse, ...]


class ListOffsetsPartition(NamedTuple):
    tp: TopicPartition
    timestamp: int  # ms; −1 latest, −2 earliest, −3 of the largest timestamp
    current_leader_epoch: int = UNKNOWN_EPOCH
    topic_id: uuid.UUID | None = None


class ListOffsetsRequest(NamedTuple):
    partitions: tuple[ListOffsetsPartition, ...]
    replica_id: int = CONSUMER
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED


class ListOffsetsPartitionResponse(NamedTuple):
    tp: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


class ListOffsetsResponse(NamedTuple):
    partitions: tuple[ListOffsetsPartitionResponse, ...]


class DeleteRecordsRequest(NamedTuple):
    partitions: tuple[tuple[TopicPartition, int], ...]  # delete below; −1: the high watermark
    timeout_ms: int


class DeleteRecordsPartitionResponse(NamedTuple):
    tp: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    low_watermark: int = -1


class DeleteRecordsResponse(NamedTuple):
    partitions: tuple[DeleteRecordsPartitionResponse, ...]


# -- transactions: between a coordinator and the leaders of partitions ---------------------------


class AddPartitionsToTxnRequest(NamedTuple):
    """From the leader of partitions to the coordinator of a transaction (W-159, W-164).

    ``verify_only``: are they in the ongoing transaction? Otherwise they are added to it.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = True


class AddPartitionsToTxnResponse(NamedTuple):
    """One error for each partition, in their order."""

    partitions: tuple[tuple[TopicPartition, ErrorCode], ...]


class TxnMarker(NamedTuple):
    """The end of one transaction, for some of its partitions (W-155)."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: int = 0

    @property
    def check(self) -> TransactionCheck:
        """From version 2 on the epoch of a marker is above that of its transaction."""
        newer = self.transaction_version >= 2
        return TransactionCheck.NEWER_EPOCH if newer else TransactionCheck.NONE


class WriteTxnMarkersRequest(NamedTuple):
    """From a transaction's coordinator to the leader of partitions."""

    markers: tuple[TxnMarker, ...]


class WriteTxnMarkersResponse(NamedTuple):
    """For each marker the errors of its partitions."""

    markers: tuple[tuple[tuple[TopicPartition, ErrorCode], ...], ...]


# -- leader to controller -----------------------------------------------------------------------


class AlterPartitionItem(NamedTuple):
    """A leader's proposal for one partition (R-34).

    ``topic_id`` is that of the leader's log: a later topic of the same name is not meant.
    """

    tp: TopicPartition
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]  # (broker id, its broker epoch or −1)
    recovery_state: RecoveryState = RecoveryState.RECOVERED
    topic_id: uuid.UUID | None = None


class AlterPartitionRequest(NamedTuple):
    broker_id: int
    broker_epoch: int
    partitions: tuple[AlterPartitionItem, ...]


class AlterPartitionResult(NamedTuple):
    tp: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1
    recovery_state: RecoveryState = RecoveryState.RECOVERED
    topic_id: uuid.UUID | None = None  # of the proposal that is answered
    min_isr: int = 0  # what the controller went by: eligible replicas stand on it (KIP-966)


class AlterPartitionResponse(NamedTuple):
    error_code: ErrorCode  # of the whole: STALE_BROKER_EPOCH, NOT_CONTROLLER, …
    partitions: tuple[AlterPartitionResult, ...] = ()


class ControlledShutdownRequest(NamedTuple):
    broker_id: int
    broker_epoch: int


class ControlledShutdownResponse(NamedTuple):
    """``remaining`` partitions are still led by the broker: ask again after a moment (R-65)."""

    error_code: ErrorCode
    remaining: tuple[TopicPartition, ...] = ()


class AllocateProducerIdsRequest(NamedTuple):
    """A block of producer ids for a broker (KIP-730). A copy takes another block."""

    broker_id: int
    broker_epoch: int


class AllocateProducerIdsResponse(NamedTuple):
    error_code: ErrorCode
    first_id: int = 0
    size: int = 0  # of the block


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class ElectLeadersRequest(NamedTuple):
    election_type: ElectionType
    partitions: tuple[TopicPartition, ...] | None  # None: all


class ElectLeadersResponse(NamedTuple):
    error_code: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


class AlterPartitionReassignmentsRequest(NamedTuple):
    """Move partitions to other replicas; None gives up the move that is under way (R-62)."""

    targets: tuple[tuple[TopicPartition, tuple[int, ...] | None], ...]
    may_change_factor: bool = True


class AlterPartitionReassignmentsResponse(NamedTuple):
    """The error of each partition, once its move has begun."""

    error_code: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


class ListPartitionReassignmentsRequest(NamedTuple):
    partitions: tuple[TopicPartition, ...] | None = None  # None: all


class OngoingReassignment(NamedTuple):
    """``replicas`` are all that there are now, those that come and those that go included."""

    tp: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ListPartitionReassignmentsResponse(NamedTuple):
    error_code: ErrorCode
    partitions: tuple[OngoingReassignment, ...] = ()


BROKER_DEFAULT = -1  # partitions and factor of a new topic: what the controller is configured with


class CreateTopicRequest(NamedTuple):
    """``assignment`` lists the replicas of each partition; without it the controller spreads."""

    topic: str
    partitions: int = 1
    replication_factor: int = 1
    assignment: tuple[tuple[int, ...], ...] | None = None
    config: Mapping[str, str] = {}
    validate_only: bool = False


class DeleteTopicRequest(NamedTuple):
    """Either by name or by id (KIP-516). A late copy of a request by name may delete the next topic
    of that name; one by id deletes no other topic."""

    topic: str | None = None
    topic_id: uuid.UUID | None = None


class CreatePartitionsRequest(NamedTuple):
    """More partitions for a topic.

    ``assignment`` lists the replicas of each new one; without it the controller spreads.
    """

    topic: str
    total_count: int  # in the end, with those that there are
    assignment: tuple[tuple[int, ...], ...] | None = None
    validate_only: bool = False


class AlterConfigOp(IntEnum):
    SET = 0
    DELETE = 1  # back to the default
    APPEND = 2  # to a list
    SUBTRACT = 3  # from a list


class AlterableConfig(NamedTuple):
    name: str
    value: str | None = None  # None with DELETE only
    operation: AlterConfigOp = AlterConfigOp.SET


class IncrementalAlterConfigsRequest(NamedTuple):
    """The keys of one topic that change (KIP-339); all of them, or none."""

    topic: str
    configs: tuple[AlterableConfig, ...]
    validate_only: bool = False


class TopicResponse(NamedTuple):
    error_code: ErrorCode
    error_message: str = ""


# -- controller to broker -----------------------------------------------------------------------
# ``sequence`` orders the requests of a controller to one incarnation of a broker: a copy that comes
# late must not undo a newer one. Kafka has the order of a connection for that. 0 is not checked.


class PartitionChange(NamedTuple):
    """One partition of a LeaderAndIsr or UpdateMetadata request.

    ``config``: None leaves what is stored with the log as it is.
    ``partition_count``: how many the topic has, also those without a state so far; 0: not said.
    """

    tp: TopicPartition
    registration: PartitionRegistration
    topic_id: uuid.UUID | None = None
    config: Mapping[str, str] | None = {}
    partition_count: int = 0


class LeaderAndIsrRequest(NamedTuple):
    """Roles of the receiver's replicas.

    ``is_full``: ``partitions`` are the first of all roles that it has. A log of anything else may
    have been moved away, or deleted, without the receiver's knowledge (Kafka's type FULL). What the
    tree knows of it is in ``topics``, all topics by name, and ``deleted``, ids of earlier ones. Of
    the topics only ids and replicas count.

    ``live_brokers`` is complete, or empty: a real Kafka's controller names none here.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int  # of the receiver: meant for this incarnation only
    partitions: tuple[PartitionChange, ...]
    live_brokers: tuple[LiveBroker, ...]
    sequence: int = 0
    is_full: bool = False
    topics: Mapping[str, TopicAssignment] = {}
    deleted: frozenset[uuid.UUID] = frozenset()


class LeaderAndIsrResponse(NamedTuple):
    """``log_epochs``: the last leader epochs in logs that are ahead of the order; these replicas
    answer FENCED_LEADER_EPOCH."""

    error_code: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()
    log_epochs: Mapping[TopicPartition, int] = {}


class StopReplicaPartition(NamedTuple):
    tp: TopicPartition
    leader_epoch: int  # −2 for a topic that is being deleted (Kafka's EpochDuringDelete)
    delete: bool
    topic_id: uuid.UUID | None = None  # a later topic of the same name is not meant


class StopReplicaRequest(NamedTuple):
    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[StopReplicaPartition, ...]
    sequence: int = 0


class StopReplicaResponse(NamedTuple):
    error_code: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


class UpdateMetadataRequest(NamedTuple):
    """``live_brokers`` is complete; ``partitions`` are those that changed (leader −2: deleted).

    ``is_full``: they are all that there are; a topic that is not among them is gone.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionChange, ...]
    live_brokers: tuple[LiveBroker, ...]
    shutting_down: tuple[int, ...] = ()  # in controlled shutdown: may not join an ISR
    sequence: int = 0
    is_full: bool = False


class UpdateMetadataResponse(NamedTuple):
    error_code: ErrorCode


ControlRequest: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
"""The requests of a controller to brokers."""


# -- clients ------------------------------------------------------------------------------------


class MetadataRequest(NamedTuple):
    topics: tuple[str, ...] | None = None  # None: all
    may_create: bool = False  # missing ones, if the broker is configured so


class TopicPartitionMetadata(NamedTuple):
    tp: TopicPartition
    error_code: ErrorCode
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class MetadataResponse(NamedTuple):
    brokers: tuple[LiveBroker, ...]
    controller_id: int
    partitions: tuple[TopicPartitionMetadata, ...]
    topic_ids: Mapping[str, uuid.UUID | None] = {}
    topic_errors: Mapping[str, ErrorCode] = {}  # of topics without partitions here
    cluster_id: str | None = None


class InitProducerIdRequest(NamedTuple):
    """A request for a unique id, for an idempotent producer without transactions.

    ``above``: an id that is in use; the new one is larger. Who hands out ids may not know of it: a
    topic may come from another cluster.
    """

    above: int = -1


class InitProducerIdResponse(NamedTuple):
    error_code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1
    error_message: str = ""


EPOCH_DURING_DELETE = -2
LEADER_DURING_DELETE = -2

Request: TypeAlias = (
    ProduceRequest
    | FetchRequest
    | OffsetForLeaderEpochRequest
    | ListOffsetsRequest
    | DeleteRecordsRequest
    | AlterPartitionRequest
    | ControlledShutdownRequest
    | AllocateProducerIdsRequest
    | ElectLeadersRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
    | CreateTopicRequest
    | DeleteTopicRequest
    | CreatePartitionsRequest
    | IncrementalAlterConfigsRequest
    | LeaderAndIsrRequest
    | StopReplicaRequest
    | UpdateMetadataRequest
    | MetadataRequest
    | InitProducerIdRequest
    | AddPartitionsToTxnRequest
    | WriteTxnMarkersRequest
)
Response: TypeAlias = (
    ProduceResponse
    | FetchResponse
    | OffsetForLeaderEpochResponse
    | ListOffsetsResponse
    | DeleteRecordsResponse
    | AlterPartitionResponse
    | ControlledShutdownResponse
    | AllocateProducerIdsResponse
    | ElectLeadersResponse
    | AlterPartitionReassignmentsResponse
    | ListPartitionReassignmentsResponse
    | TopicResponse
    | LeaderAndIsrResponse
    | StopReplicaResponse
    | UpdateMetadataResponse
    | MetadataResponse
    | InitProducerIdResponse
    | AddPartitionsToTxnResponse
    | WriteTxnMarkersResponse
)
