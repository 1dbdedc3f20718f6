"""Log directories out of backups: whole, cut, and never in place of something better."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from logstore.backup import (
    Backup,
    BackupFault,
    DamagedObjectError,
    NoBackupError,
    RestoreOptions,
    restore,
)
from logstore.common.errors import ConfigError
from logstore.format.reader import iter_batches
from logstore.manager import LogManager
from logstore.storage.base import File
from logstore.storage.local import LocalStorage
from logstore.tiers import LocalObjectStore, ObjectNotFoundError, StoreDeniedError
from logstore.tiers.keys import INDEXES, LOG, commit_key
from logstore.verify import verify
from tests.support.backups import GrowingSource, RiggedStore
from tests.support.until import until


@pytest.fixture
def source(written: GrowingSource) -> GrowingSource:
    return written


@pytest.fixture
def store(backed: RiggedStore) -> RiggedStore:
    """A copy that a test may damage."""
    return backed.copy()


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_files_of_a_topic_and_of_its_owner_come_back(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    restore(store, tmp_path / "back")
    back = tmp_path / "back"
    for name in ("partition.metadata", "topic.properties", "leader-epoch-checkpoint"):
        file = Path("orders-0") / name
        assert (back / file).read_bytes() == (source.path / file).read_bytes()
    for log in source.logs():
        assert (back / "orders-0" / log.name).read_bytes() == log.read_bytes()
        assert (back / "orders-0" / log.with_suffix(".index").name).exists()
    for line in (source.path / "meta.properties").read_text().splitlines():
        if line.startswith(("cluster.id", "node.id")):
            assert line in (back / "meta.properties").read_text()
    marks = "replication-offset-checkpoint"
    lines = [sorted((each / marks).read_text().splitlines()) for each in (back, source.path)]
    assert lines[0] == lines[1]
    assert ".kafka_cleanshutdown" in _names(back)
    assert ".lock" not in _names(back)


def test_a_restored_directory_takes_appends_where_it_ended(
    store: RiggedStore, tmp_path: Path
) -> None:
    report = restore(store, tmp_path / "back")
    ends = {(p.topic, p.partition): p.end_offset for p in report.partitions}
    with LogManager([tmp_path / "back"]) as manager:
        log = manager.get("orders", 0)
        assert log.recovery_report.clean
        assert log.append([(b"k", b"v")]).first_offset == ends["orders", 0]


# ---- at offsets, at a time --------------------------------------------------------------------


def _batches(source: GrowingSource) -> list[tuple[int, int, int]]:
    """First offset, next offset and largest timestamp of each batch of orders-0."""
    return [
        (batch.base_offset, batch.last_offset + 1, batch.max_timestamp)
        for log in source.logs()
        for batch in iter_batches(log.read_bytes())
    ]


@pytest.mark.slow
def test_each_offset_ends_a_log_at_the_batch_before_it(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    batches = _batches(source)
    for offset in range(0, batches[-1][1] + 1, 7):
        options = RestoreOptions(offsets={"orders": {0: offset}}, topics="orders".__eq__)
        target = tmp_path / f"at-{offset}"
        (part, other) = restore(store, target, options).partitions
        expected = max((end for _, end, _ in batches if end <= offset), default=0)
        assert part.end_offset == expected
        assert other.end_offset == other.end_in_backup
        assert verify([target]).clean


@pytest.mark.slow
def test_a_time_ends_a_log_before_the_first_batch_that_is_later(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    batches = _batches(source)
    for number in (0, 1, len(batches) // 2, len(batches) - 1):
        at_ms = batches[number][2]
        target = tmp_path / f"at-{number}"
        report = restore(store, target, RestoreOptions(at_ms=at_ms))
        first_later = next((first for first, _, stamp in batches if stamp > at_ms), None)
        part = next(p for p in report.partitions if (p.topic, p.partition) == ("orders", 0))
        assert part.end_offset == (batches[-1][1] if first_later is None else first_later)
        assert verify([target]).clean
    before = restore(store, tmp_path / "before", RestoreOptions(at_ms=1))
    assert {part.end_offset for part in before.partitions} == {0}


def test_segments_behind_the_end_are_not_read(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    options = RestoreOptions(offsets={"orders": {0: 3, 1: -2}}, topics="orders".__eq__)
    restore(store, tmp_path / "back", options)
    read = {key for operation, key in store.calls if operation == "get" and key.endswith(LOG)}
    assert len(read) == 1
    assert len(source.logs()) > 2


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({"orders": {0: 10**6}}, "cannot end at offset 1000000"),
        ({"orders": {7: 1}}, "no partition orders-7"),
        ({"other": {0: 1}}, "no partition other-0"),
    ],
)
def test_offsets_that_the_backup_does_not_have_are_refused(
    store: RiggedStore, tmp_path: Path, offsets: dict[str, dict[int, int]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        restore(store, tmp_path / "back", RestoreOptions(offsets=offsets))
    assert _names(tmp_path) == []


# ---- damage ----------------------------------------------------------------------------------


def test_bit_rot_is_named_before_anything_is_there(store: RiggedStore, tmp_path: Path) -> None:
    """The second try shows that it is the object, and not its way here."""
    victim = store.objects(LOG)[1]
    store.flip(victim)
    with pytest.raises(DamagedObjectError, match="its checksum is") as caught:
        restore(store, tmp_path / "back")
    assert caught.value.key == victim
    assert _names(tmp_path) == []
    assert store.calls.count(("get", victim)) == 2


def test_what_was_damaged_on_its_way_is_read_again(store: RiggedStore, tmp_path: Path) -> None:
    victim = store.objects(LOG)[1]
    good = store.store.get(victim)
    store.flip(victim)

    def mend(operation: str, key: str) -> None:
        if (operation, key) == ("get", victim):
            store.replace(victim, good)

    store.after = mend
    assert restore(store, tmp_path / "back").whole


def test_an_object_that_is_missing_or_short_or_long_is_named(
    store: RiggedStore, tmp_path: Path
) -> None:
    victim = store.objects(LOG)[1]
    good = store.store.get(victim)
    for data in (good[:-1], good + b"\0", b""):
        store.replace(victim, data)
        with pytest.raises(DamagedObjectError, match=f"does not have the {len(good)} bytes"):
            restore(store, tmp_path / "back")
    store.delete([victim])
    with pytest.raises(ObjectNotFoundError):
        restore(store, tmp_path / "back")
    assert _names(tmp_path) == []


def test_lossy_leaves_out_what_is_damaged_and_names_it(store: RiggedStore, tmp_path: Path) -> None:
    flipped, missing = store.objects(LOG)[1:3]
    store.flip(flipped)
    store.delete([missing])
    report = restore(store, tmp_path / "back", RestoreOptions(lossy=True))
    assert {(f.place, f.fault) for f in report.findings} == {
        (flipped, BackupFault.TORN),
        (missing, BackupFault.MISSING),
    }
    assert all(finding.first < finding.end for finding in report.findings)
    assert not [f for f in verify([tmp_path / "back"]).findings if f.severity.value == "error"]


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_lossy_keeps_what_lies_before_a_damaged_batch(
    store: RiggedStore, tmp_path: Path, which: int
) -> None:
    key = [key for key in store.objects(LOG) if key.startswith("orders-") and "/0/" in key][which]
    whole = store.store.get(key)
    batches = list(iter_batches(whole))
    damaged = batches[len(batches) // 2]
    store.flip(key, damaged.position + 40)
    report = restore(store, tmp_path / "back", RestoreOptions(lossy=True))
    (finding,) = report.findings
    assert finding.first == damaged.base_offset > batches[0].base_offset
    assert finding.end == batches[-1].last_offset + 1
    file = tmp_path / "back" / "orders-0" / key.rpartition("/")[2].replace(key[-27:], ".log")
    assert file.read_bytes() == whole[: damaged.position]
    assert not [f for f in verify([tmp_path / "back"]).findings if f.severity.value == "error"]


@pytest.mark.slow
def test_lossy_keeps_nothing_if_no_checksum_shows_the_damage(
    store: RiggedStore, tmp_path: Path
) -> None:
    """That of a batch does not cover its epoch."""
    key = next(key for key in store.objects(LOG) if key.startswith("orders-"))
    batches = list(iter_batches(store.store.get(key)))
    store.flip(key, batches[1].position + 15)
    (finding,) = restore(store, tmp_path / "back", RestoreOptions(lossy=True)).findings
    assert finding.first == batches[0].base_offset


@pytest.mark.slow
def test_lossy_keeps_no_batch_whose_offset_does_not_follow_on(
    store: RiggedStore, tmp_path: Path
) -> None:
    """The checksum of a batch does not cover its offset, and another one may be damaged, too."""
    key = next(key for key in store.objects(LOG) if key.startswith("orders-"))
    batches = list(iter_batches(store.store.get(key)))
    store.flip(key, batches[2].position + 7)
    store.flip(key, batches[4].position + 40)
    (finding,) = restore(store, tmp_path / "back", RestoreOptions(lossy=True)).findings
    assert finding.first == batches[2].base_offset


def test_damaged_indexes_do_no_harm_because_they_are_made_anew(
    store: RiggedStore, tmp_path: Path
) -> None:
    for key in store.objects(INDEXES):
        store.replace(key, b"")
    assert restore(store, tmp_path / "back").whole
    assert verify([tmp_path / "back"]).clean


def test_a_damaged_commit_is_passed_over_for_the_one_before(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    data = bytearray(store.store.get(commit_key(1)))
    data[len(data) // 2] ^= 1
    store.replace(commit_key(2), bytes(data))
    assert restore(store, tmp_path / "back").number == 1
    store.delete([commit_key(1)])
    with pytest.raises(NoBackupError, match="no backup is whole"):
        restore(store, tmp_path / "other")
    assert _names(tmp_path) == ["back"]


# ---- the target ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [".", "back", "orders/back"])
def test_a_store_is_no_target(source: GrowingSource, tmp_path: Path, place: str) -> None:
    """A log directory in it would end all backups into it."""
    there = LocalObjectStore(str(tmp_path / "there"))
    Backup([source.path], there).run()
    with pytest.raises(ConfigError, match="lies in the store"):
        restore(there, tmp_path / "there" / place)
    assert Backup([source.path], there).run().whole


def test_a_target_with_anything_in_it_is_left_alone(store: RiggedStore, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        restore(store, tmp_path / "back")
    assert (tmp_path / "back" / "notes").read_text() == "mine"
    assert not store.calls


def test_a_disk_without_room_is_refused_before_the_first_byte(
    store: RiggedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda self, path: 100)
    with pytest.raises(OSError, match="bytes are needed") as caught:
        restore(store, tmp_path / "back")
    assert caught.value.errno == errno.ENOSPC
    assert _names(tmp_path) == []


def test_a_disk_that_fills_up_leaves_nothing_that_passes_for_whole(
    store: RiggedStore,
) -> None:
    from logstore.testing import FaultyStorage

    disk = FaultyStorage()
    disk.make_dir("/data")
    disk.fail("write", "*.log", error=errno.ENOSPC, times=1000)
    with pytest.raises(OSError, match=r"No space|space") as caught:
        restore(store, "/data/back", storage=disk)
    assert caught.value.errno == errno.ENOSPC
    assert not disk.scan_dir("/data")


def test_the_first_object_that_cannot_be_had_ends_a_restore(
    store: RiggedStore, tmp_path: Path
) -> None:
    def deny(operation: str, key: str) -> None:
        if key.endswith(LOG):
            raise StoreDeniedError(key, "denied")

    store.before = deny
    store.calls.clear()
    with pytest.raises(StoreDeniedError):
        restore(store, tmp_path / "back")
    assert sum(key.endswith(LOG) for _, key in store.calls) <= 6 < len(store.objects(LOG))
    assert not _names(tmp_path)


@pytest.mark.slow
def test_an_interrupt_of_a_restore_leaves_nothing(
    store: RiggedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted, wrote = threading.Event(), list[str]()

    class Watched(LocalStorage):
        def remove_tree(self, path: str) -> None:
            super().remove_tree(path)
            wrote.clear()

        def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
            wrote.append(path)
            return super().open(path, create=create, writable=writable)

    def interrupt(operation: str, key: str) -> None:
        if key.endswith(LOG) and not interrupted.is_set():
            interrupted.set()
            os.kill(os.getpid(), signal.SIGINT)

    store.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        restore(store, tmp_path / "back", storage=Watched())
    until(lambda: not any("-restore" in each.name for each in threading.enumerate()), "the end")
    assert not wrote  # nothing, once it was removed
    assert not _names(tmp_path)
    assert "delete what is left of it" in caplog.text


def test_a_store_without_a_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoBackupError, match="there is no backup"):
        restore(RiggedStore(), tmp_path / "back")
    with pytest.raises(NoBackupError, match="there is no backup 7"):
        restore(RiggedStore(), tmp_path / "back", RestoreOptions(number=7))


def test_a_link_to_an_empty_directory_is_restored_into(store: RiggedStore, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert restore(store, tmp_path / "link").whole
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "orders-0").is_dir()


def test_a_directory_that_cannot_be_replaced_is_refused_before_anything_is_read(
    store: RiggedStore, tmp_path: Path
) -> None:
    """As a mount point."""

    class Mounted(LocalStorage):
        def rename(self, path: str, target: str) -> None:
            if target == str(tmp_path / "disk"):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), target)
            super().rename(path, target)

    (tmp_path / "disk").mkdir()
    store.calls.clear()
    with pytest.raises(ConfigError, match="give a directory below it"):
        restore(store, tmp_path / "disk", storage=Mounted())
    assert store.count("get") == 1  # the commit
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]
