"""``logstore status`` against brokers of ours; tests/interop has a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner, Result

from logstore.pytest_plugin import logstore_kafka, make_logstore_kafka
from replication import ServedCluster
from replication.cli.status import status
from tests.support.until import until

__all__ = ["logstore_kafka", "make_logstore_kafka"]


def run(kafka: ServedCluster, *arguments: str) -> Result:
    return CliRunner().invoke(status, ["--bootstrap-server", kafka.bootstrap_servers, *arguments])


def test_partitions_and_brokers(logstore_kafka: ServedCluster) -> None:
    logstore_kafka.create_topic("orders", 2)
    logstore_kafka.create_topic("payments")
    told = run(logstore_kafka)
    assert told.exit_code == 0
    for line in ("orders-0", "orders-1", "payments-0", logstore_kafka.bootstrap_servers):
        assert line in told.output
    assert "orders" not in run(logstore_kafka, "--topic", "payments").output


def test_json_is_for_programs(logstore_kafka: ServedCluster) -> None:
    logstore_kafka.create_topic("orders")
    logstore_kafka.produce("orders", b"value")
    told: dict[str, Any] = json.loads(run(logstore_kafka, "--json").output)
    (broker,) = told["brokers"]
    assert (broker["broker"], broker["isController"], broker["problem"]) == (0, True, "")
    (partition,) = told["partitions"]
    assert (partition["topic"], partition["highWatermark"], partition["isr"]) == ("orders", 1, [0])


def test_what_is_wrong_gives_1(make_logstore_kafka: Callable[..., ServedCluster]) -> None:
    kafka = make_logstore_kafka(3)
    tps = kafka.create_topic("orders", 1, 3)
    kafka.crash((kafka.wait_for_leader(tps[0]) + 1) % 3)
    kafka.wait_for_isr(tps[0], kafka.live_brokers)
    told = run(kafka)
    assert told.exit_code == 1
    kafka.start(next(b for b in kafka.broker_ids if b not in kafka.live_brokers))
    # Each broker that is asked hears of the new in-sync set in its own time.
    until(lambda: run(kafka).exit_code == 0)


def test_nobody_there_gives_2() -> None:
    told = CliRunner().invoke(status, ["--bootstrap-server", "127.0.0.1:1"])
    assert told.exit_code == 2
    assert told.stderr.startswith("error: 127.0.0.1:1: ")
