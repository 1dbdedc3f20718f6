"""The interoperability harness itself, before anything relies on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import kafka_jars
import kafka_logs
import kafka_tools
import pytest
from broker import CLEAN_SHUTDOWN, BrokerFailed, KafkaBroker
from kafka_logs import CODECS, COMPACTED, DELETED, SEGMENT_BYTES, TRANSACTIONAL, KafkaDirectory
from kafka_tools import CreateTopic, ProduceRecords

pytestmark = pytest.mark.kafka


def _of(topic: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records as if they were those of ``topic``."""
    return [record | {"topic": topic} for record in records]


def _partition_zero(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record["partition"] == 0]


# --- what is needed to run at all ---------------------------------------------------------------


@pytest.mark.parametrize("tool", ["java", "javac"])
def test_a_missing_jdk_makes_kafka_unavailable(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else which(name))
    for cached in (kafka_jars._tool, kafka_jars._check_java, kafka_jars.classpath):
        cached.cache_clear()
    with pytest.raises(kafka_jars.KafkaUnavailable, match=f"{tool} is not on PATH"):
        kafka_jars.classpath()


def test_a_missing_maven_matters_only_before_the_class_path_is_cached(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mvn" else which(name))
    for cached in (kafka_jars._tool, kafka_jars.classpath):
        cached.cache_clear()
    assert f"kafka-clients-{kafka}.jar" in kafka_jars.classpath()
    monkeypatch.setattr(kafka_jars, "CACHE", tmp_path)
    kafka_jars.classpath.cache_clear()
    with pytest.raises(kafka_jars.KafkaUnavailable, match="mvn is not on PATH"):
        kafka_jars.classpath()


def test_sources_that_do_not_compile_are_told(kafka: str, tmp_path: Path) -> None:
    source = tmp_path / "Broken.java"
    source.write_text("class Broken { int }")
    with pytest.raises(kafka_jars.JavaError, match=r"Broken\.java"):
        kafka_jars.compile_java([source])


# --- the broker ---------------------------------------------------------------------------------


def test_a_broker_that_cannot_start_names_its_log(kafka: str, tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path)
    broker.format()
    broken = KafkaBroker(tmp_path, overrides={"log.cleaner.threads": "none"})
    with pytest.raises(BrokerFailed, match=r"broker\.log"):
        broken.start()
    assert not broken.running


def test_a_taken_port_is_replaced(kafka: str, tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path)
    broker.format()
    address = broker.bootstrap
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        broker.start()
        try:
            assert broker.bootstrap != address
            kafka_tools.produce(broker.bootstrap, CreateTopic("t"), ProduceRecords("t", 1))
            assert len(kafka_tools.consume(broker.bootstrap, "t")) == 1
        finally:
            broker.kill()
    assert not broker.running


def test_a_broker_ends_with_the_process_that_started_it(kafka: str, tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from broker import KafkaBroker\n"
        "broker = KafkaBroker(Path(sys.argv[1]))\n"
        "broker.format()\n"
        "broker.start()\n"
        "print(broker._process.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    pid = int(result.stdout)
    deadline = time.monotonic() + 60
    while _alive(pid):
        assert time.monotonic() < deadline, f"broker {pid} outlived its parent"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    """Tell whether ``pid`` runs; an ended process that nobody waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_broker_serves_the_files_of_other_directories(
    kafka: str, kafka_directory: KafkaDirectory, tmp_path: Path
) -> None:
    """The procedure that will take our files, proved with Kafka's, clean and with recovery."""
    clean = kafka_directory.clean
    with KafkaBroker(tmp_path, overrides=kafka_logs.OVERRIDES) as broker:
        topics = ("adopted-lz4", "adopted-transactions", "adopted-gaps")
        sources = ("codec-lz4", TRANSACTIONAL, COMPACTED)
        kafka_tools.produce(broker.bootstrap, *(CreateTopic(topic) for topic in topics))
        with pytest.raises(BrokerFailed, match="must be stopped"):
            broker.adopt(topics[0], {0: tmp_path})
        for unclean in (False, True):
            broker.stop()
            for topic, source in zip(topics, sources, strict=True):
                broker.adopt(topic, {0: clean.partition_dir(source)}, unclean=unclean)
            if unclean:  # what recovery must make good
                index = next(iter(sorted(broker.partition_dir(topics[0]).glob("*.index"))))
                os.truncate(index, 0)
            broker.start()
            for committed in (False, True):
                read = kafka_tools.consume(broker.bootstrap, topics, read_committed=committed)
                expected = clean.committed if committed else clean.uncommitted
                for topic, source in zip(topics, sources, strict=True):
                    assert [record for record in read if record["topic"] == topic] == _of(
                        topic, _partition_zero(expected[source])
                    )
            if unclean:
                assert index.stat().st_size > 0
        kafka_tools.produce(broker.bootstrap, ProduceRecords(topics[0], 10))
        records = kafka_tools.consume(broker.bootstrap, topics[0])
        assert len(records) == len(clean.uncommitted["codec-lz4"]) + 10


# --- producer and consumer ----------------------------------------------------------------------


def test_a_step_writes_the_same_records_again(kafka: str, tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        fields: dict[str, Any] = {"headers": True, "null_keys": True, "null_values": True}
        kafka_tools.produce(
            broker.bootstrap,
            *(CreateTopic(topic) for topic in ("a", "b", "c")),
            ProduceRecords("a", 50, seed=1, codec="gzip", **fields),
            ProduceRecords("b", 50, seed=1, **fields),
            ProduceRecords("c", 50, seed=2, **fields),
        )
        first, same, other = (kafka_tools.consume(broker.bootstrap, topic) for topic in "abc")
    assert first == _of("a", same)
    assert [record["value"] for record in first] != [record["value"] for record in other]
    assert any(record["key"] is None for record in first)
    assert any(record["value"] is None for record in first)
    headers = [header for record in first for header in record["headers"]]
    assert ("h", None) in headers
    assert ("h", b"") in headers
    assert {name for name, _ in headers} == {"h", "naïve-ключ"}


def test_only_the_last_transaction_may_stay_open() -> None:
    with pytest.raises(ValueError, match="may stay open"):
        ProduceRecords("t", 1, idempotent=True, outcomes="OC", transactional_id="t")
    with pytest.raises(ValueError, match="transactional_id"):
        ProduceRecords("t", 1, outcomes="C")


# --- the directory for comparisons --------------------------------------------------------------


def test_the_directory_has_what_it_says(kafka_directory: KafkaDirectory) -> None:
    clean, killed = kafka_directory.clean, kafka_directory.killed
    assert (clean.path / CLEAN_SHUTDOWN).exists()
    assert not (killed.path / CLEAN_SHUTDOWN).exists()
    for topic, records in clean.uncommitted.items():
        later = killed.uncommitted[topic]
        if topic == "empty":
            assert records == later == []
            continue
        assert len(list(clean.partition_dir(topic).glob("*.log"))) >= 3, topic
        assert len(later) > len(records), topic
        if topic not in (COMPACTED, DELETED, TRANSACTIONAL):
            assert later[: len(records)] == records
            assert clean.committed[topic] == records
    assert {record["timestampType"] for record in clean.uncommitted["append-time"]} == {
        "LogAppendTime"
    }
    offsets = [record["offset"] for record in clean.uncommitted[COMPACTED]]
    assert len(offsets) < offsets[-1] - offsets[0] + 1
    assert clean.uncommitted[DELETED][0]["offset"] > 0
    for each in (clean, killed):
        first = each.uncommitted[DELETED][0]["offset"]
        assert not (each.partition_dir(DELETED) / f"{first:020}.log").exists()


def test_the_directory_has_transactions_of_each_outcome(kafka_directory: KafkaDirectory) -> None:
    for each in (kafka_directory.clean, kafka_directory.killed):
        committed = {
            (record["partition"], record["offset"]) for record in each.committed[TRANSACTIONAL]
        }
        withheld = [
            (record["partition"], record["offset"])
            for record in each.uncommitted[TRANSACTIONAL]
            if (record["partition"], record["offset"]) not in committed
        ]
        assert any(offset < max(committed)[1] for partition, offset in withheld if partition == 0)
        assert any(offset > max(committed)[1] for partition, offset in withheld if partition == 0)
        assert not any(partition == 1 for partition, _ in committed)


@pytest.mark.parametrize("codec", CODECS)
def test_the_dump_tool_sees_the_codec(codec: str, kafka_directory: KafkaDirectory) -> None:
    logs = sorted(kafka_directory.clean.partition_dir(f"codec-{codec}").glob("*.log"))
    text = kafka_tools.dump_log(logs)
    assert f"compresscodec: {codec} " in text
    assert "| offset: 0 CreateTime: 1700100000000 " in text
    batches = kafka_tools.dump_log(logs, deep=False)
    assert f"compresscodec: {codec} " in batches
    assert "| offset: " not in batches


# --- Kafka's judgement of indexes ---------------------------------------------------------------


def test_kafka_accepts_its_own_indexes(kafka_directory: KafkaDirectory) -> None:
    paths = [
        path
        for path in sorted(kafka_directory.clean.path.glob("*/*"))
        if path.suffix in (".log", ".snapshot") and path.parent.name != "__cluster_metadata-0"
    ]
    assert len(paths) > 40
    assert kafka_tools.index_sanity(paths) == []


@pytest.fixture
def segment(kafka_directory: KafkaDirectory, tmp_path: Path) -> Path:
    """Return a segment with entries in all of its indexes, to be spoilt."""
    source = kafka_directory.clean.partition_dir(TRANSACTIONAL)
    target = tmp_path / source.name
    shutil.copytree(source, target)
    logs = sorted(target.glob("*.log"), key=lambda log: log.stat().st_size)
    return next(log for log in reversed(logs) if log.with_suffix(".txnindex").exists())


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.write_bytes(data)


FLIPPED = (
    (".log", -1),  # a record's last byte: the CRC
    (".log", 7),  # base offset, which no CRC covers
    (".index", -1),  # position of the last entry
    (".index", 3),  # offset of the first entry
    (".timeindex", 7),  # timestamp of the first entry
    (".timeindex", -1),  # offset of the last entry
    (".txnindex", 0),  # version
    (".txnindex", 9),  # producer id
    (".txnindex", 25),  # last offset
)


def test_a_flipped_bit_is_found(segment: Path, tmp_path: Path) -> None:
    """Each in a copy of its own; one call for all, since each costs a JVM."""
    copies = []
    for number, (suffix, position) in enumerate(FLIPPED):
        copy = tmp_path / f"flipped-{number}"
        copy.mkdir()
        for path in segment.parent.glob(f"{segment.stem}.*"):
            shutil.copy2(path, copy)
        copies.append(copy / segment.name)
        _flip(copies[-1].with_suffix(suffix), position)
    findings = kafka_tools.index_sanity([segment, *copies])
    for flipped, copy in zip(FLIPPED, copies, strict=True):
        assert any(finding.startswith(f"{copy}: ") for finding in findings), flipped
    assert not any(finding.startswith(f"{segment}: ") for finding in findings)


def test_torn_and_missing_files_are_found(segment: Path) -> None:
    index, log = segment.with_suffix(".index"), segment
    before = {path.name: path.read_bytes() for path in segment.parent.iterdir()}
    os.truncate(index, index.stat().st_size - 3)
    assert kafka_tools.index_sanity([log])
    index.unlink()
    assert kafka_tools.index_sanity([log]) == [f"{log}: no {index.name}"]
    assert not index.exists(), "the check made the index that it missed"
    index.write_bytes(before[index.name])
    os.truncate(log, log.stat().st_size - 3)
    assert kafka_tools.index_sanity([log])
    log.write_bytes(before[log.name])
    assert kafka_tools.index_sanity([log]) == []
    assert {path.name: path.read_bytes() for path in segment.parent.iterdir()} == before


def test_a_snapshot_with_a_wrong_checksum_is_found(segment: Path) -> None:
    snapshot = max(segment.parent.glob("*.snapshot"), key=lambda path: path.stat().st_size)
    assert kafka_tools.index_sanity([snapshot]) == []
    _flip(snapshot, -1)
    assert kafka_tools.index_sanity([snapshot])


# --- the benchmark of Kafka's classes -----------------------------------------------------------


@pytest.fixture(scope="module")
def harness(kafka: str) -> ModuleType:
    """Return ``bench/kafka/harness.py``, which is no part of a package."""
    namespace = ModuleType("kafka_bench_harness")
    path = kafka_jars.ROOT / "bench" / "kafka" / "harness.py"
    namespace.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), namespace.__dict__)
    return namespace


def test_the_benchmark_generates_what_kafka_accepts(harness: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "00000000000000000000.log"
    assert harness.generate(log, 7, 200_000, idempotent=True)["bytes"] == log.stat().st_size
    before = log.read_bytes()
    result = harness.recover(log, runs=2, warmups=1, scratch=tmp_path)
    assert result["bytes"] == len(before)
    assert len(result["seconds"]) == 2
    assert result["best_mb_per_s"] >= result["median_mb_per_s"] > 0
    assert log.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [log.name]
    assert "isvalid: false" not in kafka_tools.dump_log([log], deep=False)


@pytest.mark.parametrize("workload", ["append", "append_leader", "rawwrite"])
def test_the_benchmark_appends(harness: ModuleType, tmp_path: Path, workload: str) -> None:
    result = getattr(harness, workload)(10, 100_000, runs=2, warmups=1, scratch=tmp_path)
    assert result["engine"] == f"kafka {kafka_jars.kafka_version()}"
    assert result["batch_records"] == 10
    assert result["calls"] > 50
    assert list(tmp_path.iterdir()) == []


def test_the_benchmark_loads_a_log_directory(
    harness: ModuleType, kafka_directory: KafkaDirectory, tmp_path: Path
) -> None:
    for each in (kafka_directory.clean, kafka_directory.killed):
        result = harness.load(each.path, runs=1, warmups=0, scratch=tmp_path)
        partitions = [path for path in each.path.iterdir() if path.is_dir()]
        assert result["logs"] == len(partitions) - 1  # all but the controller's
        assert result["bytes"] > 12 * SEGMENT_BYTES
