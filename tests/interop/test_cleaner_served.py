"""A compacted directory of ours under a real broker: the latest state of each aircraft."""

from __future__ import annotations

import json
from pathlib import Path

import kafka_tools
import pytest
from broker import KafkaBroker
from kafka_tools import CreateTopic, ProduceRecords

from examples.demo.flights import flights
from logstore import LogManager
from logstore.manager import compact_directory

pytestmark = pytest.mark.slow

TOPIC = "aircraft"
CONFIG = {"cleanup.policy": "compact", "segment.bytes": 4 << 20, "segment.ms": 2**62}
BATCH_RECORDS = 500
RECORDS = 60_000


def _write(root: Path) -> dict[bytes, tuple[int, int, bytes]]:
    """Write every flight under its aircraft; offset, timestamp and value of each one's newest."""
    latest: dict[bytes, tuple[int, int, bytes]] = {}
    with LogManager([root]) as manager:
        [log] = manager.create_topic(TOPIC, 1, CONFIG)
        batch: list[tuple[bytes, bytes, int]] = []
        offset = 0
        for flight in flights(RECORDS):
            tail = json.loads(flight.value)["tailnum"]
            if tail is None:
                continue  # cancelled before an aircraft was chosen
            key = tail.encode()
            batch.append((key, flight.value, flight.timestamp))
            latest[key] = (offset, flight.timestamp, flight.value)
            offset += 1
            if len(batch) == BATCH_RECORDS:
                log.append(batch)
                batch = []
        log.append(batch)
        log.roll()
    return latest


def test_a_consumer_reads_the_latest_state_of_each_aircraft(kafka: str, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    latest = _write(ours)
    [outcome] = compact_directory(ours).partitions
    assert outcome.error is None
    assert outcome.stats.records_kept == len(latest)
    expected = sorted(
        (offset, timestamp, key, value) for key, (offset, timestamp, value) in latest.items()
    )
    partition = ours / f"{TOPIC}-0"
    with KafkaBroker(tmp_path / "broker") as broker:
        topic = CreateTopic(TOPIC, configs={"cleanup.policy": "compact"})
        kafka_tools.produce(broker.bootstrap, topic)
        for unclean in (False, True):
            broker.stop()
            broker.adopt(TOPIC, {0: partition}, unclean=unclean)
            broker.start()
            read = kafka_tools.consume(broker.bootstrap, TOPIC)
            found = [(r["offset"], r["timestamp"], r["key"], r["value"]) for r in read]
            assert found == expected
        kafka_tools.produce(broker.bootstrap, ProduceRecords(TOPIC, 10))
        assert len(kafka_tools.consume(broker.bootstrap, TOPIC)) == len(expected) + 10
    assert kafka_tools.index_sanity(sorted(partition.glob("*.log"))) == []
