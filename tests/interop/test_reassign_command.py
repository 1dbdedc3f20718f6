"""``logstore reassign`` and Kafka's own tool, on brokers of ours and of Kafka: each reads what the
other wrote (X-155)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka_cluster
import kafka_jars
import pytest

from checkpoints.types import TopicPartition
from logstore.pytest_plugin import make_logstore_kafka
from replication import ServedCluster
from replication.admin import AdminClient
from replication.admin.reassignments import describe_places
from replication.security.config import client_properties
from tests.support.commands import logstore, logstore_json
from tests.support.until import until

__all__ = ["make_logstore_kafka"]

pytestmark = pytest.mark.slow

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


Brokers = tuple[str, int]
"""Where they are, and the id of the first of three."""


@pytest.fixture(params=["ours", "kafka"])
def brokers(
    request: pytest.FixtureRequest, kafka: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    if request.param == "ours":
        yield request.getfixturevalue("make_logstore_kafka")(3).bootstrap_servers, 0
        return
    with kafka_cluster.running(tmp_path_factory.mktemp("kafka-reassign")) as nodes:
        yield ",".join(node.bootstrap for node in nodes), 1


def theirs(bootstrap: str, *words: str) -> str:
    return str(kafka_jars.run_java(TOOL, "--bootstrap-server", bootstrap, *words).stdout)


def proposal_of(file: Path) -> tuple[TopicPartition, int]:
    """The first replica of a plan."""
    each = json.loads(file.read_text())["partitions"][0]
    return TopicPartition(each["topic"], each["partition"]), each["replicas"][0]


def place_of(bootstrap: str, tp: TopicPartition, broker: int) -> str:
    with AdminClient(client_properties({"bootstrap.servers": bootstrap}).config) as admin:
        admin.metadata()
        answer = describe_places(admin, [(tp, broker)])[tp, broker]
    return str(answer.value.current)


def test_our_tool_and_theirs_move_a_replica_of_ours(
    kafka: str, make_logstore_kafka: Callable[..., ServedCluster], tmp_path: Path
) -> None:
    """Each tool moves it, and the other one sees that."""
    served = make_logstore_kafka(1, log_dirs_per_broker=2)
    at = ("--bootstrap-server", served.bootstrap_servers)
    (tp,) = served.create_topic("orders")
    served.produce("orders", b"value")
    file = tmp_path / "plan"
    plan = ("--reassignment-json-file", str(file))
    for ours in (True, False):
        here = place_of(served.bootstrap_servers, tp, 0)
        (target,) = {*served.broker(0).log_manager.live_directories} - {here}
        entry = {**tp._asdict(), "replicas": [0], "log_dirs": [target]}
        file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
        rate = ("--replica-alter-log-dirs-throttle", "1000000")
        if ours:
            logstore("reassign", "--execute", *plan, *rate, *at)
            told = until(lambda: complete(theirs(served.bootstrap_servers, "--verify", *plan)))
        else:
            theirs(served.bootstrap_servers, "--execute", *plan, *rate)
            told = until(
                lambda: complete(logstore("reassign", "--verify", *plan, *at, code=None).stdout)
            )
        assert "Clearing broker-level throttles on broker 0" in told
        assert place_of(served.bootstrap_servers, tp, 0) == target
    assert len(served.read_all("orders")[0]) == 1


def complete(told: str) -> Any:
    return told if "Reassignment of replica orders-0-0 completed successfully." in told else None


def test_both_tools_move_a_topic(brokers: Brokers, tmp_path: Path) -> None:
    bootstrap, first = brokers
    ids = [str(first + n) for n in range(3)]
    at = ("--bootstrap-server", bootstrap)
    file, topics = tmp_path / "plan", tmp_path / "topics"
    plan = ("--reassignment-json-file", str(file))
    topics.write_text(json.dumps({"topics": [{"topic": "orders"}], "version": 1}))

    def replicas() -> Any:
        (topic,) = logstore_json("topics", "describe", "orders", *at, code=None)
        return [tuple(each["replicas"]) for each in topic["partitions"]]

    logstore("topics", "create", "orders", "--partitions", "6", "--replication-factor", "2", *at)
    which = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list")
    before = replicas()

    # Ours proposes and theirs carries it out.
    told = logstore("reassign", *which, ",".join(ids[:2]), *at).stdout.splitlines()
    file.write_text(told[-1])
    wanted = [tuple(each["replicas"]) for each in json.loads(told[-1])["partitions"]]
    said = theirs(bootstrap, "--execute", *plan, "--throttle", "1000000")
    assert "Successfully started partition reassignments for orders-0,orders-1" in said
    assert "The inter-broker throttle limit was set to 1000000 B/s" in said
    until(lambda: logstore("reassign", "--verify", *plan, *at, code=None).exit_code == 0)
    assert replicas() == wanted
    (topic,) = logstore_json("topics", "describe", "orders", *at)
    assert not [key for key in topic["configs"] if "throttled" in key]
    back = next(line for line in said.splitlines() if line.startswith("{"))
    assert [tuple(each["replicas"]) for each in json.loads(back)["partitions"]] == before

    # Theirs proposes and ours carries it out.
    proposal = theirs(bootstrap, *which, ",".join(ids[1:]), "--disable-rack-aware").splitlines()[-1]
    file.write_text(proposal)
    wanted = [tuple(each["replicas"]) for each in json.loads(proposal)["partitions"]]
    logstore("reassign", "--execute", *plan, "--throttle", "1000000", *at)

    def verified() -> Any:
        told = theirs(bootstrap, "--verify", *plan)
        return told if told.count("is completed.") == 6 else None

    said = until(verified)
    assert f"Clearing broker-level throttles on brokers {','.join(ids)}" in said
    assert "Clearing topic-level throttles on topic orders" in said
    assert replicas() == wanted
    assert logstore("reassign", "--list", *at).output == theirs(bootstrap, "--list")

    # Between directories: to where they are already, of brokers of Kafka, which have one each.
    where = tmp_path / "where"
    tp, broker = proposal_of(file)
    path = place_of(bootstrap, tp, broker)
    entry = {**tp._asdict(), "replicas": list(replicas()[tp.partition])}
    entry["log_dirs"] = [path if each == broker else "any" for each in entry["replicas"]]
    where.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    plan = ("--reassignment-json-file", str(where))
    moved = f"log directory to {path} for replica orders-{tp.partition}"
    assert moved in logstore("reassign", "--execute", *plan, *at).stdout
    assert moved in theirs(bootstrap, "--execute", *plan)
    for told in (
        logstore("reassign", "--verify", *plan, *at).stdout,
        theirs(bootstrap, "--verify", *plan),
    ):
        assert f"Reassignment of replica {tp}-{broker} completed successfully." in told

    logstore("reassign", "--execute", "--exclude", ids[2], *at)
    until(lambda: not [each for each in replicas() if int(ids[2]) in each])
