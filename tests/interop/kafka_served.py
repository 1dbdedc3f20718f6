"""Two lives of one broker on files that this library wrote or changed.

Each start of a broker costs seconds, so all that is asked of one is gathered in one go.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import kafka_logs
import kafka_tools
import reading
from broker import RECOVERY_POINTS, KafkaBroker
from kafka_logs import KafkaDirectory, LogDirectory
from kafka_tools import ProduceRecords
from our_logs import BATCH_RECORDS, OurLog
from reading import RecordFields

from checkpoints.offset_checkpoint import LOG_START, OffsetCheckpoint
from logstore import Record, TopicPartition
from logstore.storage.local import LocalStorage

APPENDED = 20
"""Records that the broker adds to each of our logs in each life."""

WRITTEN_ON = "codec-none"
DELETED_ON = "jitter"
TRUNCATED = "headers"
TRUNCATED_BY = 100
RECOVERED_FROM = "our-codec-none"
"""The topic for which the broker finds a recovery point of ours after an unclean stop."""


@dataclass(slots=True)
class Life:
    """From a start of the broker to its orderly stop."""

    uncommitted: dict[str, list[RecordFields]] = field(default_factory=dict)
    committed: dict[str, list[RecordFields]] = field(default_factory=dict)
    log: str = ""
    """What the broker told."""
    left: Path = Path()
    """A copy of its log directory after the stop."""
    answers: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    """Look-ups by time, see ``kafka_tools.look_up``."""


@dataclass
class Served:
    adopted: Life
    """On a broker's own directory that our ``LogManager`` opened, changed and closed, with our
    partition directories put in."""
    expected: dict[str, list[RecordFields]]
    """Uncommitted records of the broker's own topics, which our manager changed."""
    checkpoints: dict[str, dict[TopicPartition, int]]
    """What our manager left in the checkpoint files, by name."""
    _broker: KafkaBroker
    _logs: Mapping[str, OurLog]

    recovery_point = 40 * BATCH_RECORDS
    """That of ``RECOVERED_FROM`` in the second life."""

    @functools.cached_property
    def recovered(self) -> Life:
        """On our partition directories and one that a kill left, without the marker of a clean
        stop; only if it is asked for."""
        _adopt(self._broker, list(self._logs.values()), recovery_point=self.recovery_point)
        life = Life()
        try:
            _live(self._broker, life, sorted(self._logs), sorted(self._logs), "recovered")
        finally:
            self._broker.kill()
        return life


def _change_as_manager(data: Path, before: LogDirectory) -> dict[str, list[RecordFields]]:
    """Append, delete and truncate in a broker's directory; what a consumer must read then."""
    expected = dict(before.uncommitted)
    with reading.open_broker_directory(data) as manager:
        log = manager.get(WRITTEN_ON, 0)
        for _ in range(30):
            log.append([Record(0, 1_700_000_000_000, b"k", b"v" * 100, [("h", None)])] * 10)
        expected[WRITTEN_ON] = reading.read_log(log)
        assert expected[WRITTEN_ON][: -30 * 10] == before.uncommitted[WRITTEN_ON]

        log = manager.get(DELETED_ON, 0)
        start = log.delete_records(log.segments[2].base_offset + 7)
        log.maintenance.delete_old_segments()
        expected[DELETED_ON] = [r for r in expected[DELETED_ON] if r["offset"] >= start]

        where = TopicPartition(TRUNCATED, 0)
        manager.truncate_to({where: manager.get(*where).log_end_offset - TRUNCATED_BY})
        expected[TRUNCATED] = reading.read_log(manager.get(*where))
        assert expected[TRUNCATED] == before.uncommitted[TRUNCATED][: len(expected[TRUNCATED])]
    return expected


def _checkpoints(data: Path) -> dict[str, dict[TopicPartition, int]]:
    return {
        path.name: OffsetCheckpoint(str(path), LocalStorage()).read()
        for path in data.glob("*-offset-checkpoint")
    }


def _questions(records: Mapping[str, list[RecordFields]]) -> list[tuple[str, int, int]]:
    questions: list[tuple[str, int, int]] = []
    for topic, found in records.items():
        times = sorted({record["timestamp"] for record in found if record["partition"] == 0})
        asked = {-1, -2, -3, 0, 2**62, *times[:: max(1, len(times) // 20)], *times[-1:]}
        questions += [(topic, 0, timestamp) for timestamp in sorted(asked)]
    return questions


def _consume(broker: KafkaBroker, life: Life, topics: list[str]) -> None:
    for committed, target in ((False, life.uncommitted), (True, life.committed)):
        target.update({topic: [] for topic in topics})
        for record in kafka_tools.consume(broker.bootstrap, topics, read_committed=committed):
            target[record["topic"]].append(record)
        for records in target.values():
            records.sort(key=lambda record: (record["partition"], record["offset"]))


def _checkpoint(broker: KafkaBroker, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    checkpoint = OffsetCheckpoint(str(broker.log_dir / name), LocalStorage())
    checkpoint.write(checkpoint.read() | offsets)


def _adopt(broker: KafkaBroker, logs: list[OurLog], *, recovery_point: int = -1) -> None:
    """Put our directories in. The recovery point makes it unclean.

    The log start offset is no part of a partition directory, so the checkpoint goes with it (F-12).
    """
    for log in logs:
        broker.adopt(log.topic, {0: log.path}, unclean=recovery_point >= 0)
    starts = {TopicPartition(log.topic, 0): log.log_start_offset for log in logs}
    _checkpoint(broker, LOG_START, starts)
    if recovery_point >= 0:
        point = {TopicPartition(RECOVERED_FROM, 0): recovery_point}
        _checkpoint(broker, RECOVERY_POINTS, point)


def _live(
    broker: KafkaBroker,
    life: Life,
    topics: list[str],
    ours: list[str],
    name: str,
    questions: Sequence[tuple[str, int, int]] = (),
) -> None:
    """Start, append to our logs, read all, answer questions, stop."""
    broker.start()
    kafka_tools.produce(
        broker.bootstrap, *(ProduceRecords(topic, APPENDED, idempotent=True) for topic in ours)
    )
    _consume(broker, life, topics)
    if questions:
        answers = kafka_tools.look_up(broker.bootstrap, questions)
        life.answers = dict(zip(questions, answers, strict=True))
    broker.stop()
    life.log = broker.log_file.read_text(errors="replace")
    broker.log_file.unlink()
    life.left = shutil.copytree(broker.log_dir, broker.directory.parent / name)


def build(directory: Path, kafka: KafkaDirectory, logs: Mapping[str, OurLog]) -> Served:
    """Run the broker below ``directory``; a quarter of a minute."""
    broker = KafkaBroker(directory / "broker", overrides=kafka_logs.OVERRIDES)
    shutil.copytree(kafka.clean.path, broker.log_dir)
    expected = _change_as_manager(broker.log_dir, kafka.clean)
    checkpoints = _checkpoints(broker.log_dir)
    closed = [log for log in logs.values() if log.closed]
    _adopt(broker, closed)
    life, ours = Life(), [log.topic for log in closed]
    try:
        _live(broker, life, [*sorted(expected), *ours], ours, "adopted", _questions(expected))
    finally:
        broker.kill()
    return Served(life, expected, checkpoints, broker, logs)
