"""Brokers of ours beside real Kafka brokers in ZooKeeper mode (X-92 to X-98).

Each leads what the other follows, and each is the controller of the other. The real ones are
unmodified, and log files are compared byte for byte.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import kafka_tools
import pytest
from kafka_tools import DeleteRecords, ProduceRecords
from mixed_cluster import KAFKA, OURS, MixedCluster

from tests.support.until import until

pytestmark = pytest.mark.slow

BOTH = (KAFKA, OURS)
BY_KAFKA, BY_US = "led-by-kafka", "led-by-us"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
MOVES = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECTIONS = "org.apache.kafka.tools.LeaderElectionCommand"


@pytest.fixture
def cluster(kafka: str, tmp_path: Path) -> Iterator[MixedCluster]:
    """Nobody runs but ZooKeeper."""
    with MixedCluster(tmp_path) as cluster:
        yield cluster


def begin(cluster: MixedCluster, *controllers: int) -> None:
    """Start both, and make a topic for each to lead. The first one is the controller."""
    for broker_id in controllers:
        cluster.start(broker_id)
    assert cluster.controller == controllers[0]
    for topic, leader, follower in ((BY_KAFKA, KAFKA, OURS), (BY_US, OURS, KAFKA)):
        assignment = f"{leader}:{follower}"
        cluster.tool(TOPICS, OURS, "--create", "--topic", topic, "--replica-assignment", assignment)
        cluster.until_led(topic, leader, BOTH)


def values(name: str, count: int = 200) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def read(cluster: MixedCluster, topic: str, at: int) -> list[str]:
    found = kafka_tools.consume(cluster.address(at), topic, read_committed=True)
    return [record["value"].decode() for record in found]


def test_each_follows_and_leads_the_other(cluster: MixedCluster) -> None:
    """Under Kafka's controller, with batches of every kind, and a deletion of the first ones."""
    begin(cluster, KAFKA, OURS)
    cluster.produce(values("a"), BY_KAFKA, BY_US, at=OURS)
    steps = [
        ProduceRecords(topic, 120, codec=codec, idempotent=True, outcomes=outcomes,
                       transactional_id=topic if outcomes else "", headers=True, null_keys=True)
        for topic in (BY_KAFKA, BY_US)
        for codec, outcomes in (("zstd", ""), ("lz4", ""), ("gzip", "CAC"))
    ]  # fmt: skip
    steps += [DeleteRecords(topic, 50) for topic in (BY_KAFKA, BY_US)]
    kafka_tools.produce(cluster.address(KAFKA), *steps)
    for topic in (BY_KAFKA, BY_US):
        assert cluster.until_equal(topic)
        told = [kafka_tools.consume(cluster.address(at), topic, read_committed=True) for at in BOTH]
        assert told[0] == told[1]
        assert [record["offset"] for record in told[0][:2]] == [50, 51]


def test_a_broker_of_ours_that_lost_its_disk(cluster: MixedCluster) -> None:
    """A Kafka's leader takes it back under its new epoch, after it fetched."""
    begin(cluster, KAFKA, OURS)
    cluster.produce(values("a"), BY_KAFKA, BY_US, at=KAFKA)
    ours = cluster.ours[OURS]
    ours.stop()
    assert cluster.state(BY_US)["leader"] == KAFKA, "it moved before we ended"
    shutil.rmtree(ours.directory)
    cluster.start(OURS)
    for topic in (BY_KAFKA, BY_US):
        cluster.until_led(topic, KAFKA, BOTH)
        assert cluster.until_equal(topic)
    assert read(cluster, BY_US, OURS) == values("a")


@pytest.mark.essential
def test_the_controller_moves_between_them(cluster: MixedCluster) -> None:
    """By crashes and by stops, each time with records that the other has to have."""
    begin(cluster, KAFKA, OURS)
    cluster.produce(values("a"), BY_KAFKA, BY_US, at=OURS)

    cluster.kafkas[KAFKA].kill()
    cluster.until_led(BY_KAFKA, OURS, [OURS])
    assert cluster.controller == OURS
    cluster.produce(values("b"), BY_KAFKA, BY_US, at=OURS)
    cluster.start(KAFKA)
    for topic in (BY_KAFKA, BY_US):
        cluster.until_led(topic, OURS, BOTH)
        assert cluster.until_equal(topic)
    cluster.tool(ELECTIONS, KAFKA, "--election-type", "preferred", "--all-topic-partitions")
    cluster.until_led(BY_KAFKA, KAFKA, BOTH)
    cluster.produce(values("c"), BY_KAFKA, BY_US, at=KAFKA)

    cluster.kafkas[KAFKA].stop()
    cluster.until_led(BY_KAFKA, OURS, [OURS])
    cluster.start(KAFKA)
    cluster.until_led(BY_KAFKA, OURS, BOTH)

    cluster.ours[OURS].kill()
    cluster.until_led(BY_US, KAFKA, [KAFKA])
    assert cluster.controller == KAFKA
    cluster.produce(values("d"), BY_KAFKA, BY_US, at=KAFKA)
    cluster.start(OURS)
    for topic in (BY_KAFKA, BY_US):
        cluster.until_led(topic, KAFKA, BOTH)
        assert cluster.until_equal(topic)
        assert read(cluster, topic, OURS) == [each for name in "abcd" for each in values(name)]

    # Ours restarts in the time of Kafka's controller, which no controller of ours has seen.
    cluster.ours[OURS].stop()
    cluster.start(OURS)
    for topic in (BY_KAFKA, BY_US):
        cluster.until_led(topic, KAFKA, BOTH)
    cluster.kafkas[KAFKA].stop()
    for topic in (BY_KAFKA, BY_US):
        cluster.until_led(topic, OURS, [OURS])
    cluster.produce(values("e"), BY_KAFKA, BY_US, at=OURS)


@pytest.mark.parametrize("loser", BOTH)
def test_what_only_one_of_them_had_is_cut(cluster: MixedCluster, loser: int) -> None:
    """Records that acks=1 acknowledged, and whose leader died before the other had them."""
    begin(cluster, KAFKA, OURS)
    heir = KAFKA + OURS - loser
    topic = BY_KAFKA if loser == KAFKA else BY_US
    cluster.produce(values("a"), topic, at=loser)
    cluster.until_equal(topic)
    with cluster.asleep(heir):
        # The fetch that waits at the leader is answered with this, whether or not it is ever read.
        cluster.produce(["bait"], topic, at=loser, acks=1)
        cluster.produce(values("lost"), topic, at=loser, acks=1)
        assert b"lost-199" in cluster.log_bytes(loser, topic)
        cluster.kill(loser)
    cluster.until_led(topic, heir, [heir])
    cluster.produce(values("b"), topic, at=heir)
    cluster.start(loser)
    cluster.until_led(topic, heir, BOTH)
    assert b"lost-" not in cluster.until_equal(topic)
    found = read(cluster, topic, loser)
    assert [each for each in found if each != "bait"] == values("a") + values("b")


def test_a_real_kafka_starts_into_a_tree_of_ours(cluster: MixedCluster) -> None:
    """And is its controller in the end."""
    begin(cluster, OURS, KAFKA)
    cluster.produce(values("a"), BY_KAFKA, BY_US, at=KAFKA)
    for topic in (BY_KAFKA, BY_US):
        assert cluster.until_equal(topic)
    # A Kafka broker makes the topic of groups by itself, in the tree.
    found = kafka_tools.consume(cluster.address(KAFKA), BY_US, group="g")
    assert len(found) == len(values("a"))
    until(lambda: set(cluster.state("__consumer_offsets")["isr"]) == {*BOTH})
    cluster.ours[OURS].stop()
    for topic in (BY_KAFKA, BY_US):
        cluster.until_led(topic, KAFKA, [KAFKA])
    assert cluster.controller == KAFKA
    cluster.produce(values("b"), BY_KAFKA, BY_US, at=KAFKA)
    cluster.start(OURS)
    for topic in (BY_KAFKA, BY_US):
        cluster.until_led(topic, KAFKA, BOTH)
        assert cluster.until_equal(topic)


@pytest.mark.parametrize("controller", BOTH)
@pytest.mark.parametrize("asked", BOTH)
def test_topics_by_kafkas_own_tools(cluster: MixedCluster, controller: int, asked: int) -> None:
    """Whoever is asked, and whoever decides: the other hears of it."""
    other = KAFKA + OURS - controller
    begin(cluster, controller, other)
    topic = ("--topic", "t")
    new = ("--replica-assignment", "1:2,2:1", "--config", "retention.ms=86400000")
    cluster.tool(TOPICS, asked, "--create", *topic, *new)
    cluster.tool(TOPICS, asked, "--alter", *topic, "--partitions", "4")
    entity = ("--entity-type", "topics", "--entity-name", "t")
    cluster.tool(CONFIGS, asked, "--alter", *entity, "--add-config", "min.insync.replicas=2")
    for at in BOTH:
        until(
            lambda at=at: (
                "min.insync.replicas=2" in cluster.tool(CONFIGS, at, "--describe", *entity)
            )
        )
        assert "PartitionCount: 4" in cluster.tool(TOPICS, at, "--describe", *topic)
    for number in range(4):
        until(lambda number=number: set(cluster.state("t", number)["isr"]) == {*BOTH})
    cluster.produce(values("a"), "t", at=asked)

    moves = [{"topic": "t", "partition": n, "replicas": [r]} for n, r in ((0, OURS), (1, KAFKA))]
    wanted = cluster.directory / "moves.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": moves}))
    cluster.tool(MOVES, asked, "--reassignment-json-file", str(wanted), "--execute")
    cluster.until_led("t", OURS, [OURS])
    cluster.until_led("t", KAFKA, [KAFKA], 1)
    for gone in ((KAFKA, "t", 0), (OURS, "t", 1)):
        until(lambda gone=gone: not cluster.directory_of(*gone).exists())
    told = cluster.tool(MOVES, asked, "--reassignment-json-file", str(wanted), "--verify")
    assert told.count("is completed") == 2
    assert read(cluster, "t", asked) == values("a")

    cluster.tool(TOPICS, asked, "--delete", *topic)
    until(lambda: cluster.node("/brokers/topics/t") is None)
    for at in BOTH:
        for number in range(4):
            until(lambda at=at, number=number: not cluster.directory_of(at, "t", number).exists())


def test_coordinators_move_between_them(cluster: MixedCluster) -> None:
    """A group goes on where it was, a producer fences its earlier life, and ids are given once."""
    begin(cluster, KAFKA, OURS)
    internal = ("__consumer_offsets", "__transaction_state")

    def transactions(name: str, at: int) -> None:
        """The second of three is aborted; the producer is the next life of an earlier one."""
        step = ProduceRecords(
            BY_US, 9, idempotent=True, outcomes="CAC", transactional_id="t", value_bytes=20,
            seed=ord(name),
        )  # fmt: skip
        kafka_tools.produce(cluster.address(at), step)

    def rest(at: int) -> int:
        return len(kafka_tools.consume(cluster.address(at), BY_US, read_committed=True, group="g"))

    transactions("a", OURS)  # which asks Kafka's controller for the topic of transactions
    assert rest(OURS) == 6
    for topic in internal:
        until(lambda topic=topic: set(cluster.state(topic)["isr"]) == {*BOTH})
    blocks = [cluster.node("/latest_producer_id_block")["block_start"]]
    for leaver, heir in ((KAFKA, OURS), (OURS, KAFKA)):
        cluster.kill(leaver)
        for topic in internal:
            cluster.until_led(topic, heir, [heir])
        transactions("b", heir)
        assert rest(heir) == 6 * (len(blocks) + 1)
        cluster.start(leaver)
        for topic in (*internal, BY_US):
            cluster.until_led(topic, heir, BOTH)
        for at in BOTH:
            cluster.produce(values("ids", 5), BY_KAFKA, at=at, **{"enable.idempotence": True})
        blocks.append(cluster.node("/latest_producer_id_block")["block_start"])
    assert len({*blocks}) == 3, "each controller has given some"
    for topic in (*internal, BY_US):
        assert cluster.until_equal(topic)
