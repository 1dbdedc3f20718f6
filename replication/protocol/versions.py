"""The APIs and versions that a broker serves, and those that it says it serves."""

from __future__ import annotations

from collections.abc import Mapping

from replication.protocol import schema
from replication.protocol.api_keys import ApiKey
from replication.protocol.schema import VersionRange

NOT_SERVED = (
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
)
"""Our clients ask others for these."""

FOR_BROKERS = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
        ApiKey.ENVELOPE,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    }
)
"""Served on the listener of brokers alone. On others there are no such APIs (X-27)."""

SERVED_TO_BROKERS: Mapping[ApiKey, VersionRange] = {
    **{key: api.versions for key, api in schema.APIS.items() if key not in NOT_SERVED},
    ApiKey.SASL_HANDSHAKE: VersionRange(1, 1),
    ApiKey.INIT_PRODUCER_ID: VersionRange(0, 5),
}
"""What is served on the listener of brokers: all that clients get, and what is between brokers."""

SERVED: Mapping[ApiKey, VersionRange] = {
    key: versions for key, versions in SERVED_TO_BROKERS.items() if key not in FOR_BROKERS
}
"""What is served to clients. Requests outside of the table of their listener are not answered: the
connection is closed (W-7)."""

FEATURES: Mapping[str, VersionRange] = {"transaction.version": VersionRange(0, 2)}
"""Features of a cluster that clients ask for, each finalized at its last level. Level 2 of
transactions needs Produce 12, EndTxn 5, InitProducerId 5 and TxnOffsetCommit 5 (W-15)."""

ADVERTISED_TO_BROKERS: Mapping[ApiKey, VersionRange] = {
    **SERVED_TO_BROKERS,
    ApiKey.PRODUCE: VersionRange(0, SERVED[ApiKey.PRODUCE].last),
    ApiKey.SASL_HANDSHAKE: VersionRange(0, SERVED[ApiKey.SASL_HANDSHAKE].last),
}
"""The answer to ApiVersions. Two begin at 0, which is not served. Without that, librdkafka
sends uncompressed (W-13), and its versions before 2.1 do not log in."""

ADVERTISED: Mapping[ApiKey, VersionRange] = {
    key: versions for key, versions in ADVERTISED_TO_BROKERS.items() if key not in FOR_BROKERS
}
