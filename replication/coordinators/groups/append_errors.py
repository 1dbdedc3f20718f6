"""What clients are answered when the log refuses a record of a group (W-114)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from replication.common.error_codes import ErrorCode

_TO_CLIENTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
)

COMMIT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **{code: code for code in ErrorCode},
    **_TO_CLIENTS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}
"""By the error of the append; what is not listed here clients get as it is."""

GROUP_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **{code: code for code in ErrorCode},
    **_TO_CLIENTS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
}
