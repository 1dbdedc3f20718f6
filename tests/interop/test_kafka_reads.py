"""Partition directories that this library wrote, judged by Kafka's own tools."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import kafka_tools
import our_logs as writers
import pytest
import reading
from kafka_logs import CODECS
from our_logs import TORN, OurLog, Writer

from logstore.format.reader import iter_batches

pytestmark = [pytest.mark.slow, pytest.mark.essential]

OurLogs = dict[str, OurLog]

FILE = re.compile(r"Dumping (?P<path>.+)$")
RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?P<type>CreateTime|LogAppendTime): (?P<timestamp>-?\d+) "
    r"keySize: (?P<key>-?\d+) valueSize: (?P<value>-?\d+) .*"
)
COMPLAINT = re.compile(r"Non-consecutive offsets in (?P<path>.+)$")
HOLE = re.compile(r"  (?P<last>-?\d+) is followed by (?P<first>\d+)$")
CONTROL = "endTxnMarker: "


def test_the_logs_are_not_trivial(our_logs: OurLogs) -> None:
    """What the other tests rely on: several segments, every kind of file, gaps, a moved start."""
    for log in our_logs.values():
        rolled = len(list(log.path.glob("*.log"))) - 1
        assert rolled >= 1 or log.topic == "our-empty", log.topic
        assert log.uncommitted or log.topic == "our-empty"
    suffixes = {path.suffix for log in our_logs.values() for path in log.path.iterdir()}
    assert suffixes >= {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".cut"}
    assert ".deleted" in {path.suffix for path in our_logs["our-killed"].path.iterdir()}
    assert our_logs["our-transactional"].committed != our_logs["our-transactional"].uncommitted
    assert our_logs["our-deleted"].log_start_offset % writers.BATCH_RECORDS > 0


def test_kafka_accepts_every_file(kafka: str, our_logs: OurLogs) -> None:
    """Batches and records, both sparse indexes entry by entry and their lookups, the transaction
    index and the producer snapshots; active segments too, after close (F-72 … F-139).

    Of a killed log only the torn write is found, which recovery cuts.
    """
    paths = reading.sorted_files((log.path for log in our_logs.values()), ".log", ".snapshot")
    assert len(paths) > 150
    active = sorted(our_logs["our-killed"].path.glob("*.log"))[-1]
    findings = kafka_tools.index_sanity(paths)
    assert findings == [f"{active}: Found {len(TORN)} invalid bytes at the end of {active.name}"]


def test_kafka_accepts_what_is_open_and_what_was_rebuilt(
    kafka: str, our_logs: OurLogs, tmp_path: Path
) -> None:
    """Rebuilt indexes have an entry a batch, not an append, and serve as well (F-133).

    A running log has preallocated indexes, zeros behind their entries (F-137), as Kafka's own has.
    Kafka's check sees the last slot of the active time index and would rebuild after a crash.
    """
    running = Writer(tmp_path, "our-running")
    for _ in range(15):
        running.append_batches(6)
    copy = tmp_path / "copied" / "our-running-0"
    shutil.copytree(tmp_path / "our-running-0", copy)
    running.close()
    rebuilt = []
    for topic in ("our-multi-batch", "our-transactional", "our-append-time"):
        directory = tmp_path / f"{topic}-0"
        shutil.copytree(our_logs[topic].path, directory)
        for index in reading.sorted_files([directory], ".index", ".timeindex", ".txnindex"):
            index.unlink()
        writer = Writer(tmp_path, topic)  # opened as after a clean stop: indexes are missed
        writer.close()
        rebuilt.append(directory)
    paths = reading.sorted_files([copy, *rebuilt], ".log", ".snapshot")
    findings = kafka_tools.index_sanity(paths)
    active = sorted(copy.glob("*.log"))[-1]
    assert len(findings) == 1, findings
    assert findings[0].startswith(f"{active}: ")
    assert f"{active.stem}.timeindex) has non-zero size but the last timestamp is 0" in findings[0]


def test_the_last_time_entry_is_the_largest_timestamp(our_logs: OurLogs) -> None:
    """A broker takes it for that at its start: without it, it would not find what is later (F-135,
    F-148). ``index_sanity`` looks at one segment at a time and cannot tell.
    """
    for log in (log for log in our_logs.values() if log.closed):
        for path in log.path.glob("*.log"):
            stamps = [batch.max_timestamp for batch in iter_batches(path.read_bytes())]
            if stamps:
                entry = path.with_suffix(".timeindex").read_bytes()[-12:]
                assert int.from_bytes(entry[:8], "big") == max(stamps), path


@dataclass(frozen=True, slots=True)
class Dumped:
    """What Kafka's dump tool prints of all logs in good order."""

    lines: dict[str, list[str]]
    """By topic."""
    complaints: list[tuple[str, int, int]]
    """Topic, and the last offset before and the first one after a hole in a file."""


@pytest.fixture(scope="module")
def dumped(kafka: str, our_logs: OurLogs) -> Dumped:
    paths = reading.sorted_files((log.path for log in our_logs.values() if log.closed), ".log")
    printed, _, complaints = kafka_tools.dump_log(paths).partition("stderr:\n")
    lines: dict[str, list[str]] = defaultdict(list)
    topic = ""
    for line in printed.split("\n"):
        if match := FILE.match(line):
            topic = _topic(match["path"])
        lines[topic].append(line)
    holes = []
    for line in complaints.splitlines():
        if match := COMPLAINT.match(line):
            topic = _topic(match["path"])
        elif match := HOLE.match(line):
            holes.append((topic, int(match["last"]), int(match["first"])))
        else:
            assert line == ""
    return Dumped(lines, holes)


def _topic(log: str) -> str:
    return Path(log).parent.name.rpartition("-")[0]


def _dumped_records(lines: list[str]) -> Iterator[tuple[int, str, int, int, int]]:
    for line in lines:
        match = RECORD.match(line)
        if match and CONTROL not in line:
            fields = (int(match[name]) for name in ("offset", "timestamp", "key", "value"))
            offset, timestamp, key, value = fields
            yield offset, match["type"], timestamp, key, value


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def test_the_dump_tool_prints_the_records(dumped: Dumped, our_logs: OurLogs) -> None:
    """With deep iteration. The tool knows no log start offset and prints deleted records too."""
    for log in our_logs.values():
        if not log.closed:
            continue
        lines = dumped.lines[log.topic]
        assert not [line for line in lines if "isvalid: false" in line]
        expected = [
            (r["offset"], r["timestampType"], r["timestamp"], _size(r["key"]), _size(r["value"]))
            for r in log.uncommitted
        ]
        found = [record for record in _dumped_records(lines) if record[0] >= log.log_start_offset]
        assert found == expected, log.topic


def test_the_dump_tool_sees_codecs_and_markers(dumped: Dumped) -> None:
    for codec in CODECS:
        assert any(
            f"compresscodec: {codec} " in line for line in dumped.lines[f"our-codec-{codec}"]
        )
    markers = [line for line in dumped.lines["our-transactional"] if CONTROL in line]
    assert any("endTxnMarker: COMMIT" in line for line in markers)
    assert any("endTxnMarker: ABORT" in line for line in markers)


def test_the_dump_tool_misses_no_offset(dumped: Dumped) -> None:
    """It has −1 for the offset before the first one of a file, and so complains of rolled ones.

    A cut inside a batch leaves no hole either: the log goes on where the batch began.
    """
    assert [complaint for complaint in dumped.complaints if complaint[1] >= 0] == []
