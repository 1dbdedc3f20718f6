"""Log directories of a real broker, read by this library: loaded, fetched, dumped and verified."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kafka_jars
import kafka_logs
import pytest
import reading
from kafka_logs import DELETED, TRANSACTIONAL, KafkaDirectory, LogDirectory
from reading import RecordFields

from logstore import EARLIEST, LATEST, LogManager, Record
from logstore.format.reader import read_records
from logstore.log import PartitionLog
from tests.support.logs import check_invariants
from tests.support.until import patience

pytestmark = pytest.mark.slow

TOPICS = sorted(kafka_logs.topic_configs())
HALVES = (pytest.param("clean", marks=pytest.mark.essential), "killed")


@pytest.fixture(scope="module", params=HALVES)
def half(request: pytest.FixtureRequest, kafka_directory: KafkaDirectory) -> LogDirectory:
    """Return what the broker left after a clean stop, or after SIGKILL."""
    directory: LogDirectory = getattr(kafka_directory, request.param)
    return directory


@pytest.fixture(scope="module")
def manager(half: LogDirectory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogManager]:
    """Return our log manager with a copy of ``half`` open."""
    copy = tmp_path_factory.mktemp("opened") / "data"
    shutil.copytree(half.path, copy)
    with reading.open_broker_directory(copy) as manager:
        yield manager


# --- loading ------------------------------------------------------------------------------------


def test_every_partition_loads_and_only_a_killed_broker_costs_recovery(
    half: LogDirectory, manager: LogManager
) -> None:
    """F-47, F-236: the marker decides. The controller's own log is no partition of ours."""
    directories = {path.name for path in half.path.iterdir() if path.is_dir()}
    assert {str(where) for where in manager.logs} == directories - {reading.CLUSTER_METADATA}
    assert not manager.offline_directories
    clean = (half.path / ".kafka_cleanshutdown").exists()
    for log in manager.logs.values():
        check_invariants(log)
        report = log.recovery_report
        assert report.clean == clean
        assert (report.segments_scanned == 0) == clean, log.name
        assert report.bytes_cut == 0, log.name


def test_internal_topics_hold_records(manager: LogManager) -> None:
    for topic in ("__transaction_state", "__consumer_offsets"):
        log = manager.get(topic, 0)
        assert log.log_end_offset > 0
        assert reading.read_log(log)


# --- reading ------------------------------------------------------------------------------------


def test_records_are_those_of_the_consumer(half: LogDirectory, manager: LogManager) -> None:
    """Both isolation levels, F-155 … F-160."""
    for topic in TOPICS:
        assert reading.read_topic(manager, topic) == half.uncommitted[topic], topic
        assert reading.read_topic(manager, topic, committed=True) == half.committed[topic], topic


def test_the_open_transaction_holds_the_last_stable_offset(manager: LogManager) -> None:
    """F-198: it ends in no marker, in no crash, so its producer is still known to be inside."""
    log = manager.get(TRANSACTIONAL, 0)
    assert log.replica.first_unstable_offset is not None
    assert log.last_stable_offset == log.replica.first_unstable_offset < log.high_watermark


def test_the_log_start_offset_comes_from_the_checkpoint(
    half: LogDirectory, manager: LogManager
) -> None:
    """F-12: the deleted records of the first segment are still in its file."""
    log = manager.get(DELETED, 0)
    assert log.log_start_offset == half.uncommitted[DELETED][0]["offset"]
    assert log.segments[0].base_offset < log.log_start_offset


def test_lookups_by_time_agree_with_a_scan(half: LogDirectory, manager: LogManager) -> None:
    """F-149 … F-151. What the broker itself answers: test_kafka_serves.py.

    Control records have timestamps too, and a lookup may lead to one; so the scan has them.
    """
    for topic in TOPICS:
        _look_up(topic, half, manager.get(topic, 0))


def _look_up(topic: str, half: LogDirectory, log: PartitionLog) -> None:
    stamped = [(record.offset, record.timestamp) for record in _with_control(half, topic, log)]
    times = sorted({timestamp for _, timestamp in stamped})
    for asked in [0, *times[:: max(1, len(times) // 25)], *(times[-1:]), 2**62]:
        expected = next(((o, t) for o, t in stamped if t >= asked), None)
        found = log.offset_for_timestamp(asked)
        assert (found and (found.offset, found.timestamp)) == expected, (topic, asked)
    earliest, latest = (log.offset_for_timestamp(which) for which in (EARLIEST, LATEST))
    assert earliest is not None
    assert latest is not None
    assert (earliest.offset, latest.offset) == (log.log_start_offset, log.log_end_offset)


def _with_control(half: LogDirectory, topic: str, log: PartitionLog) -> list[Record]:
    data = b"".join(path.read_bytes() for path in sorted(half.partition_dir(topic).glob("*.log")))
    return read_records(data, from_offset=log.log_start_offset, include_control=True)


# --- the commands -------------------------------------------------------------------------------


def _run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "logstore", *args],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
        cwd=kafka_jars.ROOT,
    )


def _as_consumed(line: str) -> RecordFields:
    dumped = json.loads(line)
    record = {name: dumped[name] for name in ("topic", "partition", "offset", "timestamp")}
    return record | {
        "timestampType": dumped["timestampType"],
        "key": _bytes(dumped["key"]),
        "value": _bytes(dumped["value"]),
        "headers": [(name, _bytes(value)) for name, value in dumped["headers"]],
        "leaderEpoch": None if dumped["leaderEpoch"] < 0 else dumped["leaderEpoch"],
    }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def test_dump_prints_the_records_of_the_consumer(half: LogDirectory) -> None:
    """Files do not tell the log start offset, so ``dump`` shows deleted records: as Kafka's does.

    Nothing may change: the broker that owns the directory may be running.
    """
    before = reading.checksums(half.path)
    result = _run("dump", "--format", "json", str(half.path))
    assert result.returncode == 0, result.stderr
    dumped: dict[str, list[RecordFields]] = {topic: [] for topic in TOPICS}
    for line in result.stdout.splitlines():
        record = _as_consumed(line)
        if record["topic"] in dumped and not json.loads(line)["isControl"]:
            dumped[record["topic"]].append(record)
    for topic, records in dumped.items():
        start = half.uncommitted[topic][0]["offset"] if topic == DELETED else 0
        shown = [record for record in records if record["offset"] >= start]
        assert shown == half.uncommitted[topic], topic
    assert reading.checksums(half.path) == before


def test_verify_finds_nothing_wrong(half: LogDirectory) -> None:
    """A clean stop leaves nothing to tell but what is no fault: that compaction left gaps (F-307),
    and files marked for deletion (F-24).

    SIGKILL may leave a torn tail too, in the active segment: a warning, since the next start makes
    it good. What it leaves of indexes is an info (F-137, F-139).
    """
    before = reading.checksums(half.path)
    result = _run("verify", "--json", str(half.path))
    report = json.loads(result.stdout)
    assert report["unusable"] == []
    clean = (half.path / ".kafka_cleanshutdown").exists()
    for finding in report["findings"]:
        if finding["severity"] == "info":
            is_left = not clean and "the next start builds it anew" in finding["message"]
            assert is_left or finding["rule"] in ("leftover", "log-compacted-gap"), finding
            continue
        found = finding["severity"], finding["rule"], clean
        assert found == ("warning", "log-torn-end", False), finding
        file = Path(finding["file"])
        assert file.stem == max(path.stem for path in file.parent.glob("*.log")), finding
    assert result.returncode == (0 if report["clean"] else 1)
    assert report["clean"] or not clean
    assert reading.checksums(half.path) == before
