"""Configurations of topics that a broker of KRaft keeps in its metadata log, not beside records.

Who can read that log is plugged in from above: the entry point ``topic_configs`` of the group
``logstore.backup``. It is called with a log directory, and gives Kafka's keys by topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from checkpoints.errors import CheckpointError
from logstore.common.errors import LogstoreError
from logstore.format.filenames import CLUSTER_METADATA_DIR
from logstore.storage.uri import join_uri, open_storage, shown

ENTRY_POINT_GROUP = "logstore.backup"

Configs = Mapping[str, Mapping[str, str]]
Note = Callable[[str], None]


def topic_configs(log_dirs: Sequence[str], note: Note) -> dict[str, Mapping[str, str]]:
    """What the metadata logs in some log directories say. ``note`` is told why one says nothing."""
    found: dict[str, Mapping[str, str]] = {}
    for log_dir in log_dirs:
        storage, path = open_storage(join_uri(log_dir, CLUSTER_METADATA_DIR))
        if storage.info(path) is None:
            continue
        read = _plugged()
        if read is None:
            note(f"{shown(log_dir)}: nothing that reads its metadata log is installed")
            continue
        try:
            found.update(read(log_dir))
        except (LogstoreError, CheckpointError, OSError) as error:
            note(f"{shown(log_dir)}: configurations of topics are not known: {error}")
    return found


@cache
def _plugged() -> Callable[[str], Configs] | None:
    from importlib.metadata import entry_points  # 60 ms, needed by few

    points = entry_points(group=ENTRY_POINT_GROUP, name="topic_configs")
    return next((point.load() for point in points), None)


__all__ = ["ENTRY_POINT_GROUP", "topic_configs"]
