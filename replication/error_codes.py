"""The one table of exception <-> Kafka wire code, as in Kafka's ``Errors``."""

from __future__ import annotations

from enum import IntEnum

from checkpoints.errors import CheckpointError
from logstore import errors


class ErrorCode(IntEnum):
    """Codes that storage can answer with; names as in Kafka's protocol."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTION_COORDINATOR_FENCED = 52
    KAFKA_STORAGE_ERROR = 56
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    INCONSISTENT_TOPIC_ID = 103


_CODES: dict[type[Exception], ErrorCode] = {
    errors.CorruptDataError: ErrorCode.CORRUPT_MESSAGE,
    errors.StorageFailedError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.LogDirLockedError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.CorruptMessageError: ErrorCode.CORRUPT_MESSAGE,
    errors.InvalidRecordError: ErrorCode.INVALID_RECORD,
    errors.InvalidTimestampError: ErrorCode.INVALID_TIMESTAMP,
    errors.RecordTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    errors.RecordListTooLargeError: ErrorCode.RECORD_LIST_TOO_LARGE,
    errors.UnsupportedCompressionTypeError: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    errors.UnsupportedForMessageFormatError: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    errors.OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.InvalidProducerEpochError: ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.InvalidTxnStateError: ErrorCode.INVALID_TXN_STATE,
    errors.TransactionCoordinatorFencedError: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    errors.PolicyViolationError: ErrorCode.POLICY_VIOLATION,
    errors.InconsistentTopicIdError: ErrorCode.INCONSISTENT_TOPIC_ID,
    errors.UnknownTopicOrPartitionError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.TopicExistsError: ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.InvalidTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    CheckpointError: ErrorCode.KAFKA_STORAGE_ERROR,
}


def error_code_of(error: BaseException) -> ErrorCode:
    """The code a client sees for ``error``; internal conditions have none and give −1 (F-314)."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return ErrorCode.UNKNOWN_SERVER_ERROR
