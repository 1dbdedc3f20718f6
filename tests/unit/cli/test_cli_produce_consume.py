"""``logstore produce`` and ``consume`` against brokers of ours; tests/interop has a real Kafka."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from logstore.cli.common.interrupts import Interrupts
from logstore.cli.records.batching import Batcher, LinesBatch
from logstore.cli.records.input import Parsed
from logstore.common.partitioner import partitioner
from replication import ServedCluster
from replication.cli.consume import _copy as copy
from replication.cli.consume import consume
from replication.cli.produce import MAX_BATCHES, _Sender, produce
from replication.common.error_codes import ErrorCode
from replication.common.messages import MetadataRequest
from replication.protocol import ApiKey
from replication.wire.transport import TcpTransport
from tests.support.cases import for_each
from tests.support.commands import logstore
from tests.support.served import new_name, served
from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(1) as brokers:
        yield brokers


@pytest.fixture
def topic(kafka: ServedCluster) -> str:
    name = new_name()
    for tp in kafka.create_topic(name, 3):
        kafka.wait_for_leader(tp)
    return name


def write(kafka: ServedCluster, topic: str, *words: str, given: bytes | str = "") -> Result:
    options = ["--bootstrap-server", kafka.bootstrap_servers, *words]
    return CliRunner().invoke(produce, [topic, *options], input=given)


def read(kafka: ServedCluster, *words: str) -> Result:
    return CliRunner().invoke(consume, [*words, "--bootstrap-server", kafka.bootstrap_servers])


def printed(kafka: ServedCluster, *words: str) -> bytes:
    done = read(kafka, *words, "-e", "-q")
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


def records(kafka: ServedCluster, topic: str) -> list[tuple[int, bytes | None, bytes | None, Any]]:
    found = kafka.read_all(topic)
    return sorted((p, r.key, r.value, tuple(r.headers)) for p, rows in found.items() for r in rows)


def values(kafka: ServedCluster, topic: str, partition: int = 0) -> list[tuple[Any, Any]]:
    return [(r.key, r.value) for r in kafka.read_all(topic).get(partition, [])]


@pytest.mark.slow
@for_each(
    "words, given, wanted",
    [
        ([], "a\nb\n", [(None, b"a"), (None, b"b")]),
        ([], "a\n\nlast", [(None, b"a"), (None, b""), (None, b"last")]),
        ([], "a\r\n", [(None, b"a\r")]),
        (
            ["-K", ":"],
            "k:v\nno key\n:x\ny:\n",
            [(b"k", b"v"), (None, b"no key"), (b"", b"x"), (b"y", b"")],
        ),
        (
            ["-K", ":", "-Z"],
            "k:v\n:x\ny:\n\n",
            [(b"k", b"v"), (None, b"x"), (b"y", None), (None, None)],
        ),
        (["-K", ":", "-k", "own"], "k:v\nno key\n", [(b"k", b"v"), (b"own", b"no key")]),
        (["-K", "\\t", "-D", ";"], "k\tv;k2\tv2", [(b"k", b"v"), (b"k2", b"v2")]),
        (["-D", "\\x00"], "a\nb\0c\0", [(None, b"a\nb"), (None, b"c")]),
        (["-c", "2"], "a\nb\nc\n", [(None, b"a"), (None, b"b")]),
        (["--batch", "1", "-z", "lz4"], "a\nb\n", [(None, b"a"), (None, b"b")]),
        (["--acks", "1"], "a\n", [(None, b"a")]),
        (["-X", "acks=1", "-X", "compression.type=zstd"], "a\n", [(None, b"a")]),
        (["-X", "enable.idempotence=false"], "a\n", [(None, b"a")]),
        (["--format", "json"], '{"value":"YQ==","key":null}\n\n', [(None, b"a")]),
    ],
)
def test_lines_are_records(
    kafka: ServedCluster, words: list[str], given: str, wanted: list[tuple[Any, Any]]
) -> None:
    name = new_name()
    kafka.wait_for_leader(kafka.create_topic(name)[0])
    done = write(kafka, name, *words, given=given)
    assert done.exit_code == 0, done.output
    assert values(kafka, name) == wanted
    count = len(wanted)
    told = f"{count} record{'s' if count > 1 else ''}, offsets 0 to {count - 1}\n"
    assert done.output == f"{name}-0: {told}"


def test_keys_go_where_kafkas_producers_put_them(kafka: ServedCluster, topic: str) -> None:
    given = "".join(f"k{n}=v{n}\n" for n in range(30))
    done = write(kafka, topic, "-K", "=", "-H", "a=b", "-H", "null", "--json", given=given)
    assert done.exit_code == 0, done.output
    where = partitioner("murmur2")
    headers = (("a", b"b"), ("null", None))
    assert records(kafka, topic) == sorted(
        (where.partition(b"k%d" % n, 3), b"k%d" % n, b"v%d" % n, headers) for n in range(30)
    )
    rows = json.loads(done.output)
    assert [row["partition"] for row in rows] == [0, 1, 2]
    assert sum(row["records"] for row in rows) == 30


def test_one_partition_and_a_file(kafka: ServedCluster, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\n")
    assert write(kafka, topic, "-p", "2", "-l", str(file), "-q").output == ""
    assert values(kafka, topic, 2) == [(None, b"a"), (None, b"b")]
    done = write(kafka, topic, "-p", "3", given="a\n")
    assert done.exit_code == 2
    assert f"no partition 3 of '{topic}': it has 3" in done.output


def test_a_missing_topic_is_made_where_brokers_do_so(kafka: ServedCluster) -> None:
    name = new_name()
    assert write(kafka, name, given="a\n").exit_code == 0
    assert values(kafka, name) == [(None, b"a")]


@pytest.mark.slow  # it waits for the topic
def test_a_missing_topic_that_nobody_makes() -> None:
    with served(1, {"auto.create.topics.enable": "false"}) as kafka:
        done = write(kafka, "missing", given="a\n")
        assert (done.exit_code, done.output) == (
            2,
            "error: there is no topic 'missing', and the brokers make none\n",
        )


def test_a_mistyped_topic_is_suggested(kafka: ServedCluster) -> None:
    kafka.create_topic("shop-orders", if_not_exists=True)
    for arguments in (["shop-ordres"], ["Shop-Orders", "-p", "0"]):
        done = read(kafka, *arguments)
        assert (done.exit_code, "Did you mean 'shop-orders'?" in done.output) == (2, True)


def test_consume_makes_no_topic(kafka: ServedCluster) -> None:
    name = "like.nothing"
    done = read(kafka, name)
    assert (done.exit_code, done.output) == (2, f"error: there is no topic {name!r}\n")
    assert name not in kafka.client.topics()


def test_what_is_not_acknowledged_is_counted(kafka: ServedCluster, topic: str) -> None:
    with kafka.faults:
        kafka.faults.fail(ApiKey.PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE, times=None)
        done = write(kafka, topic, "-p", "0", "--batch", "2", given="a\nb\nc\n")
    assert done.exit_code == 1
    assert "3 records not acknowledged: MESSAGE_TOO_LARGE" in done.output
    assert values(kafka, topic) == []


def test_a_batch_that_is_refused_ends_it(kafka: ServedCluster, topic: str) -> None:
    with kafka.faults:
        given = "a\n" * 500
        kafka.faults.fail(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD, times=1)
        done = write(kafka, topic, "-p", "0", "--batch", "1", given=given)
    assert done.exit_code == 1
    assert "not acknowledged: INVALID_RECORD" in done.output


def test_an_interrupt_ends_the_wait_for_room() -> None:
    """All batches that may be on their way are: the next one waits, and Ctrl-C stops that."""
    pressed, done = [], []

    def wait() -> None:
        pressed.append(1)
        signal.raise_signal(signal.SIGINT)
        done.append(1)

    with Interrupts() as interrupts:
        producer = mock.Mock(**{"begin_batch.return_value": wait})
        sender = _Sender(producer, "t", [0], interrupts, lambda: 0)
        batch = LinesBatch([Parsed(None, b"a")], 33)
        for _ in range(MAX_BATCHES + 3):
            sender.send(0, batch)
        assert (pressed, done, sender.lost) == ([1], [], 0)
        sender.finish()
        assert sender.was_interrupted
    assert (sender.lost, sender.acknowledged) == (MAX_BATCHES + 3, 0)


def test_what_waits_for_its_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logstore.cli.records.batching._PENDING_BYTES", 10_000)
    given = 0
    batches: list[LinesBatch] = []
    batcher = Batcher(500, 1000, (), lambda at, batch: batches.append(batch))
    for number in range(1000):
        batcher.add(Parsed(b"%d" % number, b"x" * 68), number)
        given += 100 + len(b"%d" % number)
        assert given - sum(batch.size for batch in batches) <= 10_000
    batcher.flush()
    assert sum(len(batch.records) for batch in batches) == 1000


def test_a_line_that_is_no_record(kafka: ServedCluster, topic: str) -> None:
    given = '{"value":"YQ=="}\nnone\n{"value":"Yg=="}\n'
    done = write(kafka, topic, "-p", "0", "--format", "json", given=given)
    assert done.exit_code == 2
    assert "error: line 2: not JSON" in done.output
    assert "1 record before it written" in done.output
    assert values(kafka, topic) == [(None, b"a")]


@for_each(
    "words, text",
    [
        (["--acks", "2"], "--acks"),
        (["-X", "acks=2"], "give all, 1 or 0"),
        (["-X", "compression.type=rar"], "give one of"),
        (["-X", "delivery.timeout.ms=soon"], "no number of milliseconds"),
        (["-X", "no.such.key=1"], "no key of Kafka's clients"),
        (["-K", ""], "--key-separator is empty"),
        (["-D", "\\q"], "--delimiter"),
        (["-K", ":", "--format", "json"], "for lines only"),
        (["-p", "-2"], "-p"),
    ],
)
def test_arguments_that_are_refused(kafka: ServedCluster, words: list[str], text: str) -> None:
    at = ("--bootstrap-server", kafka.bootstrap_servers)
    assert text in logstore("produce", "orders", *at, *words, code=2).output


@for_each("command", [produce, consume])
def test_nobody_is_there(command: Any) -> None:
    done = CliRunner().invoke(command, ["orders", "--bootstrap-server", "127.0.0.1:1"])
    assert done.exit_code != 0
    assert "127.0.0.1:1: Connection refused" in str(done.exception)


@pytest.fixture(scope="module")
def filled(kafka: ServedCluster) -> str:
    """Five records in partition 0, at 1 to 5 seconds, and one in partition 1."""
    name = new_name()
    for tp in kafka.create_topic(name, 2):
        kafka.wait_for_leader(tp)
    producer = kafka.producer()
    rows: list[Any] = [(b"k%d" % n, b"v%d" % n, n * 1000) for n in range(1, 5)]
    producer.send_batch(name, 0, [*rows, (None, None, 5000, (("h", b"x"), ("n", None)))])
    producer.send_batch(name, 1, [(b"", b"", 1000)])
    return name


class TestConsume:
    @for_each(
        "words, wanted",
        [
            ([], b"v1\nv2\nv3\nv4\n\n"),
            (["-o", "beginning"], b"v1\nv2\nv3\nv4\n\n"),
            (["--from-beginning", "-c", "2"], b"v1\nv2\n"),
            (["-o", "end"], b""),
            (["-o", "3"], b"v4\n\n"),
            (["-o", "-2"], b"v4\n\n"),
            (["-o", "-99", "-c", "1"], b"v1\n"),
            (["-o", "s@3000"], b"v3\nv4\n\n"),
            (["-o", "s@1970-01-01T00:00:04"], b"v4\n\n"),
            (["-o", "e@3000"], b"v1\nv2\n"),
            (["-o", "s@2000", "-o", "e@4000"], b"v2\nv3\n"),
            (["-o", "s@9000"], b""),
            (["-Z"], b"v1\nv2\nv3\nv4\nNULL\n"),
            (["-K", "="], b"k1=v1\nk2=v2\nk3=v3\nk4=v4\n=\n"),
            (["-D", "|", "-u"], b"v1|v2|v3|v4||"),
            (["-f", "%t[%p]@%o %k(%K) %s(%S) %T\\n", "-c", "1"], b"%b[0]@0 k1(2) v1(2) 1000\n"),
            (["-o", "4", "-f", "%k(%K) %s(%S) %h %%\\x21\\n"], b"(-1) (-1) h=x,n=NULL %%!\n"),
            (["-o", "4", "-Z", "-f", "%k %s"], b"NULL NULL"),
            (["-c", "1", "-f", "%R%s"], b"\0\0\0\2v1"),
            (["-c", "2", "-f", "raw"], b"v1v2"),
            (["-X", "auto.offset.reset=latest"], b""),
            (["--isolation", "read_committed", "-o", "-1"], b"\n"),
        ],
    )
    def test_what_is_printed(
        self, kafka: ServedCluster, filled: str, words: list[str], wanted: bytes
    ) -> None:
        if b"%" in wanted:
            wanted = wanted % (filled.encode(),) if b"%b" in wanted else wanted % ()
        assert printed(kafka, filled, "-p", "0", *words) == wanted

    def test_where_partitions_end_is_told(self, kafka: ServedCluster, filled: str) -> None:
        done = read(kafka, filled, "-e", "-f", "%p.%o ")
        assert done.exit_code == 0
        assert sorted(done.stdout.split()) == ["0.0", "0.1", "0.2", "0.3", "0.4", "1.0"]
        assert f"% Reached end of topic {filled} [0] at offset 5\n" in done.stderr
        assert f"% Reached end of topic {filled} [1] at offset 1\n" in done.stderr

    def test_where_it_ends_early_no_end_is_told(self, kafka: ServedCluster, filled: str) -> None:
        done = read(kafka, filled, "-e", "-c", "2")
        assert (done.exit_code, done.stderr) == (0, "")

    def test_a_place_behind_the_end_is_the_end(self, kafka: ServedCluster, filled: str) -> None:
        done = read(kafka, filled, "-p", "0", "-o", "99", "-e")
        told = f"note: {filled}-0 ends at offset 5\n% Reached end of topic {filled} [0] at offset 5"
        assert (done.exit_code, done.stdout) == (0, "")
        assert told in done.stderr

    def test_a_topic_that_is_made_anew_ends(
        self, kafka: ServedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With fewer records than it had when its end was asked for."""

        def made_anew(*given: Any) -> bool:
            kafka.delete_topic(topic)
            kafka.wait_for_leader(kafka.create_topic(topic)[0])
            kafka.produce(topic, b"new")
            return copy(*given)

        kafka.producer().send_batch(topic, 0, [(None, b"old")] * 5)
        monkeypatch.setattr("replication.cli.consume._copy", made_anew)
        done = read(kafka, topic, "-p", "0", "-e")
        assert (done.exit_code, done.stdout) == (0, "new\n")
        assert "at offset 1\n" in done.stderr

    def test_json_comes_back(self, kafka: ServedCluster, filled: str, topic: str) -> None:
        text = printed(kafka, filled, "-J")
        assert write(kafka, topic, "-p", "0", "--format", "json", given=text).exit_code == 0
        rows = sorted(json.loads(line)["value"] or "" for line in text.splitlines())
        copied = printed(kafka, topic, "-J").splitlines()
        assert sorted(json.loads(line)["value"] or "" for line in copied) == rows
        assert len(rows) == 6

    def test_topics_by_pattern(self, kafka: ServedCluster, filled: str) -> None:
        other = f"{filled}-more"
        kafka.wait_for_leader(kafka.create_topic(other)[0])
        kafka.produce(other, b"other")
        text = printed(kafka, f"^{filled}", "-f", "%t\\n")
        assert set(text.decode().split()) == {filled, other}
        assert "no topic matches" in read(kafka, "^nothing").output
        assert "is no pattern" in read(kafka, "^(").output
        both = printed(kafka, filled, other, "-f", "%t\\n")
        assert set(both.decode().split()) == {filled, other}

    def test_many_topics_are_asked_for_at_once(
        self, kafka: ServedCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prefix, asked, send = new_name(), [], TcpTransport.send
        for number in range(10):
            kafka.wait_for_leader(kafka.create_topic(f"{prefix}.{number}")[0])

        def noted(transport: TcpTransport, broker: int, request: Any, *rest: Any) -> None:
            asked.append(type(request))
            send(transport, broker, request, *rest)

        monkeypatch.setattr(TcpTransport, "send", noted)
        assert printed(kafka, f"^{prefix}") == b""
        assert asked.count(MetadataRequest) == 3  # brokers, names, topics

    @for_each(
        "words, text",
        [
            (["-p", "7"], "no partition 7"),
            (["-o", "soon"], "-o soon"),
            (["-o", "1", "-o", "2"], "twice"),
            (["-o", "1", "--from-beginning"], "exclude"),
            (["-f", "%q"], "means nothing"),
            (["--isolation", "none"], "--isolation"),
        ],
    )
    def test_arguments_that_are_refused(
        self, kafka: ServedCluster, filled: str, words: list[str], text: str
    ) -> None:
        done = read(kafka, filled, *words)
        assert done.exit_code == 2
        assert text in done.output


def begin(kafka: ServedCluster, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "logstore", *words, "--bootstrap-server", kafka.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        **options,
    )


@pytest.mark.slow
def test_the_reader_of_the_pipe_goes_away(kafka: ServedCluster, topic: str) -> None:
    kafka.producer().send_batch(topic, 0, [(None, b"x" * 1000)] * 500)
    running = begin(kafka, "consume", topic, "-u")
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline() == b"x" * 1000 + b"\n"
    running.stdout.close()
    assert running.wait(patience()) == 128 + signal.SIGPIPE
    assert running.stderr.read() == b""
    running.stderr.close()


@pytest.mark.slow
def test_an_interrupt_ends_consume(kafka: ServedCluster, topic: str) -> None:
    kafka.produce(topic, b"x")
    running = begin(kafka, "consume", topic)
    assert running.stdout is not None
    assert running.stdout.readline() == b"x\n"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=patience())
    assert (running.returncode, out) == (130, b"")
    assert b"Traceback" not in err


@pytest.mark.slow
def test_an_interrupt_ends_produce_with_what_was_read(kafka: ServedCluster, topic: str) -> None:
    running = begin(kafka, "produce", topic, "-p", "0", stdin=subprocess.PIPE)
    assert running.stdin is not None
    running.stdin.write(b"a\nb\n")
    running.stdin.flush()
    until(lambda: len(values(kafka, topic)) == 2, "a pause sends what is there")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=patience())
    assert (running.returncode, out) == (130, f"{topic}-0: 2 records, offsets 0 to 1\n".encode())
    assert b"Traceback" not in err
