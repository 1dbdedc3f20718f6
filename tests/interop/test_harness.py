"""What the other tests here rely on: the broker, its directory, Kafka's judgement of indexes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import kafka_jars
import kafka_tools
import psutil
import pytest
from broker import CLEAN_SHUTDOWN, BrokerFailed, KafkaBroker
from kafka_logs import COMPACTED, DELETED, SEGMENT_BYTES, TRANSACTIONAL, KafkaDirectory
from kafka_tools import CreateTopic, ProduceRecords

from tests.support.until import patience, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("tool", ["java", "javac", "mvn"])
def test_a_missing_tool_makes_kafka_unavailable(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else which(name))
    monkeypatch.setattr(kafka_jars, "CACHE", tmp_path)  # Maven is not asked for what is cached
    caches = (kafka_jars._tool, kafka_jars._check_java, kafka_jars.classpath)
    for cached in caches:
        cached.cache_clear()
    with pytest.raises(kafka_jars.KafkaUnavailable, match=f"{tool} is not on PATH"):
        kafka_jars.classpath()
    for cached in caches:
        cached.cache_clear()


# --- the broker ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_broker_that_cannot_start_names_its_log_and_a_taken_port_is_replaced(
    kafka: str, tmp_path: Path
) -> None:
    broker = KafkaBroker(tmp_path)
    broker.format()
    broken = KafkaBroker(tmp_path, overrides={"log.cleaner.threads": "none"})
    with pytest.raises(BrokerFailed, match=r"broker\.log"):
        broken.start()
    assert not broken.running
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


@pytest.mark.long
def test_a_broker_ends_with_the_process_that_started_it(kafka: str, tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        f"sys.path[:0] = [{str(kafka_jars.ROOT)!r}, {str(Path(__file__).parent)!r}]\n"
        "from pathlib import Path\n"
        "from broker import KafkaBroker\n"
        "broker = KafkaBroker(Path(sys.argv[1]))\n"
        "broker.__enter__()\n"
        "print(broker.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=2 * patience()
    )
    until(lambda: not _is_alive(int(result.stdout)), "the broker ends")


def _is_alive(pid: int) -> bool:
    """An ended process that nobody waited for is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- the directory for comparisons --------------------------------------------------------------


@pytest.mark.essential
def test_the_directory_has_what_it_says(kafka_directory: KafkaDirectory) -> None:
    clean = kafka_directory.clean
    assert (clean.path / CLEAN_SHUTDOWN).exists()
    for topic, records in clean.uncommitted.items():
        if topic == "empty":
            assert records == []
            continue
        assert len(list(clean.partition_dir(topic).glob("*.log"))) >= 3, topic
        if topic != TRANSACTIONAL:
            assert clean.committed[topic] == records
    times = {record["timestampType"] for record in clean.uncommitted["append-time"]}
    assert times == {"LogAppendTime"}
    offsets = [record["offset"] for record in clean.uncommitted[COMPACTED]]
    assert len(offsets) < offsets[-1] - offsets[0] + 1
    first = clean.uncommitted[DELETED][0]["offset"]
    assert first > 0
    assert not (clean.partition_dir(DELETED) / f"{first:020}.log").exists()

    committed = {(r["partition"], r["offset"]) for r in clean.committed[TRANSACTIONAL]}
    uncommitted = {(r["partition"], r["offset"]) for r in clean.uncommitted[TRANSACTIONAL]}
    withheld = {offset for partition, offset in uncommitted - committed if partition == 0}
    assert min(withheld) < max(committed)[1] < max(withheld)
    assert not any(partition == 1 for partition, _ in committed)


def test_the_killed_half_has_more_of_everything(kafka_directory: KafkaDirectory) -> None:
    clean, killed = kafka_directory.clean, kafka_directory.killed
    assert not (killed.path / CLEAN_SHUTDOWN).exists()
    for topic, records in clean.uncommitted.items():
        later = killed.uncommitted[topic]
        assert len(later) > len(records) or topic == "empty", topic
        if topic not in (COMPACTED, DELETED, TRANSACTIONAL):
            assert later[: len(records)] == records


# --- Kafka's judgement of indexes ---------------------------------------------------------------

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


@pytest.mark.essential
def test_what_is_wrong_is_found_and_nothing_else(
    kafka_directory: KafkaDirectory, tmp_path: Path
) -> None:
    """Each fault in a copy of its own; one call for all, since each costs a JVM."""
    sound = [
        path
        for path in sorted(kafka_directory.clean.path.glob("*/*"))
        if path.suffix in (".log", ".snapshot") and path.parent.name != "__cluster_metadata-0"
    ]
    assert len(sound) > 40
    source = kafka_directory.clean.partition_dir(TRANSACTIONAL)
    segment = max(
        (log for log in source.glob("*.log") if log.with_suffix(".txnindex").exists()),
        key=lambda log: log.stat().st_size,
    )

    def copied(name: str) -> Path:
        copy = tmp_path / name
        copy.mkdir()
        for path in source.glob(f"{segment.stem}.*"):
            shutil.copy2(path, copy)
        return copy / segment.name

    spoilt = []
    for suffix, position in FLIPPED:
        spoilt.append(copied(f"flipped{suffix}{position}"))
        _flip(spoilt[-1].with_suffix(suffix), position)
    for suffix in (".index", ".log"):
        spoilt.append(copied(f"torn{suffix}"))
        path = spoilt[-1].with_suffix(suffix)
        os.truncate(path, path.stat().st_size - 3)
    missing = copied("missing")
    missing.with_suffix(".index").unlink()
    snapshot = max(source.glob("*.snapshot"), key=lambda path: path.stat().st_size)
    spoilt.append(Path(shutil.copy2(snapshot, tmp_path)))
    _flip(spoilt[-1], -1)

    findings = kafka_tools.index_sanity([*sound, *spoilt, missing])
    for path in spoilt:
        assert any(finding.startswith(f"{path}: ") for finding in findings), path
    assert f"{missing}: no {segment.stem}.index" in findings
    assert not missing.with_suffix(".index").exists(), "the check made the index that it missed"
    assert not [each for each in findings if not each.startswith(f"{tmp_path}")]


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.write_bytes(data)


# --- the benchmark of Kafka's classes -----------------------------------------------------------


@pytest.mark.long
def test_the_benchmark_runs(kafka_directory: KafkaDirectory, tmp_path: Path) -> None:
    """``bench/kafka/harness.py``, which is no part of a package, in its smallest setting."""
    harness = ModuleType("kafka_bench_harness")
    path = kafka_jars.ROOT / "bench" / "kafka" / "harness.py"
    harness.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), harness.__dict__)

    log = tmp_path / f"{0:020}.log"
    assert harness.generate(log, 7, 200_000, idempotent=True)["bytes"] == log.stat().st_size
    before = log.read_bytes()
    result = harness.recover(log, runs=2, warmups=1, scratch=tmp_path)
    assert result["bytes"] == len(before)
    assert len(result["seconds"]) == 2
    assert result["best_mb_per_s"] >= result["median_mb_per_s"] > 0
    assert log.read_bytes() == before
    assert "isvalid: false" not in kafka_tools.dump_log([log], deep=False)
    for workload in (harness.append, harness.append_leader, harness.rawwrite):
        result = workload(10, 100_000, runs=2, warmups=1, scratch=tmp_path)
        assert result["engine"] == f"kafka {kafka_jars.kafka_version()}"
        assert result["batch_records"] == 10
        assert result["calls"] > 50
    clean = kafka_directory.clean.path
    result = harness.load(clean, runs=1, warmups=0, scratch=tmp_path)
    partitions = [path for path in clean.iterdir() if path.is_dir()]
    assert result["logs"] == len(partitions) - 1  # all but the controller's
    assert result["bytes"] > 12 * SEGMENT_BYTES
    assert [each.name for each in tmp_path.iterdir()] == [log.name]
