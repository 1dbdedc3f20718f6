"""Records of ``__transaction_state`` and what they mean (W-170)."""

from __future__ import annotations

from logstore.common.errors import InvalidRecordError
from replication.coordinators.effects import CoordinatorRecord
from replication.coordinators.transactions.state import (
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
)
from replication.protocol import coordinator_records
from replication.protocol import messages as wire
from replication.protocol.partitions import by_topic, partitions_of


def decode(key: bytes, value: bytes | None) -> tuple[str, TransactionMetadata | None] | None:
    """The transactional id and what is known of it, None if it is deleted; None for a record of a
    kind that is not known here.

    Raises:
        LogstoreError: it cannot be read.
    """
    found = coordinator_records.decode_key(coordinator_records.TRANSACTION_STATE, key)
    if found is None:
        return None
    if value is None:
        return found.transactional_id, None
    metadata = _metadata(found.transactional_id, coordinator_records.decode_value(found, value))
    return found.transactional_id, metadata


def _metadata(transactional_id: str, found: wire.TransactionLogValue) -> TransactionMetadata:
    try:
        state = TransactionState(found.transaction_status)
        version = TransactionVersion(found.client_transaction_version)
    except ValueError as error:
        raise InvalidRecordError(str(error)) from error
    if state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise InvalidRecordError(f"state {state.name} is never written")
    return TransactionMetadata(
        transactional_id,
        found.producer_id,
        found.transaction_timeout_ms,
        found.transaction_last_update_timestamp_ms,
        found.producer_epoch,
        state,
        frozenset(partitions_of(found.transaction_partitions)),
        found.transaction_start_timestamp_ms,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        version=version,
    )


def encode(metadata: TransactionMetadata) -> CoordinatorRecord:
    tps = ((tp, tp.partition) for tp in sorted(metadata.partitions))
    topics = by_topic(tps, wire.TransactionLogValue.PartitionsSchema)
    value = wire.TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else topics,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.version,
    )
    key = _key(metadata.transactional_id)
    return CoordinatorRecord(key, coordinator_records.encode_value(value))


def _key(transactional_id: str) -> bytes:
    return coordinator_records.encode_key(wire.TransactionLogKey(transactional_id))


def tombstone(transactional_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(_key(transactional_id), None)
