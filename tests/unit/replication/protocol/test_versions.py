"""What is served, and what is said about it."""

from __future__ import annotations

import re
from pathlib import Path

from replication.protocol import (
    ADVERTISED,
    ADVERTISED_TO_BROKERS,
    FEATURES,
    SERVED,
    SERVED_TO_BROKERS,
    ApiKey,
    VersionRange,
    schema,
)
from tests.support.cases import for_each

PAGE = Path(__file__).resolve().parents[4] / "docs" / "protocol.md"
ROW = re.compile(r"\| (\d+) \| (\w+) \| (\S+) \| (\S+) \|")


def _text(versions: VersionRange) -> str:
    if versions.first == versions.last:
        return str(versions.first)
    return f"{versions.first}–{versions.last}"


def test_the_page_says_what_is_served():
    assert ROW.findall(PAGE.read_text()) == [
        (str(int(key)), schema.APIS[key].name, _text(served), _text(schema.APIS[key].versions))
        for key, served in sorted(SERVED_TO_BROKERS.items())
    ]


@for_each("key", SERVED_TO_BROKERS)
def test_all_that_is_served_is_in_the_table(key: ApiKey):
    versions, served = schema.APIS[key].versions, SERVED_TO_BROKERS[key]
    assert versions.first <= served.first <= served.last <= versions.last


def test_what_is_advertised_is_served_but_for_early_versions_that_clients_look_for():
    """librdkafka would send uncompressed otherwise (W-13), or in old versions not log in."""
    early = ApiKey.PRODUCE, ApiKey.SASL_HANDSHAKE
    assert {**SERVED, **{key: VersionRange(0, SERVED[key].last) for key in early}} == ADVERTISED


def test_requests_between_brokers_are_not_for_clients():
    """X-27. But for WriteTxnMarkers, with which tools abort a transaction that nobody ends."""
    between = {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
        ApiKey.ENVELOPE,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    }
    for clients, brokers in ((SERVED, SERVED_TO_BROKERS), (ADVERTISED, ADVERTISED_TO_BROKERS)):
        assert brokers.keys() - clients.keys() == between
        assert all(brokers[key] == versions for key, versions in clients.items())


def test_versions_that_a_feature_needs_are_served():
    """Level 2 of transactions (W-15)."""
    assert FEATURES["transaction.version"].last == 2
    needed = {
        ApiKey.PRODUCE: 12,
        ApiKey.END_TXN: 5,
        ApiKey.INIT_PRODUCER_ID: 5,
        ApiKey.TXN_OFFSET_COMMIT: 5,
    }
    assert all(version in SERVED[key] for key, version in needed.items())
