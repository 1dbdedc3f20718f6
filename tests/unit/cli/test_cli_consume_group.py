"""``logstore consume --group`` against brokers of ours; tests/interop has a real Kafka."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from replication import ServedCluster
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import GROUP_METADATA
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.support import consuming
from tests.support.cases import for_each
from tests.support.commands import logstore
from tests.support.consuming import ConsumingProcess, new_topic
from tests.support.served import connect, new_name, served
from tests.support.until import patience, until

pytestmark = pytest.mark.slow

CONFIG = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(1, CONFIG) as brokers:
        yield brokers


def test_members_share_and_take_over(kafka: ServedCluster, tmp_path: Path) -> None:
    consuming.members_share_and_take_over(kafka.bootstrap_servers, tmp_path)


@for_each("number, unbuffered", [(signal.SIGINT, ""), (signal.SIGTERM, ""), (signal.SIGINT, "1")])
def test_a_clean_stop_is_exact(
    kafka: ServedCluster, tmp_path: Path, number: int, unbuffered: str
) -> None:
    """Without a buffer, too, where a signal makes the system take a part of a write."""
    consuming.a_clean_stop_is_exact(kafka.bootstrap_servers, tmp_path, number, unbuffered)


@for_each("ours_leads", [True, False])
def test_members_of_another_client(kafka: ServedCluster, tmp_path: Path, ours_leads: bool) -> None:
    consuming.members_of_another_client(kafka.bootstrap_servers, tmp_path, ours_leads)


def committed(bootstrap: str, group: str) -> int:
    offsets = consuming.described(bootstrap, group)["offsets"]
    return sum(max(each["committed"], 0) for each in offsets)


def test_what_is_counted_is_committed(kafka: ServedCluster, tmp_path: Path) -> None:
    bootstrap = kafka.bootstrap_servers
    topic, group = new_topic(bootstrap), new_name("group")
    consuming.write(bootstrap, tmp_path, topic, range(30))
    words = (topic, "-G", group, "--bootstrap-server", bootstrap, "-q")
    first = logstore("consume", *words, "-c", "7").stdout.split()
    assert (len(first), committed(bootstrap, group)) == (7, 7)
    rest = logstore("consume", *words, "-e", "-u").stdout.split()
    assert sorted([*first, *rest], key=int) == [str(n) for n in range(30)]
    other = (topic, "-G", new_name("group"), *words[3:], "-e")
    peeking = ("-X", "enable.auto.commit=false")
    for _ in range(2):
        assert len(logstore("consume", *other, *peeking).stdout.split()) == 30
    assert logstore("consume", *other, "-o", "end").stdout == ""
    assert logstore("consume", *other, "-o", "beginning", "-o", "stored").stdout == ""


def test_what_is_not_printed_is_not_committed(kafka: ServedCluster, tmp_path: Path) -> None:
    """One answer of a broker has all of it, and more than is wanted."""
    bootstrap = kafka.bootstrap_servers
    topic, group = new_topic(bootstrap, 2), new_name("group")
    source = tmp_path / "records.jsonl"
    source.write_text("".join(f'{{"value": "dg==", "timestamp": {n}}}\n' for n in range(1, 21)))
    words = (topic, "--bootstrap-server", bootstrap, "-q")
    write = ("produce", *words, "--format", "json", "-l", str(source))
    logstore(*write, "-p", "0")
    grouped = ("consume", *words, "-G", group, "-f", "%o,")
    until_six = "e@1970-01-01T00:00:00.006Z"
    assert logstore(*grouped, "-o", until_six).stdout == "0,1,2,3,4,"
    assert committed(bootstrap, group) == 5
    assert logstore(*grouped, "-o", until_six).stdout == ""
    assert committed(bootstrap, group) == 5
    assert logstore(*grouped, "-e").stdout.startswith("5,6,")
    logstore(*write, "-p", "1")
    assert logstore(*grouped, "-o", until_six).stdout == "0,1,2,3,4,"
    assert committed(bootstrap, group) == 20 + 5


def test_a_commit_comes_before_others_take_over(kafka: ServedCluster, tmp_path: Path) -> None:
    bootstrap = kafka.bootstrap_servers
    topic, group = new_topic(bootstrap), new_name("group")
    consuming.write(bootstrap, tmp_path, topic, range(40))
    late = {"auto.commit.interval.ms": 3_600_000}
    with ConsumingProcess(tmp_path, bootstrap, topic, "-G", group, config=late) as first:
        assert consuming.each_once([first], 40)
        assert committed(bootstrap, group) == 0
        with ConsumingProcess(tmp_path, bootstrap, topic, "-G", group, config=late) as second:
            until(lambda: consuming.shares(bootstrap, group) == [2, 2])
            assert committed(bootstrap, group) == 40
            consuming.write(bootstrap, tmp_path, topic, range(40, 80))
            assert consuming.each_once([first, second], 80)


def test_the_reader_of_a_pipe_goes_away(kafka: ServedCluster, tmp_path: Path) -> None:
    """Nothing that did not go out is committed, and the group is left."""
    bootstrap = kafka.bootstrap_servers
    topic, group = new_topic(bootstrap, 1), new_name("group")
    consuming.write(bootstrap, tmp_path, topic, range(10))
    with ConsumingProcess(
        tmp_path, bootstrap, topic, "-G", group, stdout=subprocess.PIPE
    ) as member:
        pipe = member.process.stdout
        assert pipe is not None
        assert b"".join(pipe.read(1) for _ in range(20)) == b"".join(b"%d\n" % n for n in range(10))
        until(lambda: consuming.has_no_lag(bootstrap, group))
        pipe.close()
        consuming.write(bootstrap, tmp_path, topic, range(10, 20))
        assert member.process.wait(patience()) == 141
    assert consuming.shares(bootstrap, group) == []
    assert committed(bootstrap, group) == 10


def test_a_blocked_pipe_does_not_end_the_session(kafka: ServedCluster, tmp_path: Path) -> None:
    """A member of another group falls silent later, and its session ends meanwhile."""
    bootstrap = kafka.bootstrap_servers
    topic, group, other = new_topic(bootstrap), new_name("group"), new_name("group")
    consuming.write(bootstrap, tmp_path, topic, range(60_000))
    with (
        ConsumingProcess(
            tmp_path, bootstrap, topic, "-G", group, stdout=subprocess.PIPE
        ) as blocked,
        ConsumingProcess(tmp_path, bootstrap, topic, "-G", other) as silent,
    ):
        assert blocked.process.stdout is not None
        blocked.process.stdout.read(1)
        (member,) = consuming.described(bootstrap, group)["members"]
        until(lambda: consuming.shares(bootstrap, other) == [4])
        silent.process.send_signal(signal.SIGSTOP)
        until(lambda: consuming.shares(bootstrap, other) == [], "the session is over")
        assert consuming.described(bootstrap, group)["members"] == [member]
        silent.process.send_signal(signal.SIGCONT)
        until(lambda: consuming.shares(bootstrap, other) == [4], "it comes back by itself")
        blocked.process.send_signal(signal.SIGINT)
        blocked.process.send_signal(signal.SIGTERM)  # the second one ends it at once
        assert blocked.process.wait(patience()) == 130
    assert committed(bootstrap, group) == 0


def test_an_interrupt_ends_a_join_that_waits_for_others(
    kafka: ServedCluster, tmp_path: Path
) -> None:
    bootstrap = kafka.bootstrap_servers
    topic, group = new_topic(bootstrap), new_name("group")
    config = {"session.timeout.ms": 600_000}

    def members() -> int:
        told = consuming.described(bootstrap, group)
        return len(told["members"]) if told else 0

    with (
        ConsumingProcess(tmp_path, bootstrap, topic, "-G", group, config=config) as silent,
        ConsumingProcess(tmp_path, bootstrap, topic, "-G", group, config=config) as joining,
    ):
        until(lambda: consuming.shares(bootstrap, group) == [2, 2])
        silent.process.send_signal(signal.SIGSTOP)
        joining.end()
        until(lambda: members() == 1)
        with ConsumingProcess(tmp_path, bootstrap, topic, "-G", group, config=config) as joining:
            until(lambda: members() == 2)
            assert joining.end().strip() == ""  # nothing was ever assigned
        until(lambda: members() == 1)


def test_new_partitions_are_assigned(kafka: ServedCluster, tmp_path: Path) -> None:
    bootstrap = kafka.bootstrap_servers
    topic, group = new_topic(bootstrap, 1), new_name("group")
    pattern, later = f"^{topic}(-.*)?$", f"{topic}-later"
    with ConsumingProcess(
        tmp_path, bootstrap, pattern, "-G", group, "-X", "metadata.max.age.ms=100"
    ):
        until(lambda: consuming.shares(bootstrap, group) == [1])
        at = ("--bootstrap-server", bootstrap)
        logstore("topics", "alter", topic, "--partitions", "3", *at)
        until(lambda: consuming.shares(bootstrap, group) == [3])
        logstore("topics", "create", later, *at)
        until(lambda: consuming.shares(bootstrap, group) == [4])


@for_each(
    "words, code, said",
    [
        (("-p", "0"), 2, "--group and --partition exclude each other"),
        (("-o", "5"), 2, "in a group -o is beginning or end"),
        (("-X", "auto.offset.reset=none"), 2, "in a group -o is beginning or end"),
        (("-X", "session.timeout.ms=soon"), 2, "session.timeout.ms = 'soon' is no number"),
        (("-X", "heartbeat.interval.ms=0"), 2, "heartbeat.interval.ms = '0'"),
        (("-X", "session.timeout.ms=2000000000"), 2, "INVALID_SESSION_TIMEOUT"),
    ],
)
def test_refusals(kafka: ServedCluster, words: tuple[str, ...], code: int, said: str) -> None:
    topic = new_topic(kafka.bootstrap_servers)
    at = ("--bootstrap-server", kafka.bootstrap_servers)
    told = logstore("consume", topic, "-G", new_name("group"), "-e", *words, *at, code=code)
    assert said in told.stderr


def test_a_group_of_another_kind(kafka: ServedCluster) -> None:
    topic, group = new_topic(kafka.bootstrap_servers), new_name("group")
    kind = wire.JoinGroupRequest
    with connect(kafka) as client:
        joins = kind(
            group, 60_000, 60_000, "", None, "connect", (kind.JoinGroupRequestProtocol("default"),)
        )
        given = client.ask(ApiKey.JOIN_GROUP, 5, joins).member_id
        client.ask(ApiKey.JOIN_GROUP, 5, joins._replace(member_id=given))
        at = ("--bootstrap-server", kafka.bootstrap_servers)
        told = logstore("consume", topic, "-G", group, "-e", *at, code=2)
    assert f"group {group}: {ErrorCode.INCONSISTENT_GROUP_PROTOCOL.name}" in told.stderr


def test_the_coordinator_moves(tmp_path: Path) -> None:
    with served(3, CONFIG, session_timeout_ms=1000) as kafka:
        bootstrap = kafka.bootstrap_servers
        name, group = new_name(), new_name("group")
        for tp in kafka.create_topic(name, 2, 3):
            kafka.wait_for_leader(tp)
        consuming.write(bootstrap, tmp_path, name, range(50))
        with ConsumingProcess(tmp_path, bootstrap, name, "-G", group) as member:
            assert consuming.each_once([member], 50)
            until(lambda: consuming.has_no_lag(bootstrap, group))
            kafka.crash(kafka.wait_for_leader(TopicPartition(GROUP_METADATA, 0)))
            consuming.write(bootstrap, tmp_path, name, range(50, 100))
            assert consuming.each_once([member], 100)
            until(lambda: consuming.has_no_lag(bootstrap, group))
            member.end()
