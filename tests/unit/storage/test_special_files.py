"""What is no regular file, or too large for its format, under each name of a log directory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore import DirectoryReader, LogConfig, LogManager, PartitionLog
from logstore.cli.records.reading import PartitionReader
from logstore.common.errors import LogstoreError, LogUnavailableError
from logstore.common.types import TopicPartition
from logstore.directory.layout import LogDirFiles
from logstore.directory.transactions import aborted_transactions
from logstore.manager import ManagerOwner
from tests.support.cases import for_each
from tests.support.leftovers import nothing_left

SPARSE = 408 * (26 << 20)  # whole entries of every index
LOG = f"{0:020}.log"
ROLL = f"{60:020}.log.swap"
LAST_SNAPSHOT = f"{40:020}.snapshot"
CONFIG = LogConfig(index_interval_bytes=100, segment_bytes=1500)
T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


def _socket(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)  # an address has 107 bytes
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "directory": lambda path: path.mkdir(),
    "sparse": _sparse,
    "empty": lambda path: path.touch(),
}
IRREGULAR = ("fifo", "socket", "zeros", "dangling", "directory")

SERVED = "served"
UNAVAILABLE = "unavailable"
OFFLINE = "offline"

# What becomes of the log ``t-0``, by name: when the name leads to no regular file, to a directory,
# to a sparse file of 10 GiB, or to nothing but an empty file.
OF_PARTITION = {
    LOG: (UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, SERVED),
    f"{LOG}.swap": (UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, SERVED),
    ROLL: (UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, SERVED),
    f"{20:020}.log.cleaned": (SERVED, SERVED, UNAVAILABLE, SERVED),
    f"{LOG}.deleted": (SERVED, SERVED, SERVED, SERVED),
    f"{LOG}.100.cut": (SERVED, SERVED, SERVED, SERVED),
    f"{LOG}.100.cut.tmp": (SERVED, SERVED, SERVED, SERVED),
    f"{0:020}.index": (SERVED, SERVED, SERVED, SERVED),
    f"{0:020}.timeindex": (SERVED, SERVED, SERVED, SERVED),
    f"{0:020}.txnindex": (SERVED, SERVED, SERVED, SERVED),
    f"{40:020}.index": (SERVED, SERVED, SERVED, SERVED),
    f"{40:020}.timeindex": (SERVED, SERVED, SERVED, SERVED),
    LAST_SNAPSHOT: (SERVED, SERVED, SERVED, SERVED),
    "leader-epoch-checkpoint": (SERVED, SERVED, SERVED, SERVED),
    "leader-epoch-checkpoint.tmp": (SERVED, SERVED, SERVED, SERVED),
    "partition.metadata": (UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE),
    "topic.properties": (UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE),
    "clean-stop": (SERVED, SERVED, SERVED, SERVED),
    "somebody.else": (SERVED, SERVED, SERVED, SERVED),
}
OF_DIRECTORY = {
    "recovery-point-offset-checkpoint": (SERVED, SERVED, SERVED, SERVED),
    "recovery-point-offset-checkpoint.tmp": (SERVED, SERVED, SERVED, SERVED),
    "log-start-offset-checkpoint": (SERVED, SERVED, SERVED, SERVED),
    "replication-offset-checkpoint": (SERVED, SERVED, SERVED, SERVED),
    "cleaner-offset-checkpoint": (SERVED, SERVED, SERVED, SERVED),
    "meta.properties": (OFFLINE, OFFLINE, OFFLINE, OFFLINE),
    "meta.properties.tmp": (SERVED, SERVED, SERVED, SERVED),
    ".kafka_cleanshutdown": (SERVED, SERVED, SERVED, SERVED),
    ".kafka_cleanshutdown.tmp": (SERVED, SERVED, SERVED, SERVED),
    ".lock": (OFFLINE, OFFLINE, SERVED, SERVED),
    "somebody.else": (SERVED, SERVED, SERVED, SERVED),
}


@contextmanager
def within_10_s() -> Iterator[None]:
    def expired(*_: object) -> None:
        raise TimeoutError("10 s are over")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(10)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "logs"
    with LogManager([path], CONFIG, background=False) as manager:
        for topic in ("t", "u"):
            (log,) = manager.create_topic(topic, 1, {"segment.bytes": "1500"})
            fill(log)
    assert (path / "t-0" / f"{40:020}.timeindex").exists()
    assert (path / "t-0" / LAST_SNAPSHOT).exists()
    return path


def copied(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "logs"))


@pytest.fixture
def logs(template: Path, tmp_path: Path) -> Path:
    return copied(template, tmp_path)


def fill(log: PartitionLog) -> None:
    for at in range(60):
        log.append([(b"key", b"%050d" % at, 1_000 + at)])
        if at in (19, 39):
            log.roll()


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


def plant(path: Path, kind: str) -> None:
    if path.exists():
        path.unlink()
    KINDS[kind](path)


def outcome(row: tuple[str, str, str, str], kind: str) -> str:
    at = {"directory": 1, "sparse": 2, "empty": 3}.get(kind, 0)
    return row[at]


def start(path: Path) -> LogManager:
    return LogManager([path], CONFIG, background=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "clean"), [*((kind, True) for kind in KINDS), ("fifo", False), ("sparse", False)]
)
@for_each("name", OF_PARTITION, at_once=10)
@within_10_s()
def test_in_a_partition(template: Path, tmp_path: Path, name: str, kind: str, clean: bool) -> None:
    logs = copied(template, tmp_path)
    expected = outcome(OF_PARTITION[name], kind)
    place = logs / "t-0" / name
    plant(place, kind)
    if not clean:
        (logs / ".kafka_cleanshutdown").unlink()
    with nothing_left(logs):
        for _ in range(2):
            with start(logs) as manager:
                assert manager.live_directories == [str(logs)]
                assert len(values(manager.get(*U0))) == 60
                if expected == UNAVAILABLE:
                    error = manager.unavailable_logs[T0]
                    assert name in str(error)
                    with pytest.raises(LogUnavailableError, match="t-0"):
                        manager.get(*T0)
                else:
                    assert manager.unavailable_logs == {}
                    log = manager.get(*T0)
                    gone = 12 if name == LOG else 0
                    assert len(values(log)) == 60 - gone
                    found = log.offset_for_timestamp(1_045)
                    assert found is not None
                    assert found.offset == 45
                    log.append([(b"key", b"more")])
                    log.truncate_to(60)
                    log.roll()
                    log.truncate_to(60)
            assert (logs / ".kafka_cleanshutdown").exists() == (expected == SERVED)
            if expected == UNAVAILABLE:
                assert os.path.lexists(place)
                entries = (logs / "recovery-point-offset-checkpoint").read_text().splitlines()
                assert "t 0 60" in entries
    if kind in IRREGULAR and expected == SERVED:
        left = [path.name for path in (logs / "t-0").iterdir()]
        assert (name if name.endswith((".else", ".cut")) else f"{name}.aside") in left


@within_10_s()
def test_a_directory_that_is_as_large_as_what_is_cut(logs: Path) -> None:
    last = max((logs / "t-0").glob("*.log"))
    whole = last.read_bytes()
    taken = Path(f"{last}.{len(whole)}.cut")
    taken.mkdir()
    tail = (b"\xee" * 30 + whole).ljust(taken.stat().st_size, b"\xee")[: taken.stat().st_size]
    last.write_bytes(whole + tail)
    (logs / ".kafka_cleanshutdown").unlink()
    with start(logs) as manager:
        assert manager.unavailable_logs == {}
        assert len(values(manager.get(*T0))) == 60
    assert taken.is_dir()
    assert Path(f"{last}.{len(whole)}.1.cut").read_bytes() == tail


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@for_each("name", OF_DIRECTORY)
@within_10_s()
def test_in_a_log_directory(template: Path, tmp_path: Path, name: str, kind: str) -> None:
    logs = copied(template, tmp_path)
    expected = outcome(OF_DIRECTORY[name], kind)
    plant(logs / name, kind)
    with nothing_left(logs):
        for _ in range(2):
            with LogManager([logs, tmp_path / "other"], CONFIG, background=False) as manager:
                if expected == OFFLINE:
                    assert manager.live_directories == [str(tmp_path / "other")]
                    (error,) = manager.offline_directories.values()
                    assert name in str(error)
                    continue
                assert str(logs) in manager.live_directories
                assert len(values(manager.get(*T0))) == 60
                log = manager.get(*U0)
                log.append([(b"key", b"more")])
                log.delete_records(log.log_end_offset - 1)
                log.flush()
                manager.housekeeper.checkpoint_recovery_points()
                manager.housekeeper.checkpoint_log_start_offsets()
                manager.housekeeper.checkpoint_high_watermarks()
                assert str(logs) in manager.live_directories
        if expected == OFFLINE:
            assert os.path.lexists(logs / name)
        else:
            written = (logs / "recovery-point-offset-checkpoint").read_text().splitlines()
            assert "u 0 62" in written
            assert (logs / ".kafka_cleanshutdown").is_file()
            aside = name if name == "somebody.else" else f"{name}.aside"
            assert kind not in IRREGULAR or os.path.lexists(logs / aside)


@within_10_s()
def test_a_partition_whose_link_leads_nowhere_is_unavailable(logs: Path, tmp_path: Path) -> None:
    """The disk that has it may come back: what the checkpoints say of it must be there then."""
    place, away = logs / "t-0", tmp_path / "mount" / "t-0"
    with start(logs) as manager:
        manager.get(*T0).delete_records(7)
    away.parent.mkdir()
    shutil.move(place, away)
    place.symlink_to(away)
    away.parent.rename(tmp_path / "unmounted")
    with start(logs) as manager:
        assert list(manager.logs) == [U0]
        assert "leads nowhere" in str(manager.unavailable_logs[T0])
        with pytest.raises(LogUnavailableError):
            manager.get_or_create(*T0)
    assert not (logs / ".kafka_cleanshutdown").exists()
    (tmp_path / "unmounted").rename(away.parent)
    with start(logs) as manager:
        log = manager.get(*T0)
        assert (log.log_start_offset, log.log_end_offset) == (7, 60)
        assert manager.unavailable_logs == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "directory", "sparse", "empty"])
@for_each("name", OF_PARTITION)
@within_10_s()
def test_in_a_log_that_is_opened_alone(
    template: Path, tmp_path: Path, name: str, kind: str
) -> None:
    logs = copied(template, tmp_path)
    expected = outcome(OF_PARTITION[name], kind)
    if name == "topic.properties" and kind in ("sparse", "empty"):
        expected = SERVED  # a log alone has no configuration on file
    plant(logs / "t-0" / name, kind)
    with nothing_left(logs):
        for _ in range(2):
            if expected == UNAVAILABLE:
                with pytest.raises(Exception) as error:
                    PartitionLog.open(logs / "t-0", CONFIG)
                assert name in str(error.value)
                assert type(error.value).__name__ in (
                    "CorruptDataError",
                    "CorruptBatchError",
                    "MalformedCheckpointError",
                )
            else:
                with PartitionLog.open(logs / "t-0", CONFIG) as log:
                    assert len(values(log)) == (48 if name == LOG else 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "dangling", "sparse"])
@for_each("name", [name for name in OF_PARTITION if name[0] == "0"])
@within_10_s()
def test_under_a_reader_of_the_directory(
    template: Path, tmp_path: Path, name: str, kind: str
) -> None:
    logs = copied(template, tmp_path)
    plant(logs / "t-0" / name, kind)
    with nothing_left(logs):
        reader = DirectoryReader(logs / "t-0")
        problem, records = "", []
        try:
            records = list(reader.follow(12 if name == LOG else None, timeout=0))
            assert reader.log_end_offset == 60
        except LogstoreError as error:
            problem = str(error)
        assert len(records) in (48, 60) or (name in (LOG, ROLL) and name in problem)


@within_10_s()
@pytest.mark.parametrize("kind", ["fifo", "dangling", "directory"])
@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex"])
def test_under_what_reads_the_directory(logs: Path, suffix: str, kind: str) -> None:
    """An index that is no file is a missing one."""
    plant(logs / "t-0" / f"{20:020}.{suffix}", kind)
    reader = PartitionReader(LogDirFiles(str(logs)), T0, pytest.fail)
    assert reader.first_at(1_025) == 25
    assert sum(map(len, reader.chunks())) == 60
    assert len(list(DirectoryReader(logs / "t-0").follow(timeout=0))) == 60
    assert aborted_transactions(reader.layout) == []


@within_10_s()
@pytest.mark.parametrize("kind", ["fifo", "dangling", "directory"])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_under_a_log_in_use(logs: Path, suffix: str, kind: str) -> None:
    """Lookups walk the log; the index is made anew beside what took its place."""
    name = f"{0:020}.{suffix}"
    with start(logs) as manager:
        log = manager.get(*T0)
        plant(logs / "t-0" / name, kind)
        for timestamp in (1_005, 1_011):
            found = log.offset_for_timestamp(timestamp)
            assert found is not None
            assert found.offset == timestamp - 1_000
        assert log.read(7, 1).records()[0].offset == 7
        assert (logs / "t-0" / name).is_file()
        assert log.truncate_to(10)
    assert os.path.lexists(logs / "t-0" / f"{name}.aside")
    assert (logs / ".kafka_cleanshutdown").exists()


@within_10_s()
def test_that_stop_a_log_stop_no_other(logs: Path) -> None:
    """It is damage of one file: the disk is well. What the log had is there at the next start."""
    failures: list[str] = []
    manager = LogManager(
        [logs],
        CONFIG,
        background=False,
        owner=ManagerOwner(on_directory_failure=lambda path, _: failures.append(path)),
    )
    log = manager.get(*T0)
    log.append([(b"key", b"more")])
    active = log.segments[-1].base_offset
    plant(logs / "t-0" / f"{active:020}.index", "fifo")
    log.roll()
    with pytest.raises(LogstoreError, match="is a FIFO"):
        log.flush()
    with pytest.raises(LogstoreError, match="is a FIFO"):
        log.append([(b"key", b"more")])
    assert len(values(manager.get(*U0))) == 60
    assert manager.live_directories == [str(logs)]
    manager.close()
    assert failures == []
    assert not (logs / ".kafka_cleanshutdown").exists()
    with start(logs) as manager:
        assert len(values(manager.get(*T0))) == 61
