"""Kafka's own command-line tools and test clients: each a JVM with unmodified classes.

A case is a few runs of tools in a row, and what they print must agree with what was asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.clients import toolchain
from tests.clients.scripted import ProgramFailed, Script, ScriptedSuite, equal, expect, script

TOOL_TIMEOUT_S = 90
_CASES: dict[str, Script] = {}


class KafkaTools:
    """Runs tools against one broker."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.directory = directory
        self._jars = toolchain.interop_module("kafka_jars")

    def run(
        self, tool: str, *arguments: object, stdin: str = "", statuses: Sequence[int] = (0,)
    ) -> str:
        """Run a tool with ``--bootstrap-server`` and return its standard output."""
        name = tool if "." in tool else f"org.apache.kafka.tools.{tool}"
        words = [str(word) for word in arguments]
        server = ["--bootstrap-server", self.bootstrap]
        if tool in _OPTION_AFTER_COMMAND:
            words += server
        elif tool not in _OTHER_OPTION:
            words = server + words
        return self._jars.run_java(
            name, *words, stdin=stdin, timeout_s=TOOL_TIMEOUT_S, statuses=statuses
        ).stdout

    def topic(self, name: str, partitions: int = 1, **configs: object) -> str:
        """Create a topic and return its name."""
        options = [f"--config={key.replace('_', '.')}={value}" for key, value in configs.items()]
        answer = self.run(
            "TopicCommand", "--create", "--topic", name, "--partitions", partitions, *options
        )
        expect(f"Created topic {name}", answer)
        return name

    def produce(self, topic: str, count: int, acks: int = -1) -> None:
        """Write the numbers from 0 on with the VerifiableProducer; all must be acknowledged."""
        said = self.run(
            "VerifiableProducer", "--topic", topic, "--max-messages", count, "--acks", acks
        )
        sent = _events(said, "producer_send_success")
        if len(sent) != count:
            raise ProgramFailed(f"{len(sent)} of {count} acknowledged:\n{said[-1500:]}")

    def consume(self, topic: str, count: int, *options: str) -> list[str]:
        """Return the values of a topic as the console consumer reads them.

        It ends when nothing comes for a while. If that was before ``count`` values had come, it may
        have been too short a while for this machine: it reads once more, and waits longer.
        """
        values: list[str] = []
        for timeout_ms in ("4000", "60000"):
            if len(values) < count:
                values = self.run(
                    f"{_CONSUMERS}.ConsoleConsumer",
                    *("--topic", topic, "--from-beginning", "--timeout-ms", timeout_ms, *options),
                ).splitlines()
        return values

    def file(self, name: str, text: str) -> Path:
        """Write a file for a tool."""
        path = self.directory / name
        path.write_text(text)
        return path


_CONSUMERS = "org.apache.kafka.tools.consumer"
_GROUPS = f"{_CONSUMERS}.group.ConsumerGroupCommand"
_OTHER_OPTION = ("TransactionalMessageCopier",)
_OPTION_AFTER_COMMAND = ("ClusterTool",)


_case = script(_CASES)


def _events(said: str, name: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [event for event in events if event.get("name") == name]


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@_case
def broker_api_versions(tools: KafkaTools) -> None:
    """The ranges that the broker says it serves."""
    said = tools.run("BrokerApiVersionsCommand")
    expect(r"Produce\(0\): 0 to (11|12|13)", said)
    expect(r"Fetch\(1\): 4 to 1[2-8]", said)


@_case
def verifiable_producer_and_consumer(tools: KafkaTools) -> None:
    """Numbers in, the same count out, offsets committed on the way."""
    topic = tools.topic("verifiable", 3)
    tools.produce(topic, 3000)
    said = tools.run(
        "VerifiableConsumer",
        *("--topic", topic, "--group-id", "verifiable", "--max-messages", 3000),
        *("--reset-policy", "earliest"),
    )
    read = sum(event["count"] for event in _events(said, "records_consumed"))
    equal(3000, read)
    committed = _events(said, "offsets_committed")
    equal(True, bool(committed) and all(event["success"] for event in committed))
    last = {o["partition"]: o["offset"] for event in committed for o in event["offsets"]}
    equal(3000, sum(last.values()))


@_case
def verifiable_producer_with_each_acks(tools: KafkaTools) -> None:
    """acks 0, 1 and all."""
    for acks in (0, 1, -1):
        topic = tools.topic(f"acks{acks}")
        tools.produce(topic, 500, acks)
        equal(_numbers(500), tools.consume(topic, 500))


@_case
def transactional_message_copier(tools: KafkaTools) -> None:
    """Copies with its offsets in the transaction: exactly once."""
    _copy(tools, "copied")


@_case
def transactional_message_copier_with_aborts(tools: KafkaTools) -> None:
    """The same, and transactions abort at random: still exactly once."""
    _copy(tools, "copied-aborts", "--enable-random-aborts")


@_case
def transactional_message_copier_in_a_group(tools: KafkaTools) -> None:
    """The same as a member of a group, whose generation fences."""
    _copy(tools, "copied-group", "--group-mode", "--use-group-metadata", "--enable-random-aborts")


def _copy(tools: KafkaTools, name: str, *options: str) -> None:
    source, target = tools.topic(f"{name}-from"), tools.topic(f"{name}-to")
    tools.produce(source, 1000)
    said = tools.run(
        "TransactionalMessageCopier",
        *("--broker-list", tools.bootstrap, "--input-topic", source, "--input-partition", 0),
        *("--output-topic", target, "--transactional-id", name, "--consumer-group", name),
        *("--transaction-size", 90, *options),
    )
    expect('"ShutdownComplete".*"consumed":1000,"remaining":0', said)
    equal(_numbers(1000), tools.consume(target, 1000, "--isolation-level", "read_committed"))


@_case
def client_compatibility_test(tools: KafkaTools) -> None:
    """Kafka's check of what a client may expect of a broker."""
    topic = tools.topic("compatibility")
    # An answer that there is no authorizer counts as support.
    acls = "DescribeAcls(29): UNSUPPORTED" not in tools.run("BrokerApiVersionsCommand")
    said = tools.run(
        "ClientCompatibilityTest",
        *("--topic", topic, "--offsets-for-times-supported", "True"),
        *("--cluster-id-supported", "True", "--expect-record-too-large-exception", "False"),
        *("--num-cluster-nodes", 1, "--create-topics-supported", "True"),
        *("--describe-acls-supported", str(acls), "--describe-configs-supported", "True"),
        *("--idempotent-producer-supported", "True"),
    )
    expect("All client features that were tested passed|SUCCESS", said)


@_case
def producer_and_consumer_performance(tools: KafkaTools) -> None:
    """Bulk both ways."""
    topic = tools.topic("performance", 2)
    said = tools.run(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", 20000, "--record-size", 100, "--throughput", -1),
    )
    expect("20000 records sent", said)
    said = tools.run("ConsumerPerformance", "--topic", topic, "--num-records", 20000)
    equal("20000", said.splitlines()[1].split(", ")[4])


@_case
def producer_performance_in_transactions(tools: KafkaTools) -> None:
    """Bulk in short transactions, all committed."""
    topic = tools.topic("performance-txn")
    said = tools.run(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", 5000, "--record-size", 100, "--throughput", -1),
        *("--transactional-id", "performance", "--transaction-duration-ms", 100),
    )
    expect("5000 records sent", said)
    read = tools.consume(topic, 5000, "--isolation-level", "read_committed")
    equal(5000, len(read))


@_case
def end_to_end_latency(tools: KafkaTools) -> None:
    """One record at a time, read back before the next."""
    tools.topic("latency")
    said = tools.run(
        "EndToEndLatency",
        *("--topic", "latency", "--num-records", 100),
        *("--producer-acks", "all", "--record-size", 20),
    )
    expect("Avg latency", said)


@_case
def console_producer_and_consumer(tools: KafkaTools) -> None:
    """Keys, headers, partitions and timestamps as the console shows them."""
    topic = tools.topic("console")
    lines = "".join(f"h:{n}\tkey-{n}\tvalue {n} ä\n" for n in range(20))
    options = "--reader-property=parse.key=true", "--reader-property=parse.headers=true"
    tools.run("ConsoleProducer", "--topic", topic, *options, stdin=lines)
    shown = "--formatter-property=print.key=true", "--formatter-property=print.headers=true"
    equal(lines.splitlines(), tools.consume(topic, 20, *shown))


@_case
def each_codec(tools: KafkaTools) -> None:
    """Every compression of the Java client."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = tools.topic(f"codec-{codec}")
        lines = "".join(f"{number} {'x' * 50}\n" for number in range(500))
        tools.run("ConsoleProducer", "--topic", topic, "--compression-codec", codec, stdin=lines)
        equal(lines.splitlines(), tools.consume(topic, 500))


@_case
def topics(tools: KafkaTools) -> None:
    """Create, list, describe, widen, delete."""
    tools.topic("topics", 2, retention_ms=123456, cleanup_policy="compact")
    expect("^topics$", tools.run("TopicCommand", "--list"))
    said = tools.run("TopicCommand", "--describe", "--topic", "topics")
    expect(r"PartitionCount: 2\s+ReplicationFactor: 1\s+Configs: .*retention.ms=123456", said)
    tools.run("TopicCommand", "--alter", "--topic", "topics", "--partitions", 5)
    said = tools.run("TopicCommand", "--describe", "--topic", "topics")
    expect(r"PartitionCount: 5", said)
    equal(5, len(re.findall(r"Partition: \d\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", said)))
    tools.run("TopicCommand", "--delete", "--topic", "topics")
    equal(None, re.search("^topics$", tools.run("TopicCommand", "--list"), re.M))


@_case
def topic_configs(tools: KafkaTools) -> None:
    """Alter, describe and delete the configuration of a topic while it is in use."""
    topic = tools.topic("configs")
    entity = "--entity-type", "topics", "--entity-name", topic
    command = "kafka.admin.ConfigCommand"
    added = "max.message.bytes=2000,cleanup.policy=[compact,delete]"
    tools.run(command, "--alter", *entity, "--add-config", added)
    said = tools.run(command, "--describe", *entity)
    expect("max.message.bytes=2000", said)
    expect("cleanup.policy=compact,delete", said)
    tools.run(command, "--alter", *entity, "--delete-config", "max.message.bytes")
    said = tools.run(command, "--describe", *entity)
    equal(None, re.search("max.message.bytes=2000", said))
    everything = tools.run(command, "--describe", "--all", *entity)
    expect("max.message.bytes=1048588 .*DEFAULT_CONFIG:message.max.bytes=1048588", everything)


@_case
def broker_configs(tools: KafkaTools) -> None:
    """Describe the configuration of a broker with its defaults."""
    command = "kafka.admin.ConfigCommand"
    node = _node_id(tools)
    said = tools.run(
        command, "--describe", "--all", "--entity-type", "brokers", "--entity-name", node
    )
    expect("log.retention|num.partitions|log.segment.bytes", said)


def _node_id(tools: KafkaTools) -> str:
    return expect(r"\(id: (\d+) ", tools.run("BrokerApiVersionsCommand")).group(1)


@_case
def groups(tools: KafkaTools) -> None:
    """List, describe, reset, delete offsets of, and delete a group."""
    topic = tools.topic("grouped")
    tools.produce(topic, 200)
    tools.consume(topic, 200, "--group", "grouped-group")
    expect("^grouped-group$", tools.run(_GROUPS, "--list"))
    group = "--group", "grouped-group"
    said = tools.run(_GROUPS, "--describe", *group)
    expect(r"grouped-group\s+grouped\s+0\s+(\d+)\s+\1\s+0", said)
    said = tools.run(_GROUPS, "--describe", *group, "--state")
    expect(r"grouped-group\s.*\s(Empty|Stable)\s+\d", said)
    reset = "--reset-offsets", "--to-offset", "3", "--topic", f"{topic}:0", "--execute"
    expect(r"grouped-group\s+grouped\s+0\s+3", tools.run(_GROUPS, *group, *reset))
    expect(r"grouped-group\s+grouped\s+0\s+3\s", tools.run(_GROUPS, "--describe", *group))
    said = tools.run(_GROUPS, "--delete-offsets", *group, "--topic", f"{topic}:0")
    expect("successful|Successful", said)
    expect("was successful", tools.run(_GROUPS, "--delete", *group))
    equal(None, re.search("^grouped-group$", tools.run(_GROUPS, "--list"), re.M))


@_case
def group_list(tools: KafkaTools) -> None:
    """All groups with their type and protocol."""
    topic = tools.topic("listed")
    tools.produce(topic, 5)
    tools.consume(topic, 5, "--group", "listed-group")
    expect(r"^listed-group\s+Classic\s+consumer", tools.run("GroupsCommand", "--list"))


@_case
def offsets(tools: KafkaTools) -> None:
    """Earliest, latest, by time, the largest time; and after records were deleted."""
    topic = tools.topic("offsets")
    tools.produce(topic, 100)
    which = "--topic", topic, "--time"
    expect("^offsets:0:0$", tools.run("GetOffsetShell", *which, "earliest"))
    expect("^offsets:0:100$", tools.run("GetOffsetShell", *which, "latest"))
    expect("^offsets:0:0$", tools.run("GetOffsetShell", *which, 1000))
    expect(r"^offsets:0:\d+$", tools.run("GetOffsetShell", *which, "max-timestamp"))
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 40}], "version": 1}
    listed = tools.file("deleted.json", json.dumps(wanted))
    said = tools.run("DeleteRecordsCommand", "--offset-json-file", listed)
    expect("low_watermark: 40", said)
    expect("^offsets:0:40$", tools.run("GetOffsetShell", *which, "earliest"))
    equal([str(n) for n in range(40, 100)], tools.consume(topic, 60))


@_case
def log_directories(tools: KafkaTools) -> None:
    """Sizes of partitions on disk."""
    topic = tools.topic("sized")
    tools.produce(topic, 100)
    said = tools.run("LogDirsCommand", "--describe", "--topic-list", topic)
    described = json.loads(said[said.index("{") :].splitlines()[0])
    (partition,) = described["brokers"][0]["logDirs"][0]["partitions"]
    equal("sized-0", partition["partition"])
    equal(True, partition["size"] > 500)


@_case
def leader_election(tools: KafkaTools) -> None:
    """A preferred election where the preferred replica leads already."""
    topic = tools.topic("elected")
    said = tools.run(
        "LeaderElectionCommand",
        *("--election-type", "preferred", "--topic", topic, "--partition", 0),
    )
    expect("Valid replica already elected|Successfully completed", said)


@_case
def cluster_id(tools: KafkaTools) -> None:
    """The cluster's id and its endpoints."""
    expect(r"Cluster ID: \S+", tools.run("ClusterTool", "cluster-id"))
    said = tools.run("ClusterTool", "list-endpoints")
    expect(re.escape(tools.bootstrap.rpartition(":")[2]), said)


@_case
def transactions(tools: KafkaTools) -> None:
    """List, describe and search transactions, and the producers of a partition."""
    topic = tools.topic("transacted")
    tools.run(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", 10, "--record-size", 10, "--throughput", -1),
        *("--transactional-id", "shown"),
    )
    said = tools.run("TransactionsCommand", "list")
    expect(r"^shown\s+\d+\s+\d+\s+CompleteCommit", said)
    said = tools.run("TransactionsCommand", "describe", "--transactional-id", "shown")
    expect("CompleteCommit", said)
    said = tools.run(
        "TransactionsCommand", "describe-producers", "--topic", topic, "--partition", 0
    )
    expect(r"^\d+\s+\d+\s+-?\d+\s+-?\d+", said)
    within = "--topic", topic, "--max-transaction-timeout", 0
    said = tools.run("TransactionsCommand", "find-hanging", *within)
    equal(1, len(said.splitlines()))  # the heading
    where = "--topic", topic, "--partition", 0, "--start-offset", 0
    tools.run("TransactionsCommand", "abort", *where, statuses=(1,))  # nothing is open there


@_case
def acls_are_refused(tools: KafkaTools) -> None:
    """Without an authorizer the tool says so."""
    said = tools.run("AclCommand", "--list", statuses=(0, 1))
    expect("SecurityDisabledException|UnsupportedVersionException", said)


class KafkaToolsSuite(ScriptedSuite):
    """Producers, consumers, copiers and admin tools of the Java distribution."""

    name = "kafka-tools"
    pinned = "Apache Kafka 4.3.1, kafka-tools"
    quick = ("verifiable_producer_and_consumer",)
    most_left_out = 0
    cheap = True
    scripts = _CASES
    tools = KafkaTools

    def ready(self) -> bool:
        try:
            self.prepare()
        except toolchain.SuiteUnavailable:
            return False
        return True

    def prepare(self) -> None:
        jars = toolchain.interop_module("kafka_jars")
        try:
            jars.helper_classes()
        except jars.KafkaUnavailable as error:
            raise toolchain.SuiteUnavailable(str(error)) from None
