"""Operations that a client may do, where it asks: all, since there are no ACLs.

Each operation is a bit, by Kafka's number of it (``AclOperation``).
"""

from __future__ import annotations

from typing import Final

(
    READ,
    WRITE,
    CREATE,
    DELETE,
    ALTER,
    DESCRIBE,
    CLUSTER_ACTION,
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    IDEMPOTENT_WRITE,
) = ALL = tuple(1 << number for number in range(3, 13))

NOT_ASKED: Final = -(2**31)
OF_TOPICS: Final = sum(ALL) - CLUSTER_ACTION - IDEMPOTENT_WRITE
OF_GROUPS: Final = READ | DELETE | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS
OF_CLUSTERS: Final = sum(ALL) - READ - WRITE - DELETE
