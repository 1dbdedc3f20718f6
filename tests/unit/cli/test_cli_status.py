"""``logstore status`` against brokers of ours; tests/interop has a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from checkpoints.types import TopicPartition
from logstore.cli import main
from logstore.pytest_plugin import logstore_kafka, make_logstore_kafka
from replication import ClientConfig, ServedCluster
from replication.admin import AdminClient, ClusterStatus, WireConnection
from replication.admin.groups import GroupOffset, GroupStatus, commit_offsets
from replication.cli.status import status
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
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
    # Each broker that is asked hears of the new in-sync set in its own time.
    until(lambda: run(kafka).exit_code == 1)
    kafka.start(next(b for b in kafka.broker_ids if b not in kafka.live_brokers))
    until(lambda: run(kafka).exit_code == 0)


def commit(kafka: ServedCluster, group: str, topic: str, offset: int) -> None:
    """As a consumer without members does, once the coordinator has loaded."""
    config = ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,))
    tp = TopicPartition(topic, 0)
    with AdminClient(config) as client:
        assert commit_offsets(client, group, {tp: offset})[tp].code == ErrorCode.NONE


@pytest.mark.parametrize(("committed", "lag"), [(0, 1), (1, 0), (2, -1), (1000, -999)])
def test_an_offset_above_the_end_is_told(
    committed: int, lag: int, logstore_kafka: ServedCluster
) -> None:
    """So it looks after a partition was restored from an older copy, or has lost its tail."""
    logstore_kafka.create_topic("orders")
    logstore_kafka.produce("orders", b"0")
    commit(logstore_kafka, "billing", "orders", committed)
    commit(logstore_kafka, "audit", "orders", 1)
    told = run(logstore_kafka)
    assert told.exit_code == (1 if lag < 0 else 0)
    assert [line.split()[-1] for line in told.output.splitlines() if "billing" in line] == [
        str(lag)
    ]
    (group,) = json.loads(run(logstore_kafka, "--json", "--group", "billing").output)["groups"]
    assert group["offsets"][0]["lag"] == lag
    assert run(logstore_kafka, "--group", "audit").exit_code == 0


def test_the_lag_is_not_known_where_the_end_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tp = TopicPartition("gone", 0)
    group = GroupStatus("billing", "Empty", "consumer", 0, (), (GroupOffset(tp, 7, -1, None),))
    found = ClusterStatus("c", (), (), (group,))
    monkeypatch.setattr("replication.admin.cluster_status", lambda client: found)
    told = CliRunner().invoke(status, [])
    assert (told.exit_code, told.output.split()[-3:]) == (0, ["7", "-", "-"])
    (shown,) = json.loads(CliRunner().invoke(status, ["--json"]).output)["groups"]
    assert shown["offsets"][0]["lag"] is None


def test_what_is_committed_meanwhile_is_not_ahead(
    logstore_kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer reads and commits all that comes, between the two questions."""
    logstore_kafka.create_topic("orders")
    call, written = WireConnection.call, []

    def busy(self: WireConnection, key: ApiKey, *arguments: Any) -> Any:
        if key in (ApiKey.LIST_OFFSETS, ApiKey.LIST_GROUPS):
            written.append(logstore_kafka.produce("orders", b"0"))
            with monkeypatch.context() as patch:
                patch.setattr(WireConnection, "call", call)
                commit(logstore_kafka, "billing", "orders", len(written))
        return call(self, key, *arguments)

    monkeypatch.setattr(WireConnection, "call", busy)
    assert run(logstore_kafka).exit_code == 0
    assert len(written) > 1


def test_nobody_there_gives_2() -> None:
    told = CliRunner().invoke(main, ["status", "--bootstrap-server", "127.0.0.1:1"])
    assert told.exit_code == 2
    assert told.stderr.startswith("error: 127.0.0.1:1: ")
