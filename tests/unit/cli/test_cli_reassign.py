"""``logstore reassign`` against brokers of ours; tests/interop has a real Kafka and its tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.pytest_plugin import logstore_kafka, make_logstore_kafka
from replication import ServedCluster
from tests.support.cases import for_each
from tests.support.commands import logstore, logstore_json
from tests.support.until import until

__all__ = ["logstore_kafka", "make_logstore_kafka"]

RATE = "leader.replication.throttled.rate"


def at(kafka: ServedCluster) -> tuple[str, str]:
    return "--bootstrap-server", kafka.bootstrap_servers


def write(path: Path, value: Any) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def plan(*replicas: list[int], topic: str = "orders") -> dict[str, Any]:
    parts = [{"topic": topic, "partition": n, "replicas": each} for n, each in enumerate(replicas)]
    return {"version": 1, "partitions": parts}


@pytest.mark.slow
def test_a_topic_moves(make_logstore_kafka: Callable[..., ServedCluster], tmp_path: Path) -> None:
    kafka = make_logstore_kafka(3)
    server = at(kafka)
    kafka.create_topic("orders", assignment=[(0,), (0,), (1,)])
    kafka.produce("orders", b"value", partition=0)
    topics = write(tmp_path / "topics", {"topics": [{"topic": "orders"}], "version": 1})
    which = ("--topics-to-move-json-file", topics, "--broker-list", "1,2")
    told = logstore("reassign", "--generate", *which, *server).stdout.splitlines()
    assert told[0] == "Current partition replica assignment"
    assert [each["replicas"] for each in json.loads(told[1])["partitions"]] == [[0], [0], [1]]
    assert told[3] == "Proposed partition reassignment configuration"
    file = ("--reassignment-json-file", write(tmp_path / "plan", told[4]))

    moved = logstore("reassign", "--execute", *file, "--throttle", "1000000", *server).stdout
    assert moved.endswith(
        "The inter-broker throttle limit was set to 1000000 B/s\n"
        "Successfully started partition reassignments for orders-0,orders-1,orders-2\n"
    )
    quotas = [kafka.broker(n).replica_manager.quotas[RATE] for n in range(3)]
    assert [quota.rate for quota in quotas] == [1_000_000] * 3
    (topic,) = logstore_json("topics", "describe", "orders", *server, code=None)
    sent = topic["configs"]["leader.replication.throttled.replicas"]
    assert sent == "0:0,1:0,2:1"

    def verified() -> Any:
        found = logstore_json("reassign", "--verify", *file, *server, code=None)
        return {each["state"] for each in found["partitions"]} == {"completed"}

    until(verified)
    assert not any(quota.is_set for quota in quotas)
    (topic,) = logstore_json("topics", "describe", "orders", *server)
    assert "leader.replication.throttled.replicas" not in topic["configs"]
    assert [each["replicas"] for each in topic["partitions"]] == [[1], [2], [1]]
    assert topic["partitions"][0]["highWatermark"] == 1
    listed = logstore("reassign", "--list", *server)
    assert listed.output == "No partition reassignments found.\n"
    assert logstore("reassign", "--cancel", *file, *server).output == (
        "None of the specified partition reassignments are active.\n"
        "None of the specified partition moves are active.\n"
        "Clearing broker-level throttles on brokers 0,1,2\n"
        "Clearing topic-level throttles on topic orders\n"
    )


@pytest.mark.slow
def test_a_move_that_cannot_end_is_listed_and_cancelled(
    make_logstore_kafka: Callable[..., ServedCluster], tmp_path: Path
) -> None:
    kafka = make_logstore_kafka(3, config={"replica.fetch.max.bytes": 100})
    server = at(kafka)
    kafka.create_topic("orders", assignment=[(0, 1)])
    kafka.crash(2)
    until(lambda: len(kafka.live_brokers) == 2)
    file = write(tmp_path / "plan", plan([0, 2]))
    told = logstore("reassign", "--execute", "--reassignment-json-file", file, *server, code=2)
    assert told.stderr == "error: orders-0: there is no live broker 2\n"
    kafka.start(2)
    until(lambda: len(kafka.live_brokers) == 3)
    tp = TopicPartition("orders", 0)
    kafka.broker(kafka.wait_for_leader(tp)).replica_manager.quotas[RATE].set_rate(0)
    for _ in range(3):  # one of them passes before the rate is exceeded
        kafka.produce("orders", b"x" * 1000)
    change = ("--config", "leader.replication.throttled.replicas=*")
    logstore("topics", "alter", "orders", *change, *server)
    command = ("reassign", "--execute", "--reassignment-json-file", file, *server)
    logstore(*command)
    told = logstore("reassign", "--list", *server)
    assert told.output == (
        "Current partition reassignments:\norders-0: replicas: 0,2,1. adding: 2. removing: 1.\n"
    )
    assert logstore("reassign", "--verify", *command[2:], code=1).stdout == (
        "Status of partition reassignment:\nReassignment of partition orders-0 is still in "
        "progress.\n"
    )
    assert "give --additional" in logstore(*command, code=2).stderr
    exclude = ("--exclude", "1", *server)
    assert "give --additional" in logstore("reassign", "--execute", *exclude, code=2).stderr
    found = logstore_json("reassign", "--generate", *exclude)
    assert found["proposed"]["partitions"] == []  # broker 1 goes already
    told = logstore("reassign", "--cancel", *command[2:])
    assert told.stdout.startswith("Successfully cancelled partition reassignment for: orders-0\n")
    (topic,) = logstore_json("topics", "describe", "orders", *server, code=None)
    assert topic["partitions"][0]["replicas"] == [0, 1]


@pytest.mark.slow
def test_a_replica_moves_to_another_directory(
    make_logstore_kafka: Callable[..., ServedCluster], tmp_path: Path
) -> None:
    kafka = make_logstore_kafka(1, log_dirs_per_broker=2)
    server = at(kafka)
    (tp,) = kafka.create_topic("orders")
    kafka.produce("orders", b"value")
    manager = kafka.broker(0).log_manager

    def place() -> str:
        return str(Path(manager.get(*tp).directory).parent)

    before = place()
    (target,) = {*manager.live_directories} - {before}
    entry = {"topic": "orders", "partition": 0, "replicas": [0], "log_dirs": [target]}
    file = ("--reassignment-json-file", write(tmp_path / "plan", {"partitions": [entry]}))
    rate = ("--replica-alter-log-dirs-throttle", "1000000")
    told = logstore("reassign", "--execute", *file, *rate, *server).stdout
    assert "The replica-alter-dir throttle limit was set to 1000000 B/s\n" in told
    words = f"moving log directory to {target} for replica orders-0 with broker 0"
    assert told.endswith(f"Successfully started {words}\n")
    until(lambda: place() == target)
    told = logstore("reassign", "--verify", *file, *server).stdout
    assert "Reassignment of replica orders-0-0 completed successfully.\n" in told
    quota = kafka.broker(0).replica_manager.quotas["replica.alter.log.dirs.io.max.bytes.per.second"]
    assert not quota.is_set
    back = {"partitions": [{**entry, "log_dirs": [before]}]}
    file = ("--reassignment-json-file", write(tmp_path / "back", back))
    told = logstore("reassign", "--verify", *file, *server, code=1).stdout
    assert f"is not being moved from {target} to {before}.\n" in told
    entry["log_dirs"] = ["/nowhere"]
    file = ("--reassignment-json-file", write(tmp_path / "nowhere", {"partitions": [entry]}))
    told = logstore("reassign", "--execute", *file, *server, code=1).stderr
    assert told == "error: orders-0 on broker 0: LOG_DIR_NOT_FOUND\n"


@pytest.mark.slow
def test_a_broker_is_emptied(make_logstore_kafka: Callable[..., ServedCluster]) -> None:
    kafka = make_logstore_kafka(3)
    server = at(kafka)
    kafka.create_topic("orders", 50, 2)
    told = logstore_json("reassign", "--generate", "--exclude", "0", *server)
    moving = {each["partition"] for each in told["current"]["partitions"]}
    logstore("reassign", "--execute", "--exclude", "0", *server)

    def emptied() -> Any:
        (topic,) = logstore_json("topics", "describe", "orders", *server, code=None)
        return [p for p in topic["partitions"] if 0 in p["replicas"]] == []

    until(emptied)
    assert moving
    told = logstore("reassign", "--execute", "--exclude", "0", *server)
    assert told.output == "No partition has a replica on broker 0.\n"


@for_each(
    "given, reason",
    [
        (plan([0, 0]), "orders-0: a broker twice in [0, 0]"),
        (plan([7]), "orders-0: there is no live broker 7"),
        (plan([0], [0]), "there is no partition orders-1"),
        (plan([0], topic="nope"), "topic 'nope': UNKNOWN_TOPIC_OR_PARTITION"),
        ("", "no JSON: Expecting value: line 1 column 1 (char 0)"),
        ({"version": 2}, "version 2, only 1 is known"),
        ("\ud800", "'utf-8' codec"),
    ],
)
def test_a_plan_that_does_not_fit(
    logstore_kafka: ServedCluster, tmp_path: Path, given: Any, reason: str
) -> None:
    logstore_kafka.create_topic("orders", 1, if_not_exists=True)
    path = tmp_path / "plan"
    text = given if isinstance(given, str) else json.dumps(given)
    path.write_bytes(text.encode(errors="surrogatepass"))
    command = ("reassign", "--execute", "--reassignment-json-file", str(path))
    told = logstore(*command, *at(logstore_kafka), code=2)
    assert (told.stdout, reason in told.stderr, told.stderr.count("\n")) == ("", True, 1)


@for_each(
    "words, reason",
    [
        ((), "give one of --generate"),
        (("--list", "--verify"), "give one of --generate"),
        (("--verify",), "give --reassignment-json-file"),
        (("--list", "--throttle", "0"), "--throttle does not go with --list"),
        (("--generate", "--broker-list", "1"), "give --topics-to-move-json-file and --broker-list"),
        (("--generate", "--exclude", "0", "--broker-list", "1"), "or --exclude"),
        (("--execute", "--exclude", "x"), "not a whole number"),
    ],
)
def test_options_that_do_not_fit(words: tuple[str, ...], reason: str) -> None:
    assert reason in logstore("reassign", *words, code=2).stderr
