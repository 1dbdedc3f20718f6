"""Operations that a client may do, where it asks: all, since there are no ACLs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class AclOperation(IntEnum):
    """Numbers are Kafka's; each is a bit of a field of authorized operations."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _field(operations: Iterable[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)


NOT_ASKED: Final = -(2**31)
OF_TOPICS: Final = _field(
    set(AclOperation) - {AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE}
)
OF_GROUPS: Final = _field(
    (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    )
)
OF_CLUSTERS: Final = _field(
    set(AclOperation) - {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE}
)
