"""Directories that this library wrote or changed, served by a real broker, and read back."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import kafka_served
import pytest
import reading
from kafka_logs import CLEANER_CHECKPOINT, COMPACTED, KafkaDirectory
from kafka_served import APPENDED, RECOVERED_FROM, Life, Served
from our_logs import CONFIG, OurLog

from checkpoints import clean_shutdown
from checkpoints.meta_properties import MetaPropertiesFile
from checkpoints.offset_checkpoint import (
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from logstore import LogManager, TopicPartition
from logstore.log import PartitionLog
from logstore.storage.local import LocalStorage
from tests.support.logs import check_invariants

pytestmark = pytest.mark.slow

SKIPPED = re.compile(r"Skipping recovery of (\d+) logs from .+ since clean shutdown file was found")
RECOVERING = re.compile(r"LogLoader partition=(\S+)-0, .*Recovering unflushed segment (\d+)\.")
LIVES = (pytest.param("adopted", marks=pytest.mark.essential), "recovered")
OurLogs = dict[str, OurLog]


def _recovered_segments(life: Life) -> dict[str, list[int]]:
    """Base offsets by topic. The controller recovers its own log at every start."""
    found: dict[str, list[int]] = {}
    for topic, base in RECOVERING.findall(life.log):
        if topic != "__cluster_metadata":
            found.setdefault(topic, []).append(int(base))
    return found


# --- a broker's directory, changed by our log manager -------------------------------------------


@pytest.mark.essential
def test_a_broker_serves_what_our_manager_changed(
    served: Served, kafka_directory: KafkaDirectory
) -> None:
    """Records appended, deleted and truncated by us; the other topics are as they were."""
    before = kafka_directory.clean.committed
    for topic, expected in served.expected.items():
        assert served.adopted.uncommitted[topic] == expected, topic
        changed = served.adopted.committed[topic] != before[topic]
        assert changed == (expected != kafka_directory.clean.uncommitted[topic]), topic


@pytest.mark.essential
def test_our_marker_makes_a_broker_skip_recovery(served: Served) -> None:
    """F-46 … F-48; our checkpoints name every log but the controller's. Neither an index nor the
    producer state is rebuilt, and nothing is complained of."""
    found = SKIPPED.search(served.adopted.log)
    assert found
    assert int(found[1]) == len(served.checkpoints[RECOVERY_POINT]) > 10
    assert _recovered_segments(served.adopted) == {}
    assert "Rebuilding index" not in served.adopted.log
    assert "ndex file" not in served.adopted.log
    assert " WARN [LogLoader" not in served.adopted.log


@pytest.mark.essential
def test_a_broker_takes_our_checkpoints(served: Served) -> None:
    """F-11 … F-14, F-29: no line is refused, and the log start offset is the one that we wrote.

    We do not clean, and leave the cleaner's checkpoint as it was.
    """
    written = served.checkpoints
    assert set(written) == {RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER_CHECKPOINT}
    moved = TopicPartition(kafka_served.DELETED_ON, 0)
    first = served.adopted.uncommitted[kafka_served.DELETED_ON][0]["offset"]
    assert written[LOG_START][moved] == first
    assert "Malformed line" not in served.adopted.log
    errors = [line for line in served.adopted.log.splitlines() if " ERROR " in line]
    # A controller on a busy machine says that it is late.
    assert [line for line in errors if "QuorumController" not in line] == []
    after = OffsetCheckpoint(str(served.adopted.left / LOG_START), LocalStorage()).read()
    assert after[moved] == first


@pytest.mark.essential
def test_lookups_by_time_agree_with_the_broker(served: Served) -> None:
    """F-149 … F-152, on the same files: what the broker left when it stopped.

    The broker answers −1 where no record is as late, we answer with ``None``. One answer differs
    and has to: a segment that compaction emptied counts for the broker with the time of its file,
    which is later than any record, and so it finds nothing behind such a segment. We look on; that
    ours is right is checked against a scan in test_reads_kafka.py.
    """
    copy = served.adopted.left.parent / "asked"
    shutil.copytree(served.adopted.left, copy)
    assert len(served.adopted.answers) > 200
    with reading.open_broker_directory(copy) as manager:
        emptied = {log.name for log in manager.logs.values() if _emptied(log)}
        assert emptied <= {f"{COMPACTED}-0"}
        for (topic, partition, timestamp), answer in served.adopted.answers.items():
            log = manager.get(topic, partition)
            found = log.offset_for_timestamp(timestamp)
            ours = (-1, -1) if found is None else (found.offset, found.timestamp)
            if answer == (-1, -1) and log.name in emptied:
                continue
            assert ours == answer, (topic, timestamp)


def _emptied(log: PartitionLog) -> bool:
    return any(segment.size == 0 for segment in log.segments[:-1])


# --- our partition directories ------------------------------------------------------------------


@pytest.mark.parametrize("life", LIVES)
def test_a_broker_serves_our_records_and_appends(
    life: str, served: Served, our_logs: OurLogs
) -> None:
    """Both isolation levels. Our open transaction withholds what the broker appended, too."""
    found: Life = getattr(served, life)
    logs = [log for log in our_logs.values() if log.closed or life == "recovered"]
    assert set(found.uncommitted) - set(served.expected) == {log.topic for log in logs}
    for log in logs:
        topic, records = log.topic, found.uncommitted[log.topic]
        assert records[:-APPENDED] == log.uncommitted, topic
        assert len(records) == len(log.uncommitted) + APPENDED, topic
        committed = found.committed[topic]
        if topic == "our-transactional":
            assert committed == log.committed
        else:
            assert committed == log.committed + records[-APPENDED:], topic


def test_a_broker_recovers_only_what_it_must(served: Served, our_logs: OurLogs) -> None:
    """After a stop that was not clean from our recovery point on, or from the start (F-236)."""
    assert not SKIPPED.search(served.recovered.log)
    recovered = _recovered_segments(served.recovered)
    for topic, log in our_logs.items():
        bases = sorted(int(path.stem) for path in log.path.glob("*.log"))
        if topic == RECOVERED_FROM:
            bases = [
                base
                for base, end in zip(bases, [*bases[1:], 2**63], strict=True)
                if end > served.recovery_point
            ]
            assert 1 < len(bases) < len(list(log.path.glob("*.log")))
        assert recovered[topic] == bases, topic


@pytest.mark.parametrize("life", LIVES)
def test_we_read_what_the_broker_appended(
    life: str, served: Served, our_logs: OurLogs, tmp_path: Path
) -> None:
    """Files of both hands in one directory, after the broker's clean stop."""
    found: Life = getattr(served, life)
    copy = tmp_path / "data"
    shutil.copytree(found.left, copy)
    with LogManager([copy], CONFIG) as manager:
        for topic in found.uncommitted.keys() & our_logs.keys():
            records, log = found.uncommitted[topic], manager.get(topic, 0)
            assert log.recovery_report.clean
            check_invariants(log)
            assert reading.read_log(log) == records, topic
            assert reading.read_log(log, committed=True) == found.committed[topic], topic
            assert log.log_start_offset == our_logs[topic].log_start_offset, topic


# --- a broker's small files ---------------------------------------------------------------------


@pytest.mark.essential
def test_we_read_the_checkpoints_of_a_broker(
    kafka_directory: KafkaDirectory, served: Served
) -> None:
    """After an orderly stop every log is flushed to its end (F-11), the marker tells an epoch."""
    for data in (kafka_directory.clean.path, served.adopted.left):
        files = LocalStorage()

        def offsets(name: str, data: Path = data) -> dict[TopicPartition, int]:
            return OffsetCheckpoint(str(data / name), LocalStorage()).read()

        marker = data / clean_shutdown.CLEAN_SHUTDOWN
        assert (
            clean_shutdown.read(str(marker), files) == json.loads(marker.read_text())["brokerEpoch"]
        )
        meta = MetaPropertiesFile(str(data / "meta.properties"), files).read()
        assert meta is not None
        assert meta.node_id == 1
        copy = served.adopted.left.parent / f"checked-{data.name}"
        shutil.copytree(data, copy)
        points, marks = offsets(RECOVERY_POINT), offsets(HIGH_WATERMARK)
        with reading.open_broker_directory(copy) as manager:
            assert set(points) == set(marks) == set(manager.logs)
            for where, log in manager.logs.items():
                assert points[where] == marks[where] == log.log_end_offset
                assert log.topic_id is not None
                assert log.epochs.entries or log.log_end_offset == 0


@pytest.mark.essential
def test_ours_are_what_the_broker_would_write(
    served: Served, kafka_directory: KafkaDirectory
) -> None:
    """Where we changed nothing our manager writes the numbers that it found."""
    for name in (RECOVERY_POINT, HIGH_WATERMARK, CLEANER_CHECKPOINT):
        before = OffsetCheckpoint(str(kafka_directory.clean.path / name), LocalStorage()).read()
        after = served.checkpoints[name]
        changed = {where.topic for where in before if before[where] != after.get(where)}
        assert changed <= {kafka_served.WRITTEN_ON, kafka_served.TRUNCATED}, name
        assert set(before) == set(after)
