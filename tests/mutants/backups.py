"""Broken backups: what they believe of a source and of a store."""

from __future__ import annotations

from typing import Any

from logstore.backup import check, engine, keeping, restoring
from logstore.backup.engine import Backup
from logstore.backup.patience import PatientStore
from logstore.backup.writer import SegmentWriter
from tests.mutants import MonkeyPatch, mutant


@mutant()
def nothing_is_read_back(patch: MonkeyPatch) -> None:
    patch.setattr(SegmentWriter, "_is_there", lambda *_: True)
    patch.setattr(Backup, "_check_all_is_there", lambda *_: None)


@mutant()
def a_commit_replaces_another(patch: MonkeyPatch) -> None:
    put = PatientStore.put

    def mutant(self: PatientStore, *args: Any, only_if_absent: bool = False) -> None:
        put(self, *args)

    patch.setattr(PatientStore, "put", mutant)


@mutant()
def any_source_may_go_into_a_store(patch: MonkeyPatch) -> None:
    patch.setattr(Backup, "_check_owner", lambda *_: None)


class _AnyChecksum(int):
    def __ne__(self, other: object) -> bool:
        return False


@mutant()
def objects_are_restored_as_they_come(patch: MonkeyPatch) -> None:
    patch.setattr(restoring, "crc32c", lambda part, crc: _AnyChecksum())


@mutant()
def damage_drops_what_the_store_has(patch: MonkeyPatch) -> None:
    patch.setattr(engine, "keeps_more", lambda known, scanned: False)


@mutant()
def what_the_source_lacks_is_dropped(patch: MonkeyPatch) -> None:
    patch.setattr(keeping, "_further", lambda *_: [])


@mutant()
def what_the_source_lost_leaves_the_backup(patch: MonkeyPatch) -> None:
    patch.setattr(engine, "with_missing", lambda before, now: (now, ()))


@mutant()
def what_the_store_has_is_believed(patch: MonkeyPatch) -> None:
    patch.setattr(Backup, "_read_what_is_there", lambda *_: None)


@mutant()
def what_a_backup_takes_over_is_deleted(patch: MonkeyPatch) -> None:
    patch.setattr(check._Check, "_taken_meanwhile", lambda *_: set())


@mutant()
def a_backup_names_what_is_gone(patch: MonkeyPatch) -> None:
    patch.setattr(Backup, "_check_all_is_there", lambda *_: None)


@mutant()
def what_another_run_took_is_dropped(patch: MonkeyPatch) -> None:
    patch.setattr(keeping, "_named_since", lambda *_: set())


@mutant()
def a_stranger_is_taken_for_the_source(patch: MonkeyPatch) -> None:
    patch.setattr(engine, "goes_on", lambda before, topics: True)


@mutant()
def any_damage_leaves_the_front(patch: MonkeyPatch) -> None:
    front = restoring._Restore._front

    def mutant(self: Any, path: str, segment: Any) -> int:
        found = front(self, path, segment)
        return found if found > segment.base_offset else segment.end_offset

    patch.setattr(restoring._Restore, "_front", mutant)
