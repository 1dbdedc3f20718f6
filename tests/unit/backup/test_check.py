"""``check_store``: one of each fault in a store, each named, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.backup import (
    Backup,
    BackupFault,
    NoBackupError,
    StoreCheckOptions,
    StoreCheckReport,
    check_store,
)
from logstore.common.clock import SystemClock
from logstore.testing import ManualClock
from logstore.tiers import (
    BackupCommit,
    SegmentFacts,
    StoredObject,
    StoreUnavailableError,
    open_store,
)
from logstore.tiers.keys import FACTS, INDEXES, LOG, MANIFEST, commit_key
from tests.support.backups import GrowingSource, KilledError, RiggedStore, quiet
from tests.support.until import until

DAY_MS = 86_400_000


@pytest.fixture
def store(backed: RiggedStore) -> RiggedStore:
    """A copy that a test may damage."""
    return backed.copy()


def check(store: RiggedStore, *, days_later: int = 0, **options: object) -> StoreCheckReport:
    clock = ManualClock()
    now = max(found.mtime_ms for found in store.store.list())
    clock.advance(now + 1 + days_later * DAY_MS - clock.wall_ms())
    return check_store(store, StoreCheckOptions(**options), clock=clock)  # type: ignore[arg-type]


def faults(report: StoreCheckReport) -> set[tuple[BackupFault, str]]:
    return {(finding.fault, finding.place) for finding in report.findings}


def test_a_sound_store_has_no_findings(store: RiggedStore) -> None:
    for deep in (False, True):
        report = check(store, deep=deep, days_later=100)
        assert report.whole
        assert not report.notes
        assert report.segments == len(store.objects(MANIFEST))
        assert {part.topic for part in report.partitions} == {"orders", "__consumer_offsets"}


@pytest.mark.parametrize("suffix", [LOG, INDEXES, FACTS, MANIFEST])
def test_a_missing_object_is_named(store: RiggedStore, suffix: str) -> None:
    victim = store.objects(suffix)[1]
    store.delete([victim])
    assert faults(check(store)) == {(BackupFault.MISSING, victim)}


@pytest.mark.parametrize("suffix", [LOG, INDEXES, FACTS, MANIFEST])
def test_a_torn_object_is_named(store: RiggedStore, suffix: str) -> None:
    victim = store.objects(suffix)[1]
    store.replace(victim, b"")
    assert (BackupFault.TORN, victim) in faults(check(store))
    assert len(faults(check(store))) == 1


@pytest.mark.parametrize("suffix", [LOG, INDEXES])
def test_a_flipped_bit_needs_a_deep_check(store: RiggedStore, suffix: str) -> None:
    victim = store.objects(suffix)[1]
    store.flip(victim, 20)
    assert check(store).whole
    report = check(store, deep=True)
    assert faults(report) == {(BackupFault.TORN, victim)}
    assert report.findings[0].first < report.findings[0].end


def test_facts_and_manifests_of_others_are_named(store: RiggedStore) -> None:
    for suffix in (FACTS, MANIFEST):
        first, second = store.objects(suffix)[:2]
        good = store.store.get(first)
        store.replace(first, store.store.get(second))
        assert (BackupFault.MALFORMED, first) in faults(check(store, deep=True))
        store.replace(first, b"{}")
        assert (BackupFault.MALFORMED, first) in faults(check(store, deep=True))
        store.replace(first, good)
    assert check(store, deep=True).whole


def test_what_a_listing_lacks_is_asked_for(store: RiggedStore) -> None:
    def late(found: StoredObject) -> bool:
        return not found.key.endswith((LOG, MANIFEST))

    store.listing = late
    assert check(store).whole


def _orphan(store: RiggedStore, *, cluster_id: str | None = None) -> list[str]:
    """A segment under an id that no commit names."""
    facts = store.objects(FACTS)[0]
    stem = facts.removesuffix(FACTS)
    other = stem[:-3] + ("AAA" if not stem.endswith("AAA") else "BBB")
    found = SegmentFacts.from_json(facts, store.store.get(facts))
    for suffix in (LOG, INDEXES, MANIFEST, FACTS):
        data = store.store.get(stem + suffix)
        if suffix == FACTS and cluster_id is not None:
            data = SegmentFacts(found.key, cluster_id, found.segment).to_json()
        store.replace(other + suffix, data)
    return [other + suffix for suffix in (LOG, INDEXES, FACTS, MANIFEST)]


def test_an_orphan_counts_once_it_is_old_and_is_deleted_on_request(store: RiggedStore) -> None:
    orphan = _orphan(store)
    young = check(store)
    assert young.whole
    assert any("too young" in note for note in young.notes)
    assert faults(check(store, days_later=2)) == {(BackupFault.ORPHAN, key) for key in orphan}
    report = check(store, days_later=2, delete=True)
    assert report.whole
    assert sorted(report.deleted) == sorted(orphan)
    deleted = [key for operation, key in store.calls if operation == "delete"]
    assert deleted[0].endswith(MANIFEST)
    assert not set(orphan) & set(store.objects())
    assert check(store, days_later=2, deep=True).whole


def test_what_is_foreign_is_named_and_never_deleted(store: RiggedStore) -> None:
    orphan = _orphan(store, cluster_id="another")
    store.replace("notes.txt", b"mine")
    report = check(store, days_later=2, delete=True)
    stems = {place.rpartition(".")[0] for _, place in faults(report)}
    assert stems == {orphan[0].rpartition(".")[0], "notes"}
    assert {fault for fault, _ in faults(report)} == {BackupFault.FOREIGN}
    assert not report.deleted
    assert set(orphan) <= set(store.objects())


def test_nothing_is_deleted_while_a_commit_cannot_be_read(store: RiggedStore) -> None:
    """It may name any object."""
    orphan = _orphan(store)
    store.replace(commit_key(2), b"torn")
    report = check(store, days_later=2, delete=True)
    assert (BackupFault.MALFORMED, commit_key(2)) in faults(report)
    assert set(orphan) <= set(store.objects())
    assert any("nothing is deleted" in note for note in report.notes)


def test_a_backup_that_ends_meanwhile_has_no_orphans(store: RiggedStore) -> None:
    commit = store.store.get(commit_key(1))
    store.delete([commit_key(1)])
    before = set(store.objects())

    def committed(operation: str, key: str) -> None:
        if (operation, key) == ("list", ""):
            store.replace(commit_key(1), commit)

    # A commit that names nothing, and one that comes while the store is listed.
    known = BackupCommit.from_json(commit_key(1), commit)
    empty = BackupCommit(2, known.cluster_id, known.time_ms, (), known.node_id)
    store.replace(commit_key(2), empty.to_json())
    store.before = committed
    report = check(store, days_later=2, delete=True)
    assert not report.deleted
    assert before <= set(store.objects())


def test_a_store_without_a_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoBackupError):
        check_store(RiggedStore())


def test_what_a_backup_takes_over_meanwhile_is_not_deleted(tmp_path: Path) -> None:
    """A killed run left it, so that it looks like an orphan; the next one names it soon."""
    source, store = GrowingSource(tmp_path / "data"), RiggedStore()
    source.write()

    def killed(operation: str, key: str) -> None:
        if operation == "put" and key == commit_key(2):
            raise KilledError

    Backup([source.path], store).run()
    source.write(2)
    store.before = killed
    with pytest.raises(KilledError):
        Backup([source.path], store).run()
    store.before = quiet
    listed = {found.key: found for found in store.store.list()}
    now = max(found.mtime_ms for found in listed.values())

    class Old(RiggedStore):
        """Lists what there was as old, and lets a backup run up to its commit after that."""

        def list(self, prefix: str = "") -> Iterator[StoredObject]:
            found = [
                each._replace(mtime_ms=now - 10 * DAY_MS)
                if each.mtime_ms == listed.get(each.key, each).mtime_ms and each.key in listed
                else each
                for each in self.store.list(prefix)
            ]
            if not prefix:
                until(lambda: SystemClock().wall_ms() > now)
                store.before = killed
                with pytest.raises(KilledError):
                    Backup([source.path], store).run()
                store.before = quiet
            return iter(found)

    options = StoreCheckOptions(delete=True)
    report = check_store(Old(store.store), options)
    assert report.deleted == []
    assert any("too young" in note for note in report.notes)
    made = Backup([source.path], store).run()
    assert made.number == 2
    assert check_store(store).whole


def test_a_backup_names_nothing_that_was_deleted_before_it_was_there(tmp_path: Path) -> None:
    source, store = GrowingSource(tmp_path / "data"), RiggedStore()
    source.write()

    def delete_once(operation: str, key: str) -> None:
        manifests = store.objects(MANIFEST)
        if operation == "list" and not key and manifests:
            store.before = quiet
            store.delete([manifests[0]])

    store.before = delete_once
    with pytest.raises(StoreUnavailableError, match="was deleted while the backup was made"):
        Backup([source.path], store).run()
    assert not store.objects(".json")
    assert Backup([source.path], store).run().committed
    assert check_store(store).whole


def test_what_a_killed_put_leaves_in_a_local_store_is_an_orphan(tmp_path: Path) -> None:
    source = GrowingSource(tmp_path / "data")
    source.write()
    store = open_store(str(tmp_path / "store"))
    Backup([source.path], store).run()
    manifest = next((tmp_path / "store").rglob(f"*{MANIFEST}"))
    left = manifest.with_name(".put-0123")
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    key = str(left.relative_to(tmp_path / "store"))
    assert faults(check_store(store)) == {(BackupFault.ORPHAN, key)}
    assert check_store(store, StoreCheckOptions(delete=True)).deleted == [key]
    assert not left.exists()
    left.write_bytes(b"of a backup that is on its way")
    assert check_store(store, StoreCheckOptions(delete=True)).whole
    assert left.exists()
