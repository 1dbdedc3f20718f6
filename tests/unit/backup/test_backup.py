"""Backups of log directories: what is put, what is not put again, and what a killed run leaves."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints import LeaderEpochCheckpoint
from logstore.backup import (
    Backup,
    BackupFault,
    BackupOptions,
    BackupRefusedError,
    BackupReport,
    ReadBack,
    RestoreOptions,
    check_store,
    restore,
)
from logstore.backup.content import read_commit, segments_of
from logstore.backup.patience import Patience, PatientStore
from logstore.backup.source import BackupSource
from logstore.common.errors import ConfigError, ResourceBusyError
from logstore.directory.layout import TopicFilter, list_partitions
from logstore.directory.listing import PartitionLayout
from logstore.format.reader import iter_batches
from logstore.storage.local import LocalStorage
from logstore.tiers import (
    StoreDeniedError,
    StoredObject,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
    open_store,
)
from logstore.tiers.keys import INDEXES, LOG, MANIFEST, commit_key
from logstore.verify import verify
from tests.support.backups import (
    SMALL,
    GrowingSource,
    KilledError,
    Rig,
    RiggedStore,
    flip,
    pauses,
    quiet,
)


@pytest.fixture
def source(written: GrowingSource, tmp_path: Path) -> GrowingSource:
    return written.copy(tmp_path / "data")


@pytest.fixture
def store() -> RiggedStore:
    return RiggedStore()


def backup(source: GrowingSource | Path, store: RiggedStore, **changes: object) -> BackupReport:
    path = source.path if isinstance(source, GrowingSource) else source
    pause = changes.pop("pause", lambda seconds: None)
    topics = changes.pop("topics", None)
    options = BackupOptions(**changes)  # type: ignore[arg-type]
    return Backup([path], store, options=options, pause=pause, topics=topics).run()  # type: ignore[arg-type]


def assert_equal(source: Path, store: RiggedStore, target: Path) -> None:
    """A restored directory is clean, and its records are those of the source."""
    assert restore(store, target).whole
    report = verify([source, target])
    assert report.clean, report.findings
    by_place: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for part in report.partitions:
        content = part.log_start_offset, part.log_end_offset
        by_place.setdefault((part.topic, part.partition), []).append(content)
    assert all(len(each) == 2 and each[0] == each[1] for each in by_place.values()), by_place


def test_a_backup_brings_back_what_it_was_made_of(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    report = backup(source, store)
    assert report.whole
    assert (report.number, report.committed) == (1, True)
    assert sum(part.put for part in report.partitions) == len(store.objects(MANIFEST)) > 3
    assert_equal(source.path, store, tmp_path / "back")


def test_the_commit_is_put_last_and_each_manifest_after_its_objects(
    source: GrowingSource, store: RiggedStore
) -> None:
    backup(source, store)
    puts = [key for operation, key in store.calls if operation == "put"]
    assert puts[-1] == "logstore-backup/00000000000000000001.json"
    for manifest in store.objects(MANIFEST):
        stem = manifest.removesuffix(MANIFEST)
        order = [key.removeprefix(stem) for key in puts if key.startswith(stem)]
        assert order == [LOG, INDEXES, ".logstore", MANIFEST]


def test_nothing_new_puts_nothing_and_commits_nothing(
    source: GrowingSource, store: RiggedStore
) -> None:
    backup(source, store)
    store.calls.clear()
    report = backup(source, store)
    assert (report.number, report.committed) == (1, False)
    assert store.count("put") == 0
    assert store.count("get") == 1  # the commit
    assert store.count("list") == 2  # the commits, then all


def test_only_what_is_new_is_put_again(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    before = set(store.objects(LOG))
    source.write(3, {"orders": 1})
    report = backup(source, store)
    (grown,) = [part for part in report.partitions if part.put]
    assert (grown.topic, grown.partition) == ("orders", 0)
    assert grown.put <= 2
    assert grown.kept >= 1
    assert report.number == 2
    new = set(store.objects(LOG)) - before
    assert len(new) == grown.put
    assert_equal(source.path, store, tmp_path / "back")


@pytest.mark.slow
def test_an_earlier_backup_stays_as_it_was(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    shutil.copytree(source.path, tmp_path / "before")
    source.write(30)
    backup(source, store)
    assert restore(store, tmp_path / "first", RestoreOptions(number=1)).whole
    assert verify([tmp_path / "before", tmp_path / "first"]).clean


@pytest.mark.slow
def test_a_log_that_was_cut_and_grew_again_is_put_again(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    """The first and the last batch of each segment are held against those of the store."""
    backup(source, store)
    with source.open() as manager:
        log = manager.get("orders", 0)
        log.truncate_to(log.log_end_offset - 3)
    source.write(4, {"orders": 1})
    assert backup(source, store).whole
    assert_equal(source.path, store, tmp_path / "back")


def test_what_lies_above_the_high_watermark_is_left_for_later(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    file = source.path / "replication-offset-checkpoint"
    lines = file.read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines) if line.startswith("orders 0 ")]
    end = int(lines[number].split()[2])
    lines[number] = f"orders 0 {end - 4}"
    file.write_text("\n".join(lines) + "\n")
    (part,) = [
        p for p in backup(source, store).partitions if (p.topic, p.partition) == ("orders", 0)
    ]
    assert end - 12 < part.end_offset <= end - 4
    report = restore(store, tmp_path / "back")
    assert {p.end_offset for p in report.partitions if p.partition == 0} >= {part.end_offset}
    assert verify([tmp_path / "back"]).clean


# ---- damage in the source --------------------------------------------------------------------


def test_a_damaged_batch_is_named_and_what_is_whole_is_backed_up(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    first = source.logs()[0]
    flip(first)
    report = backup(source, store)
    (finding,) = report.findings
    assert finding.fault is BackupFault.DAMAGED
    assert finding.place == str(first)
    assert 0 < finding.first < finding.end == int(source.logs()[1].stem)
    assert report.committed
    restored = restore(store, tmp_path / "back")
    (hole,) = restored.findings
    assert (hole.fault, hole.first, hole.end) == (BackupFault.HOLE, finding.first, finding.end)


def test_damage_after_a_backup_costs_nothing_that_was_backed_up(
    source: GrowingSource, store: RiggedStore
) -> None:
    """The store has the good bytes; a segment that does not show its damage is not read again."""
    backup(source, store)
    last = source.logs()[-1]
    source.write(2, {"orders": 1})
    assert last == source.logs()[-1]  # the open segment grew, so it is read again
    flip(last, 70)
    report = backup(source, store)
    (finding,) = report.findings
    assert finding.fault is BackupFault.DAMAGED
    assert finding.first > int(last.stem)  # what the store has of it stays in the backup
    assert any("keeps what it has" in note for note in report.notes)
    assert check_store(store).whole


def test_a_missing_index_is_made_anew(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    for suffix in ("index", "timeindex", "txnindex", "snapshot"):
        for file in (source.path / "orders-0").glob(f"*.{suffix}"):
            file.unlink()
    assert backup(source, store).whole
    assert restore(store, tmp_path / "back").whole
    assert verify([tmp_path / "back"]).clean


# ---- runs that end early, and stores that fail ------------------------------------------------


def _dying_at(store: RiggedStore, number: int, *, after: bool) -> None:
    def rig(operation: str, key: str) -> None:
        if operation == "put" and store.count("put") >= number:
            raise KilledError

    _rig(store, rig, after=after)


def _rig(store: RiggedStore, rig: Rig, *, after: bool) -> None:
    store.before, store.after = (quiet, rig) if after else (rig, quiet)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_is_killed_at_any_put_is_taken_up(tmp_path: Path, *, after: bool) -> None:
    source = GrowingSource(tmp_path / "data")
    source.write(40, {"orders": 1})
    whole = RiggedStore()
    backup(source, whole)
    puts = whole.count("put")
    one_by_one = {"partitions_at_once": 1, "puts_at_once": 1}
    for number in range(1, puts + 1):
        store = RiggedStore()
        _dying_at(store, number, after=after)
        with pytest.raises(KilledError):
            backup(source, store, **one_by_one)
        store.heal()
        logs = set(store.objects(LOG))
        facts = {key.removesuffix(".logstore") for key in store.objects(".logstore")}
        report = backup(source, store, **one_by_one)
        assert report.whole
        adopted = sum(part.adopted for part in report.partitions)
        assert adopted + sum(part.kept for part in report.partitions) == len(facts), number
        assert len(set(store.objects(LOG)) - logs) == len(source.logs()) - len(facts)
        assert check_store(store).number == 1


def test_a_segment_that_another_topic_put_is_not_adopted(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    """Facts and checksum decide, not the name alone."""
    backup(source, store)
    manifests = store.objects(MANIFEST)
    store.store.delete([key for key in store.objects() if key.startswith("logstore-backup/")])
    for key in store.objects(LOG):
        store.flip(key)  # as if what is there were cut short and completed by others
    report = backup(source, store)
    assert sum(part.adopted for part in report.partitions) == 0
    assert len(store.objects(MANIFEST)) == 2 * len(manifests)
    assert_equal(source.path, store, tmp_path / "back")


def test_a_throttled_store_is_asked_again_with_pauses(
    source: GrowingSource, store: RiggedStore, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([StoreThrottledError("k", "slow down", True)] * 5)

    def rig(operation: str, key: str) -> None:
        if operation == "put" and (error := next(failures, None)):
            raise error

    store.before = rig
    waited, pause = pauses()
    report = backup(source, store, pause=pause, puts_at_once=1, partitions_at_once=1)
    assert report.whole
    assert report.retries == 5
    assert waited == [0.5, 1, 2, 4, 8]
    told = [record.getMessage() for record in caplog.records]
    assert [text.rpartition("; ")[2] for text in told] == [
        f"try {number} of 8 in {seconds} s" for number, seconds in ((3, 1), (4, 2), (5, 4), (6, 8))
    ]


@pytest.mark.parametrize("effect", [False, True])
def test_a_put_that_reports_a_failure_is_repeated_under_the_same_key(
    source: GrowingSource, store: RiggedStore, *, effect: bool
) -> None:
    seen: set[str] = set()

    def rig(operation: str, key: str) -> None:
        if operation == "put" and key not in seen:
            seen.add(key)
            raise StoreUnavailableError(key, "reset by peer", True)

    _rig(store, rig, after=effect)
    report = backup(source, store)
    assert report.whole
    assert report.committed
    store.heal()
    checked = check_store(store)
    assert checked.whole
    assert not checked.notes  # no orphan of another name


def test_a_store_that_refuses_ends_the_run_and_leaves_earlier_backups(
    source: GrowingSource, store: RiggedStore
) -> None:
    backup(source, store)
    source.write(20)

    def rig(operation: str, key: str) -> None:
        if operation == "put":
            raise StoreDeniedError(key, "403", False, store.uri)

    store.before = rig
    waited, pause = pauses()
    with pytest.raises(StoreDeniedError, match="403"):
        backup(source, store, pause=pause)
    assert not waited
    store.heal()
    assert check_store(store).whole


def test_a_full_store_is_an_error_after_some_tries(
    source: GrowingSource, store: RiggedStore
) -> None:
    def rig(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(INDEXES):
            raise StoreUnavailableError(key, "no space left on device", True, store.uri)

    store.before = rig
    waited, pause = pauses()
    with pytest.raises(StoreUnavailableError, match="no space left"):
        backup(source, store, pause=pause, puts_at_once=1, partitions_at_once=1)
    assert waited == [0.5, 1, 2, 4, 8, 16, 30]
    assert not [key for key in store.objects() if key.startswith("logstore-backup/")]


def test_a_store_that_says_done_and_loses_is_noticed_before_the_commit(
    source: GrowingSource, store: RiggedStore
) -> None:
    lied: set[str] = set()

    def lose(key: str) -> bool:
        once = key.endswith(LOG) and key not in lied
        lied.add(key)
        return once

    store.lost = lose
    report = backup(source, store)
    assert report.lied == len(store.objects(LOG))
    assert check_store(store).whole


def test_a_store_that_always_loses_gets_no_commit(
    source: GrowingSource, store: RiggedStore
) -> None:
    store.lost = lambda key: key.endswith(LOG)
    with pytest.raises(StoreUnavailableError, match="is not there, or not whole"):
        backup(source, store)
    assert not [key for key in store.objects() if key.startswith("logstore-backup/")]


def test_a_flip_in_the_middle_needs_a_full_read_back(
    source: GrowingSource, store: RiggedStore
) -> None:
    def rot(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(LOG):
            store.flip(key, 100)

    store.after = rot
    with pytest.raises(StoreUnavailableError, match="not whole"):
        backup(source, store, read_back=ReadBack.FULL)


def test_a_store_that_hangs_is_given_up(source: GrowingSource, store: RiggedStore) -> None:
    import threading

    released = threading.Event()

    def hang(operation: str, key: str) -> None:
        if operation == "put":
            released.wait()

    store.before = hang
    patience = Patience(bound_s=0.01, slowest=1 << 40, tries=2, hung_max=4)
    with pytest.raises(StoreUnavailableError, match=r"no answer|hangs"):
        backup(source, store, patience=patience, puts_at_once=1, partitions_at_once=1)
    released.set()


def test_what_a_listing_lacks_is_asked_for_and_not_put_again(
    source: GrowingSource, store: RiggedStore
) -> None:
    backup(source, store)
    store.calls.clear()
    store.listing = _only_commits
    report = backup(source, store)
    assert not report.committed
    assert store.count("put") == 0


def _only_commits(found: StoredObject) -> bool:
    return found.key.startswith("logstore-backup/")


def test_what_the_store_lost_is_put_again_by_the_next_run(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    store.store.delete([store.objects(LOG)[0]])
    store.replace(store.objects(LOG)[0], b"short")
    report = backup(source, store)
    assert sum(part.put for part in report.partitions) == 2
    assert_equal(source.path, store, tmp_path / "back")


# ---- whose store it is -----------------------------------------------------------------------


@pytest.mark.slow
def test_another_cluster_and_another_broker_are_refused(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    calls = store.count("put")
    for other, what in (
        (GrowingSource(tmp_path / "cluster"), "cluster"),
        (GrowingSource(tmp_path / "broker", cluster_id=_cluster(source), node_id=4), "broker"),
    ):
        other.write(2)
        with pytest.raises(BackupRefusedError, match=f"of {what} "):
            backup(other, store)
    assert store.count("put") == calls


def _cluster(source: GrowingSource) -> str:
    text = (source.path / "meta.properties").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("cluster.id=")]
    return line.partition("=")[2]


@pytest.mark.slow
def test_a_topic_that_was_made_anew_is_kept_apart(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    with source.open() as manager:
        manager.delete_topic("orders")
    source.write(10)
    report = backup(source, store)
    assert report.whole
    folders = {key.split("/")[0] for key in store.objects(LOG)}
    assert sum(name.startswith("orders-") for name in folders) == 2
    assert_equal(source.path, store, tmp_path / "back")


def test_two_backups_at_once_do_not_mix(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    """One becomes the next number; the other says so, and leaves what is there alone."""
    shutil.copytree(source.path, tmp_path / "copy")

    def race(operation: str, key: str) -> None:
        if operation == "put" and key.startswith("logstore-backup/"):
            store.before = quiet
            backup(tmp_path / "copy", store)

    store.before = race
    with pytest.raises(BackupRefusedError, match="another backup became number 1"):
        backup(source, store)
    assert check_store(store).number == 1
    assert backup(source, store).whole


def test_topics_that_are_not_wanted_stay_as_they_were(
    source: GrowingSource, store: RiggedStore
) -> None:
    backup(source, store)
    source.write(5)
    report = backup(source, store, topics="orders".__eq__)
    assert {part.topic for part in report.partitions} == {"orders"}
    checked = check_store(store)
    assert {part.topic for part in checked.partitions} == {"orders", "__consumer_offsets"}


def test_a_topic_that_was_deleted_stays_in_earlier_backups(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    with source.open() as manager:
        manager.delete_topic("orders")
    report = backup(source, store)
    assert any("orders is no more in the source" in note for note in report.notes)
    assert restore(store, tmp_path / "old", RestoreOptions(number=1)).whole
    assert (tmp_path / "old" / "orders-1").is_dir()


# ---- retention -------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_retention_deleted_leaves_the_backup_and_keep_deletes_its_objects(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    objects = len(store.objects())
    with source.open() as manager:
        log = manager.get("orders", 0)
        log.delete_records(int(source.logs()[1].stem))
    report = backup(source, store)
    assert report.number == 2
    assert len(store.objects()) == objects + 1  # what only the first one names is there
    source.write(2, {"orders": 1})
    report = backup(source, store, keep=1)
    assert report.pruned > 0
    checked = check_store(store)
    assert checked.backups == [report.number]
    assert checked.whole
    assert not checked.notes  # and nothing is left over
    assert_equal(source.path, store, tmp_path / "back")


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_what_another_run_takes_of_a_dropped_backup_stays(
    source: GrowingSource, store: RiggedStore, tmp_path: Path, *, late: bool
) -> None:
    """A log may become again what it was, so that a run adopts what only an older backup names."""
    backup(source, store)
    with source.open() as manager:
        manager.get("orders", 0).delete_records(int(source.logs()[1].stem))
    earlier = read_commit(PatientStore(store), 1)
    other = replace(earlier, number=3).to_json()

    def meanwhile(operation: str, key: str) -> None:
        if operation == "delete" and key.endswith(LOG if late else commit_key(1)):
            store.replace(commit_key(3), other)

    store.before = meanwhile
    report = backup(source, store, keep=1)
    assert report.number == 2
    found = [finding.fault for finding in report.findings]
    assert found == ([BackupFault.MISSING] if late else [])
    store.heal()
    named = [key for *_, key in segments_of(earlier)]
    assert set(store.objects(LOG)) >= {key.key(LOG) for key in named} or late
    assert backup(source, store).whole
    assert_equal(source.path, store, tmp_path / "back")


@pytest.mark.slow
def test_a_backup_is_not_there_if_what_it_adopts_is_deleted_meanwhile(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    store.store.delete([commit_key(1)])
    logs = store.objects(LOG)

    def meanwhile(operation: str, key: str) -> None:
        if operation == "put" and key == commit_key(1):
            store.store.delete(logs[:1])  # as a run does that drops the backup that it was of

    store.before = meanwhile
    with pytest.raises(StoreUnavailableError, match="deleted while the backup was made"):
        backup(source, store)
    store.heal()
    assert backup(source, store).whole
    assert_equal(source.path, store, tmp_path / "back")


def _without_names(source: GrowingSource) -> None:
    """As copies are, and the directories of old brokers."""
    (source.path / "meta.properties").unlink()
    for file in source.path.glob("*/partition.metadata"):
        file.unlink()


@pytest.mark.slow
def test_a_stranger_without_a_name_is_not_taken_for_the_source(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    grown = source.copy(tmp_path / "grown")
    grown.write(20)
    stranger = GrowingSource(tmp_path / "stranger")
    stranger._seed = 1000
    stranger.write()
    for each in (source, grown, stranger):
        _without_names(each)
    backup(source, store)
    assert backup(grown, store, keep=1).number == 2
    with pytest.raises(BackupRefusedError, match="nothing in common"):
        backup(stranger, store, keep=1)
    assert restore(store, tmp_path / "back").number == 2
    assert backup(stranger, store, drop_deleted=True).number == 3


def test_no_overrides_are_no_configuration_that_is_known(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    """The retention may be that of a broker's own file, and a promotion has to keep records."""
    backup(source, store, topic_configs={"orders": {}, "__consumer_offsets": {"retention.ms": "5"}})
    offsets, orders = read_commit(PatientStore(store), 1).topics
    assert (offsets.config_revision, orders.config_revision) == (0, 0)
    assert restore(store, tmp_path / "back").whole
    assert not (tmp_path / "back" / "orders-0" / "topic.properties").exists()


def test_damage_counts_once_two_looks_agree(
    source: GrowingSource, store: RiggedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is cut and grows while it is listed looks damaged for a moment."""
    log = source.logs()[0]
    sound = log.read_bytes()
    log.write_bytes(sound[: len(sound) // 2] + bytes(len(sound) - len(sound) // 2))
    again = BackupSource.again

    def mended(self: BackupSource, layout: PartitionLayout) -> PartitionLayout | None:
        log.write_bytes(sound)
        return again(self, layout)

    monkeypatch.setattr(BackupSource, "again", mended)
    assert backup(source, store).whole


def test_a_partition_that_is_too_busy_to_be_listed_again_stays_as_it_was(
    source: GrowingSource, store: RiggedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup(source, store)
    source.write(1, {"orders": 2})
    log = source.logs()[-1]
    log.write_bytes(log.read_bytes()[:-1] + b"!")

    def busy(self: BackupSource, layout: PartitionLayout) -> None:
        raise ResourceBusyError(layout.uri, "list", "its segments change")

    monkeypatch.setattr(BackupSource, "again", busy)
    report = backup(source, store)
    assert [finding.fault for finding in report.findings] == [BackupFault.DAMAGED]
    assert report.committed


@pytest.mark.parametrize("looks", [2, 100])
def test_a_partition_that_is_too_busy_to_be_listed_costs_no_other_its_backup(
    source: GrowingSource, store: RiggedStore, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    backup(source, store)
    source.write(1, {"orders": 2})
    left = [looks]

    def busy(paths: list[str], wanted: TopicFilter, *, broker: str) -> list[PartitionLayout]:
        if left[0] and wanted("orders", 1, False):
            left[0] -= 1
            raise ResourceBusyError(f"{paths[0]}/orders-1", "list", "its segments change")
        return list_partitions(paths, wanted, broker=broker)

    monkeypatch.setattr("logstore.backup.source.list_partitions", busy)
    report = backup(source, store)
    before, now = (read_commit(PatientStore(store), number).topics[-1] for number in (1, 2))
    assert now.partitions[0] != before.partitions[0]
    assert (now.partitions[1] == before.partitions[1]) == (looks == 100)
    assert [finding.fault for finding in report.findings] == [BackupFault.UNSTABLE] * (looks == 100)


def test_a_source_that_stays_damaged_makes_no_backup_after_backup(
    source: GrowingSource, store: RiggedStore
) -> None:
    log = source.logs()[1]
    flip(log)
    first = backup(source, store)
    assert len(first.findings) == 1
    objects = len(store.objects())
    again = backup(source, store)
    assert again.findings == first.findings
    assert (again.number, again.committed) == (1, False)
    assert len(store.objects()) == objects


def test_the_last_backup_of_what_the_source_lacks_is_never_dropped(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    """A disk that is not mounted looks like deleted partitions."""
    backup(source, store)
    shutil.rmtree(source.path / "orders-1")
    report = backup(source, store, keep=1)
    (gone,) = report.findings
    assert (gone.fault, gone.topic, gone.partition) == (BackupFault.GONE, "orders", 1)
    assert any("backup 1 stays" in note and "orders-1" in note for note in report.notes)
    assert restore(store, tmp_path / "old", RestoreOptions(number=1)).whole
    source.write(1, {"orders": 1})
    report = backup(source, store, keep=1)
    assert report.whole  # that was said
    assert check_store(store).backups == [1, 3]
    assert check_store(store).whole
    backup(source, store, keep=1, drop_deleted=True)
    assert check_store(store).backups == [3]


def test_a_partition_that_retention_has_emptied_reaches_as_far_as_it_did(
    source: GrowingSource, store: RiggedStore
) -> None:
    """An idle topic ends so, and nothing that a disk may have lost is missing of it."""
    backup(source, store)
    with source.open() as manager:
        log = manager.get("orders", 0)
        log.delete_records(log.log_end_offset)
    report = backup(source, store, keep=1)
    assert report.pruned > 0
    assert check_store(store).backups == [2]


def test_a_segment_that_the_source_lost_stays_in_the_backup(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    """Retention takes none from the middle of a log, so nothing explains it."""
    backup(source, store)
    shutil.copytree(source.path, tmp_path / "sound")
    lost = source.logs()[1]
    lost.unlink()
    for number in range(2):
        report = backup(source, store, keep=1)
        found = [(each.fault, each.place, each.first) for each in report.findings]
        assert found == [(BackupFault.DAMAGED, str(lost), int(lost.stem))]
        assert_equal(tmp_path / "sound", store, tmp_path / f"back-{number}")


def test_a_segment_that_compaction_took_leaves_the_backup(
    source: GrowingSource, store: RiggedStore
) -> None:
    backup(source, store)
    with source.open() as manager:
        manager.alter_topic("orders", SMALL | {"cleanup.policy": "compact"})
    source.logs()[1].unlink()
    report = backup(source, store, keep=1)
    assert report.whole
    assert report.pruned > 0


def test_a_source_with_nothing_in_it_does_not_follow_a_backup(
    source: GrowingSource, store: RiggedStore
) -> None:
    backup(source, store)
    for found in source.path.glob("*-[0-9]"):
        shutil.rmtree(found)
    with pytest.raises(BackupRefusedError, match="is a disk not mounted"):
        backup(source, store, keep=1)
    assert check_store(store).backups == [1]
    assert backup(source, store, keep=1, drop_deleted=True).number == 2
    assert check_store(store).backups == [2]


@pytest.mark.parametrize("place", ["", "below", "orders-0", "..", "../other", "../link"])
def test_a_log_directory_is_no_store(source: GrowingSource, place: str) -> None:
    """A broker takes what lies in its directory for logs."""
    other = source.copy(source.path.parent / "other")
    (source.path.parent / "link").symlink_to(other.path)
    before = sorted(source.path.parent.rglob("*"))
    with pytest.raises(BackupRefusedError, match="a log directory"):
        Backup([source.path], open_store(str(source.path / place))).run()
    assert sorted(source.path.parent.rglob("*")) == before


def test_the_directory_of_another_partition_is_no_store(
    source: GrowingSource, tmp_path: Path
) -> None:
    """Though nothing around it says what it is."""
    shutil.copytree(source.path / "orders-0", tmp_path / "away" / "orders-0")
    with pytest.raises(BackupRefusedError, match="lies in, a log directory"):
        Backup([source.path], open_store(str(tmp_path / "away" / "orders-0"))).run()


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_file_is_no_store(source: GrowingSource, below: str) -> None:
    file = source.path.parent / "file"
    file.write_bytes(b"precious")
    with pytest.raises(StoreError, match="is, or lies below, a file that is no directory"):
        Backup([source.path], open_store(f"{file}{below}")).run()
    assert file.read_bytes() == b"precious"


def test_topics_that_match_nothing_are_refused(source: GrowingSource, store: RiggedStore) -> None:
    with pytest.raises(ConfigError, match="none of the topics that are wanted"):
        backup(source, store, topics=lambda topic: topic == "oders")
    assert not store.objects()


def test_nothing_is_dropped_while_a_backup_cannot_be_read(
    source: GrowingSource, store: RiggedStore
) -> None:
    backup(source, store)
    source.write(1, {"orders": 1})
    backup(source, store)
    store.replace("logstore-backup/00000000000000000001.json", b"garbage")
    source.write(1, {"orders": 1})
    report = backup(source, store, keep=1)
    assert report.number == 3
    assert report.committed
    (finding,) = report.findings
    assert finding.fault is BackupFault.MALFORMED
    assert "no backup is dropped" in finding.reason
    assert set(check_store(store).backups) == {2, 3}


@pytest.mark.parametrize("number", [0, 10**12, 2**63 - 1, 10**20 - 1])
def test_an_object_that_is_named_like_no_backup_is_foreign(
    source: GrowingSource, store: RiggedStore, number: int
) -> None:
    store.replace(f"logstore-backup/{number:020d}.json", b"garbage")
    assert backup(source, store).number == 1
    (finding,) = check_store(store).findings
    assert finding.fault is BackupFault.FOREIGN


def test_the_last_number_that_there_is_can_be_deleted(
    source: GrowingSource, store: RiggedStore
) -> None:
    store.replace(f"logstore-backup/{10**12 - 1:020d}.json", b"garbage")
    with pytest.raises(BackupRefusedError, match="leaves no number"):
        backup(source, store)


def test_what_rots_in_the_store_is_put_again_once_it_is_read(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    backup(source, store)
    log, manifest = store.objects(LOG)[0], store.objects(MANIFEST)[1]
    store.flip(log, 40)
    store.flip(manifest, 3)
    assert not backup(source, store).committed
    report = backup(source, store, read_back=ReadBack.FULL)
    assert report.committed
    assert sum(part.put for part in report.partitions) == 2
    assert any(log in note for note in report.notes)
    assert_equal(source.path, store, tmp_path / "back")
    assert not backup(source, store, read_back=ReadBack.FULL).committed


def test_epochs_that_no_file_has_yet_are_those_of_the_batches(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    epochs = source.path / "orders-0" / "leader-epoch-checkpoint"
    there = LeaderEpochCheckpoint(str(epochs), LocalStorage()).read()
    assert there
    epochs.unlink()
    backup(source, store)
    (orders,) = read_commit(PatientStore(store), 1).topics[1:]
    assert list(orders.partitions[0].leader_epochs) == list(there)


def test_a_partition_that_is_deleted_meanwhile_is_left_out(
    source: GrowingSource, store: RiggedStore
) -> None:
    def delete(operation: str, key: str) -> None:
        if operation == "put":
            store.before = quiet
            shutil.rmtree(source.path / "orders-1")

    store.before = delete
    report = backup(source, store, puts_at_once=1, partitions_at_once=1)
    assert report.whole
    assert any("was deleted while" in note for note in report.notes)
    assert {(p.topic, p.partition) for p in report.partitions} == {
        ("orders", 0),
        ("__consumer_offsets", 0),
    }


def test_a_segment_that_is_rewritten_meanwhile_is_looked_at_again(
    source: GrowingSource, store: RiggedStore, tmp_path: Path
) -> None:
    """Nothing is stored under a checksum of other bytes: a compaction may replace a segment."""
    first = source.logs()[0]
    data = first.read_bytes()
    _, *kept = [data[batch.position :][: batch.size] for batch in iter_batches(data)]

    def rewrite(operation: str, key: str) -> None:
        if operation == "put" and key.startswith("orders-") and key.endswith(LOG):
            store.before = quiet
            first.write_bytes(b"".join(kept))

    store.before = rewrite
    report = backup(source, store, puts_at_once=1, partitions_at_once=1)
    assert report.committed
    assert check_store(store).whole
    assert restore(store, tmp_path / "back").whole
    assert (tmp_path / "back" / "orders-0" / first.name).read_bytes() == b"".join(kept)


# ---- configurations --------------------------------------------------------------------------


def test_a_metadata_log_gives_configurations_and_is_no_topic(
    source: GrowingSource, store: RiggedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them a broker that starts on what is restored would delete by its defaults. Those of
    the broker are not there, and no revision says that they are, also after another backup."""
    from logstore.backup import configs
    from replication.adopt import ClusterImage, metadata_dir, write_metadata_log
    from replication.adopt.cluster_metadata import TopicImage, topic_configs

    with source.open() as manager:
        topic_id = manager.get("orders", 0).topic_id
    assert topic_id is not None
    (source.path / "__cluster_metadata-0").mkdir()
    image = ClusterImage(
        {"orders": TopicImage("orders", topic_id, {})},
        {(2, "orders"): {"retention.ms": "77"}},
        0,
        {},
        9,
        9,
        (),
    )
    write_metadata_log(LocalStorage(), metadata_dir(str(source.path)), image, {}, 1)
    monkeypatch.setattr(configs, "_plugged", lambda: topic_configs)
    report = backup(source, store)
    assert not report.notes
    restore(store, tmp_path / "back")
    restored = (tmp_path / "back/orders-0/topic.properties").read_text()
    assert "revision=0\n" in restored
    assert "retention.ms=77" in restored
    again = RiggedStore()
    backup(tmp_path / "back", again)
    restore(again, tmp_path / "twice")
    assert (tmp_path / "twice/orders-0/topic.properties").read_text() == restored
    assert not (tmp_path / "back/__cluster_metadata-0").exists()


def test_a_metadata_log_that_cannot_be_read_is_noted(
    source: GrowingSource, store: RiggedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logstore.backup import configs
    from replication.adopt.cluster_metadata import topic_configs

    directory = source.path / "__cluster_metadata-0"
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(b"x" * 100)
    monkeypatch.setattr(configs, "_plugged", lambda: topic_configs)
    report = backup(source, store)
    assert any("configurations of topics are not known" in note for note in report.notes)
    assert report.committed
