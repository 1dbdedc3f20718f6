"""Requests to a shard of transactions and its answers, for all versions of the wire protocol."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from replication.coordinators.transactions.state import TransactionMetadata, TransactionVersion


class InitProducerId(NamedTuple):
    """``producer_id`` and ``producer_epoch`` are those that the client has already, or −1."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class AddPartitions(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    version: TransactionVersion = TransactionVersion.TV_0


class VerifyPartitions(NamedTuple):
    """Asks whether partitions are in the ongoing transaction. Changes nothing."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    version: TransactionVersion = TransactionVersion.TV_0


class DescribeTransaction(NamedTuple):
    transactional_id: str


class ListTransactions(NamedTuple):
    """All of the shard."""


TransactionRequest: TypeAlias = (
    InitProducerId
    | AddPartitions
    | VerifyPartitions
    | EndTransaction
    | DescribeTransaction
    | ListTransactions
)


class Answer(NamedTuple):
    """Of ``InitProducerId``, ``AddPartitions`` and ``EndTransaction``."""

    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class Verified(NamedTuple):
    """Of ``VerifyPartitions``. An error of the whole stands for each partition."""

    error_code: ErrorCode
    missing: frozenset[TopicPartition] = frozenset()  # not in the transaction


class Described(NamedTuple):
    """Of ``DescribeTransaction``."""

    error_code: ErrorCode
    transaction: TransactionMetadata | None = None


class Listed(NamedTuple):
    """Of ``ListTransactions``."""

    error_code: ErrorCode
    transactions: tuple[TransactionMetadata, ...] = ()
