"""The one table of exception <-> Kafka wire code, as in Kafka's ``Errors``."""

from __future__ import annotations

from enum import IntEnum

from checkpoints.errors import CheckpointError
from logstore.common import errors


class ErrorCode(IntEnum):
    """Codes that a broker can answer with; names as in Kafka's protocol."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    NETWORK_EXCEPTION = 13
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTION_COORDINATOR_FENCED = 52
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    INVALID_RECORD = 87
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108


_CODES: dict[type[Exception], ErrorCode] = {
    errors.CorruptDataError: ErrorCode.CORRUPT_MESSAGE,
    errors.StorageFailedError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.LogUnavailableError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.ResourceBusyError: ErrorCode.KAFKA_STORAGE_ERROR,  # clients try again
    errors.LogDirLockedError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.LogClosedError: ErrorCode.NOT_LEADER_OR_FOLLOWER,  # its broker stops: ask elsewhere
    errors.LeadershipEndedError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
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
    code = getattr(error, "code", None)  # errors of replication carry theirs
    if isinstance(code, ErrorCode):
        return code
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return ErrorCode.UNKNOWN_SERVER_ERROR
