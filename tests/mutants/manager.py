"""Broken managers, after which something outlives its log."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from checkpoints.topic_properties import TopicPropertiesFile
from logstore.common.types import TopicPartition
from logstore.log.maintenance import LogMaintenance
from logstore.manager.log_dir import Creation, CreationFiles
from logstore.manager.offsets import (
    CHECKPOINTS,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoints,
    moved_start,
    recovery_point,
)
from logstore.manager.opener import LogCreator
from logstore.manager.topic_configs import TopicConfigs
from logstore.manager.topics import Topics
from logstore.testing import FaultyStorage
from tests.mutants import MonkeyPatch, mutant


@mutant(lives=20)
def entries_kept_on_delete(patch: MonkeyPatch) -> None:
    patch.setattr(OffsetCheckpoints, "forget_logs", lambda self, gone: None)


@mutant(lives=19)
def entries_dropped_in_memory_only(patch: MonkeyPatch) -> None:
    def mutant(self: OffsetCheckpoints, gone: Collection[TopicPartition]) -> None:
        for name in CHECKPOINTS:
            stored = self._stored.get(name) or {}
            self._stored[name] = {tp: o for tp, o in stored.items() if tp not in gone}

    patch.setattr(OffsetCheckpoints, "forget_logs", mutant)


@mutant(lives=20)
def entries_dropped_after_the_name_is_free(patch: MonkeyPatch) -> None:
    """With the next checkpoint: in between the name stands for another log."""
    drop, write = OffsetCheckpoints.forget_logs, OffsetCheckpoints.write_recovery_points

    def later(self: OffsetCheckpoints, gone: Collection[TopicPartition]) -> None:
        waiting.setdefault(id(self), set()).update(gone)

    def mutant(self: OffsetCheckpoints, logs: Any) -> Any:
        drop(self, waiting.pop(id(self), set()))
        return write(self, logs)

    waiting: dict[int, set[TopicPartition]] = {}
    patch.setattr(OffsetCheckpoints, "forget_logs", later)
    patch.setattr(OffsetCheckpoints, "write_recovery_points", mutant)


@mutant(lives=21)
def entries_without_a_directory_believed(patch: MonkeyPatch) -> None:
    """And a creation counts on it that the load dropped them."""
    load = OffsetCheckpoints.load

    class Everything(set[TopicPartition]):
        def __contains__(self, item: object) -> bool:
            return True

    patch.setattr(OffsetCheckpoints, "load", lambda self, present: load(self, Everything()))
    patch.setattr(LogCreator, "_drop_entries", lambda self, births: None)


@mutant(lives=69)
def entries_kept_when_a_log_begins_anew(patch: MonkeyPatch) -> None:
    patch.setattr(OffsetCheckpoints, "restart_log", lambda self, tp, start: None)


@mutant(cuts=6)
def deleted_records_come_back_with_a_cut(patch: MonkeyPatch) -> None:
    """A log that is cut below its start loses the start, and has records below it."""
    restart_log = OffsetCheckpoints.restart_log
    patch.setattr(
        OffsetCheckpoints, "restart_log", lambda self, tp, start: restart_log(self, tp, None)
    )


@mutant(lives=8)
def entries_above_the_log_kept_at_a_load(patch: MonkeyPatch) -> None:
    patch.setattr(OffsetCheckpoints, "lower_entries", lambda self, logs, concerned=None: None)


@mutant(lives=8)
def high_watermarks_kept_after_a_cut(patch: MonkeyPatch) -> None:
    lower = OffsetCheckpoints._lower_locked

    def mutant(
        self: OffsetCheckpoints, name: str, logs: Any, concerned: Any, offset_of: Any
    ) -> None:
        if offset_of is recovery_point:
            lower(self, name, logs, concerned, offset_of)

    patch.setattr(OffsetCheckpoints, "_lower_locked", mutant)


@mutant(lives=35)
def recovery_points_before_log_starts(patch: MonkeyPatch) -> None:
    def mutant(self: OffsetCheckpoints, logs: Any) -> Any:
        with self._lock:
            points = self._collect_locked(RECOVERY_POINT, logs, recovery_point)
            self._write_locked(RECOVERY_POINT, points)
            self._write_locked(LOG_START, self._collect_locked(LOG_START, logs, moved_start))
            return points

    patch.setattr(OffsetCheckpoints, "write_recovery_points", mutant)


@mutant(lives=20)
def log_starts_never_dropped(patch: MonkeyPatch) -> None:
    keep = OffsetCheckpoints._keep_locked

    def mutant(self: OffsetCheckpoints, *args: Any) -> None:
        stored = self._stored.pop(LOG_START, {})
        keep(self, *args)
        self._stored[LOG_START] = stored

    patch.setattr(OffsetCheckpoints, "_keep_locked", mutant)


@mutant(lives=17)
def deletion_not_durable(patch: MonkeyPatch) -> None:
    rename = Topics._delete_names

    def mutant(self: Topics, *args: Any) -> None:
        sync = FaultyStorage.sync_dir
        FaultyStorage.sync_dir = lambda self, path: None  # type: ignore[method-assign]
        try:
            rename(self, *args)
        finally:
            FaultyStorage.sync_dir = sync  # type: ignore[method-assign]

    patch.setattr(Topics, "_delete_names", mutant)


@mutant(cuts=21)
def entries_dropped_before_the_rename_is_durable(patch: MonkeyPatch) -> None:
    """A crash in between brings the log back without its log start."""
    rename = Topics._delete_names

    def mutant(self: Topics, log_dir: Any, delays: Any) -> None:
        log_dir.offsets.forget_logs(delays.keys())
        rename(self, log_dir, delays)

    patch.setattr(Topics, "_delete_names", mutant)


@mutant(cuts=24)
def entries_dropped_before_a_log_is_emptied(patch: MonkeyPatch) -> None:
    """A crash in between brings the records back without their log start."""
    restart = LogMaintenance._restart_structure_locked

    def mutant(self: LogMaintenance, *offsets: int) -> None:
        assert self._core.owner.on_restart is not None
        self._core.owner.on_restart(None)
        restart(self, *offsets)

    patch.setattr(LogMaintenance, "_restart_structure_locked", mutant)


@mutant(lives=1)
def name_free_before_the_rename(patch: MonkeyPatch) -> None:
    """The log is out of reach, and its directory as it was."""

    def retire(self: Topics, logs: Any) -> dict[Any, Any]:
        for *_, log in logs:
            log.crash()
        return {}

    patch.setattr(Topics, "_retire", retire)


@mutant(lives=8)
def creations_not_announced(patch: MonkeyPatch) -> None:
    patch.setattr(CreationFiles, "begin", lambda self, creation: None)


@mutant(lives=9)
def creations_announced_for_ever(patch: MonkeyPatch) -> None:
    patch.setattr(CreationFiles, "end", lambda self, creation: None)


@mutant(lives=1553)
def end_of_a_creation_not_durable(patch: MonkeyPatch) -> None:
    def mutant(self: CreationFiles, creation: Creation) -> None:
        self._storage.remove(self._path(creation.topic_id))

    patch.setattr(CreationFiles, "end", mutant)


@mutant(lives=1)
def configuration_not_stored(patch: MonkeyPatch) -> None:
    patch.setattr(TopicPropertiesFile, "write", lambda self, properties: None)
    patch.setattr(TopicConfigs, "stored", lambda self, topic: None)


@mutant(lives=86)
def half_a_change_of_a_configuration_kept(patch: MonkeyPatch) -> None:
    patch.setattr(Topics, "settle_configs", lambda self: None)


@mutant(lives=1)
def foreign_directory_taken_over(patch: MonkeyPatch) -> None:
    """A creation trusts what it finds; the deletion before it left the directory."""

    def retire(self: Topics, logs: Any) -> dict[Any, Any]:
        for log_dir, tp, log in logs:
            log.crash()
            log_dir.offsets.forget_logs({tp})
        return {}

    patch.setattr(Topics, "_retire", retire)
    patch.setattr(LogCreator, "clear_the_way", lambda self, log_dir, tp: None)
