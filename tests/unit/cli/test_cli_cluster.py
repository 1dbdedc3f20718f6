"""``logstore topics`` and ``logstore groups`` against brokers of ours; tests/interop has a real
Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.pytest_plugin import logstore_kafka, make_logstore_kafka
from replication import ServedCluster
from replication.admin import Answered
from replication.admin.groups import GroupStatus
from tests.support.cases import for_each
from tests.support.commands import logstore, logstore_json
from tests.support.until import until

__all__ = ["logstore_kafka", "make_logstore_kafka"]


def at(kafka: ServedCluster) -> tuple[str, str]:
    return "--bootstrap-server", kafka.bootstrap_servers


def test_the_life_of_a_topic(logstore_kafka: ServedCluster) -> None:
    server = at(logstore_kafka)
    told = logstore("topics", "create", "orders", "a b", "--partitions", "2", *server, code=1)
    assert told.stdout == "created orders\n"
    assert told.stderr.startswith("error: a b: INVALID_TOPIC_EXCEPTION: topic name")
    told = logstore("topics", "create", "orders", *server, code=1)
    assert told.stderr == "error: orders: TOPIC_ALREADY_EXISTS: topic 'orders' already exists\n"
    assert logstore("topics", "create", "orders", "--if-not-exists", *server).output == ""
    change = ("--config", "retention.ms=-1", "--partitions", "3")
    assert logstore("topics", "alter", "orders", *change, *server).output == "altered orders\n"
    logstore_kafka.produce("orders", b"value")
    (topic,) = logstore_json("topics", "describe", "orders", *server)
    assert (topic["partitionCount"], topic["replicationFactor"]) == (3, 1)
    assert topic["configs"]["retention.ms"] == "-1"
    parts = [(p["partition"], p["leader"], p["isr"]) for p in topic["partitions"]]
    assert parts == [(n, 0, [0]) for n in range(3)]
    assert sum(each["highWatermark"] for each in topic["partitions"]) == 1
    logstore("topics", "alter", "orders", "--delete-config", "retention.ms", *server)
    assert "retention.ms" not in logstore("topics", "describe", "orders", *server).output
    assert logstore("topics", "list", *server).output.splitlines()[1].split() == [
        "orders",
        "3",
        "1",
    ]
    for command in (["describe"], ["delete"], ["alter", "--partitions", "9"]):
        told = logstore("topics", *command, "Ordres", *server, code=1)
        assert told.stderr.endswith(". Did you mean 'orders'?\n")
    told = logstore("topics", "delete", "orders", "nope", *server, code=1)
    assert (told.stdout, told.stderr) == (
        "deleted orders\n",
        "error: nope: UNKNOWN_TOPIC_OR_PARTITION\n",
    )
    assert logstore("topics", "delete", "nope", "--if-exists", *server).output == ""
    told = logstore("topics", "describe", "nope", *server, code=1)
    assert told.stderr == "error: nope: UNKNOWN_TOPIC_OR_PARTITION\n"


def test_a_topic_whose_partitions_are_refused_keeps_its_new_configuration(
    logstore_kafka: ServedCluster,
) -> None:
    server = at(logstore_kafka)
    logstore_kafka.create_topic("orders", 2)
    change = ("--config", "retention.ms=-1", "--partitions", "1")
    told = logstore_json("topics", "alter", "orders", *change, *server, code=1)
    assert [each["errorCode"] for each in told] == ["INVALID_PARTITIONS"]
    (topic,) = logstore_json("topics", "describe", "orders", *server)
    assert (topic["partitionCount"], topic["configs"]["retention.ms"]) == (2, "-1")
    told = logstore(
        "topics", "alter", "orders", "--config", "a=b", "--partitions", "9", *server, code=1
    )
    assert told.stderr.startswith("error: orders: INVALID_CONFIG: ")
    (topic,) = logstore_json("topics", "describe", "orders", *server)
    assert topic["partitionCount"] == 2  # what comes after a refusal is not tried


@pytest.mark.slow
def test_what_is_not_well(make_logstore_kafka: Callable[..., ServedCluster]) -> None:
    kafka = make_logstore_kafka(3)
    (tp, _) = kafka.create_topic("orders", 2, 3)
    kafka.create_topic("single", 1, 1)
    leader = kafka.wait_for_leader(tp)
    kafka.crash((leader + 1) % 3)
    kafka.wait_for_isr(tp, kafka.live_brokers)
    server = at(kafka)
    only = ("topics", "describe", "orders", "--under-replicated-partitions", *server)
    until(lambda: logstore(*only, code=None).stdout.count("orders-") == 2)
    assert logstore(*only, code=1).stdout.count(f"{(leader + 1) % 3}") > 0


def reset(kafka: ServedCluster, *words: str, code: int = 0) -> Any:
    return logstore_json("groups", "reset-offsets", "billing", *words, *at(kafka), code=code)


def offsets(told: Any) -> dict[str, int | None]:
    return {f"{each['topic']}:{each['partition']}": each["newOffset"] for each in told}


def test_the_life_of_a_group(logstore_kafka: ServedCluster, tmp_path: Path) -> None:
    server = at(logstore_kafka)
    logstore_kafka.create_topic("orders", 2)
    logstore_kafka.create_topic("payments")
    for number in range(10):
        logstore_kafka.produce("orders", b"%d" % number, partition=0)
    told = logstore("groups", "describe", "billing", *server, code=1)
    assert told.stderr.startswith("error: billing: GROUP_ID_NOT_FOUND")

    whole = ("--topic", "orders")
    told = reset(logstore_kafka, *whole, "--to-earliest")
    assert offsets(told) == {"orders:0": 0, "orders:1": 0}
    assert not any(each["executed"] for each in told)
    assert logstore_json("groups", "list", *server) == []  # a dry run makes no group
    assert offsets(reset(logstore_kafka, *whole, "--to-current")) == {"orders:0": 10, "orders:1": 0}
    told = reset(logstore_kafka, *whole, "--shift-by", "1", code=1)
    assert {each["errorMessage"] for each in told} == {"nothing is committed"}

    told = reset(logstore_kafka, "--topic", "orders:0", "--to-offset", "7", "--execute")
    assert [each["executed"] for each in told] == [True]
    (group,) = logstore_json("groups", "describe", *server)
    assert (group["groupId"], group["state"], group["members"]) == ("billing", "Empty", [])
    assert group["offsets"] == [
        {"topic": "orders", "partition": 0, "committed": 7, "highWatermark": 10, "lag": 3}
    ]
    (listed,) = logstore_json("groups", "list", *server)
    assert (listed["groupId"], listed["coordinator"]) == ("billing", 0)

    assert offsets(reset(logstore_kafka, "--all-topics", "--shift-by", "-3")) == {"orders:0": 4}
    assert offsets(reset(logstore_kafka, "--all-topics", "--shift-by", "9")) == {"orders:0": 10}
    assert offsets(reset(logstore_kafka, *whole, "--to-datetime", "0"))["orders:0"] == 0
    later = reset(logstore_kafka, *whole, "--to-datetime", "2200-01-01")
    assert offsets(later) == {"orders:0": 10, "orders:1": 0}
    # One partition that cannot be told, and nothing is committed.
    told = reset(logstore_kafka, "--topic", "orders:0,9", "--to-earliest", "--execute", code=1)
    assert [(each["errorCode"], each["executed"]) for each in told] == [
        ("NONE", False),
        ("UNKNOWN_TOPIC_OR_PARTITION", False),
    ]

    file = tmp_path / "offsets.csv"
    words = ("groups", "reset-offsets", "billing", *whole, "--to-earliest", "--export", *server)
    file.write_text(logstore(*words).stdout)
    assert file.read_text() == "orders,0,0\norders,1,0\n"
    reset(logstore_kafka, "--from-file", str(file), "--execute")
    (group,) = logstore_json("groups", "describe", "billing", *server)
    assert [each["committed"] for each in group["offsets"]] == [0, 0]

    told = logstore("groups", "delete-offsets", "billing", "--topic", "orders:1", *server)
    assert told.output == "billing: deleted orders-1\n"
    told = logstore("groups", "describe", "billing", *server)
    assert told.output.splitlines()[2].split() == ["orders-0", "-", "-", "-", "0", "10", "10"]
    told = logstore("groups", "delete", "billing", "nope", *server, code=1)
    assert told.stdout == "deleted billing\n"
    assert told.stderr.startswith("error: nope: GROUP_ID_NOT_FOUND")
    assert logstore("groups", "list", *server).output == ""


@for_each(
    "words, problem",
    [
        (["topics", "create", "x", "--config", "client.properties"], "give KEY=VALUE"),
        (["topics", "create", "x", "--partitions", "0"], "from 1 to"),
        (["topics", "alter", "x"], "give --partitions"),
        (["topics", "alter", "x", "--config", "a=1", "--delete-config", "a"], "both set and"),
        (["groups", "reset-offsets", "g", "--topic", "x"], "give one of --to-earliest"),
        (["groups", "reset-offsets", "g", "--to-latest"], "one of --topic and --all-topics"),
        (["groups", "reset-offsets", "g", "--to-latest", "--to-offset", "1"], "give one of"),
        (
            ["groups", "reset-offsets", "g", "--topic=x", "--to-latest", "--execute", "--dry-run"],
            "--dry-run or --execute",
        ),
        (["groups", "reset-offsets", "g", "--from-file", __file__], "give topic,partition,offset"),
        (["groups", "delete-offsets", "g"], "give --topic"),
        (["topics", "list", "-X", "security.protcol=SSL"], "Did you mean 'security.protocol'?"),
        (["topics", "list", "-X", "sasl.password"], "give KEY=VALUE"),
        (["topics", "list", "-X", "security.protocol=SASL_SSL"], "sasl.mechanism"),
        (["topics", "list", "--command-config", __file__], "127.0.0.1:1: Connection refused"),
        (["groups", "list"], "127.0.0.1:1: Connection refused"),
        (["topics", "list", "--bootstrap-server", "a.invalid:1"], "a.invalid:1: "),
        (["topics", "list", "--bootstrap-server", "a:b"], "'a:b' is not HOST:PORT"),
    ],
)
def test_what_cannot_be_done(words: list[str], problem: str) -> None:
    told = logstore(*words[:2], "--bootstrap-server", "127.0.0.1:1", *words[2:], code=2)
    error = told.stderr.splitlines()[-1]
    assert error.startswith("error: ")
    assert problem in error
    assert "Traceback" not in told.output


def test_a_file_beside_options(logstore_kafka: ServedCluster, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=127.0.0.1:1\nsecurity.protcol=SSL\nsasl.password=s3cret\nacks=all\n"
    )
    words = ("topics", "list", "--command-config", str(file))
    told = logstore(*words, "-X", f"metadata.broker.list={logstore_kafka.bootstrap_servers}")
    assert told.stderr == (
        f"note: {file}: security.protcol is no key of Kafka's clients. Did you mean "
        "'security.protocol'?\n"
    )
    told = logstore(*words, *at(logstore_kafka), "-X", "bootstrap.servers=127.0.0.1:1")
    assert "s3cret" not in told.output


def test_a_large_file_is_no_properties(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"#" * ((1 << 20) + 1))
    told = logstore("status", "-F", str(file), code=2)
    assert told.stderr.startswith(f"error: {file}: above")


def test_the_offsets_of_a_group_with_members_are_theirs(
    logstore_kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    logstore_kafka.create_topic("orders")
    stable = Answered(0, value=GroupStatus("billing", "Stable", "consumer", 0, ()))
    monkeypatch.setattr(
        "replication.cli.groups.describe_groups", lambda admin, names: dict.fromkeys(names, stable)
    )
    words = ("groups", "reset-offsets", "billing", "--topic", "orders", "--to-latest")
    told = logstore(*words, "--execute", *at(logstore_kafka), code=1)
    assert told.stderr.startswith("error: billing is Stable")
    monkeypatch.undo()
    assert logstore_json("groups", "list", *at(logstore_kafka)) == []
