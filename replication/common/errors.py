"""Errors of replication, one class for each of Kafka's error codes that callers handle.

All carry ``code``; ``error_for`` turns a code from a response back into an exception.
"""

from __future__ import annotations

import uuid
from typing import ClassVar

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, LogstoreError
from replication.common.error_codes import ErrorCode


class ReplicationError(LogstoreError):
    """The base class.

    ``retriable`` says whether the same request may succeed later, as in Kafka.
    """

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False


class _Retriable(ReplicationError):
    retriable = True


class NotLeaderOrFollowerError(_Retriable):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class LeaderNotAvailableError(_Retriable):
    code = ErrorCode.LEADER_NOT_AVAILABLE


class FencedLeaderEpochError(_Retriable):
    code = ErrorCode.FENCED_LEADER_EPOCH


class LogAheadError(FencedLeaderEpochError):
    """A log has records of the epoch in which its broker is to lead, or later ones: another cluster
    wrote them, or one whose tree was lost. The controller has to elect above ``log_epoch``."""

    def __init__(self, reason: str, log_epoch: int = -1) -> None:
        super().__init__(reason)
        self.log_epoch = log_epoch


class UnknownLeaderEpochError(_Retriable):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnknownPartitionError(_Retriable):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class SaslAuthenticationError(ReplicationError):
    """A login failed. To a client the text of a broker says no more than that."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class InvalidRequiredAcksError(ReplicationError):
    code = ErrorCode.INVALID_REQUIRED_ACKS


class NotEnoughReplicasError(_Retriable):
    """acks=all was refused before the append: nothing was written (R-83)."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(_Retriable):
    """Written, but not on enough replicas. It may become committed or not (R-84)."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class RequestTimedOutError(_Retriable):
    """The outcome is unknown (R-85)."""

    code = ErrorCode.REQUEST_TIMED_OUT


class TopicNotReadyError(RequestTimedOutError, TimeoutError):
    """The controller has changed a topic, and the brokers stopped following before all had done so.
    They may still do.

    Attributes:
        done: how many partitions of ``total`` every running broker has taken over.
    """

    def __init__(self, reason: str, done: int = 0, total: int = 0) -> None:
        super().__init__(reason)
        self.done, self.total = done, total


class OffsetNotAvailableError(_Retriable):
    code = ErrorCode.OFFSET_NOT_AVAILABLE


class KafkaStorageError(_Retriable):
    """The log directory of the replica is offline (R-151)."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class StaleControllerEpochError(ReplicationError):
    code = ErrorCode.STALE_CONTROLLER_EPOCH


class StaleBrokerEpochError(ReplicationError):
    code = ErrorCode.STALE_BROKER_EPOCH


class NotControllerError(_Retriable):
    code = ErrorCode.NOT_CONTROLLER


class DuplicateBrokerRegistrationError(ReplicationError):
    """Another process with a live session has this broker's id."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(broker_id)
        self.broker_id = broker_id

    def _text(self) -> str:
        return f"broker {self.broker_id} is registered already, by a process that lives"


class InconsistentClusterIdError(ReplicationError, ConfigError):
    """The coordinator's tree belongs to another cluster than a broker's log directories.

    Nothing was registered or renamed. ``cluster_id`` is that of ``directory`` (or the one that was
    asked for), ``tree_id`` that of the tree. It is None for a tree without one that knows no topic
    of the logs in ``directory``: an empty tree, or another cluster's.
    """

    code = ErrorCode.INCONSISTENT_CLUSTER_ID

    def __init__(
        self, directory: str, cluster_id: str | None, tree_id: str | None, reason: str
    ) -> None:
        super().__init__(directory, cluster_id, tree_id, reason)
        self.directory, self.cluster_id, self.tree_id = directory, cluster_id, tree_id
        self.reason = reason

    def _text(self) -> str:
        return (
            f"{printable(self.directory)}: {printable(self.reason)}. Nothing was changed: give the "
            "broker the coordinator (address, chroot or directory) or the log directories that it "
            "had before, or adopt these (logstore serve --adopt)"
        )


class TopicsWithoutIdsError(ReplicationError):
    """The tree has topics without ids, which Kafka below 2.8 makes: they cannot be replicated
    (X-24)."""

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, *topics: str) -> None:
        super().__init__(*topics)
        self.topics = topics

    def _text(self) -> str:
        named = ", ".join(map(printable, self.topics[:3]))
        more = "" if len(self.topics) <= 3 else f" and {len(self.topics) - 3} more"
        return (
            f"topics without ids: {named}{more}. Set inter.broker.protocol.version of the Kafka "
            "brokers to 2.8 or later first"
        )


class InvalidRequestError(ReplicationError):
    code = ErrorCode.INVALID_REQUEST


class BrokerUnavailableError(_Retriable):
    """No answer from the broker: cut off, stopped or too slow. The outcome is unknown."""

    code = ErrorCode.BROKER_NOT_AVAILABLE


class LogTruncationError(ReplicationError):
    """The leader's log no longer has records that a consumer without a reset policy has read.

    ``position`` is where it would have continued. From ``divergent_offset`` on the log differs from
    what it read; None if no common part is known. ``seek`` continues (KIP-320).
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, tp: TopicPartition, position: int, divergent_offset: int | None) -> None:
        super().__init__(tp, position, divergent_offset)
        self.tp, self.position, self.divergent_offset = tp, position, divergent_offset

    def _text(self) -> str:
        where = "" if self.divergent_offset is None else f" from offset {self.divergent_offset} on"
        return (
            f"{self.tp}: the records before position {self.position} were read, but the log was "
            f"truncated{where}"
        )


class TopicRecreatedError(ReplicationError):
    """The topic of a consumer without a reset policy was deleted, and another has the name now.

    ``position`` was in the log of ``topic_id``. ``seek`` continues in that of ``new_topic_id``.
    """

    code = ErrorCode.INCONSISTENT_TOPIC_ID

    def __init__(
        self, tp: TopicPartition, position: int, topic_id: uuid.UUID, new_topic_id: uuid.UUID
    ) -> None:
        super().__init__(tp, position, topic_id, new_topic_id)
        self.tp, self.position = tp, position
        self.topic_id, self.new_topic_id = topic_id, new_topic_id

    def _text(self) -> str:
        return (
            f"{self.tp}: position {self.position} is of the topic with id {self.topic_id}, which "
            f"was deleted; the name belongs to {self.new_topic_id} now"
        )


_WITH_CLASS: tuple[type[ReplicationError], ...] = (
    *_Retriable.__subclasses__(),
    InvalidRequiredAcksError,
    StaleControllerEpochError,
    StaleBrokerEpochError,
    InvalidRequestError,
)
_CLASSES = {kind.code: kind for kind in _WITH_CLASS}


class ResponseError(ReplicationError):
    """An error code without its own class. ``code`` is set on the instance."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.__dict__["code"] = code
        self.message = message

    def _text(self) -> str:
        name = self.code.name
        return f"{name}: {self.message}" if self.message else name


def error_for(code: ErrorCode, message: str = "") -> ReplicationError:
    """The exception for an error code. ``message`` may begin with its name."""
    message = message.removeprefix(f"{code.name}: ")
    kind = _CLASSES.get(code)
    if kind is None:
        return ResponseError(code, message)
    return kind(f"{code.name}: {message}" if message else code.name)
