"""``mirror.json``: which cluster a directory mirrors, and whether it still does.

JSON text of one line::

    {"version": 1, "cluster_id": "…", "bootstrap": "host:9092", "state": "mirroring", …}

Kafka ignores the file, as it ignores every unknown name. It is there before the first record.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from checkpoints.checkpoint_file import CheckpointFile
from checkpoints.files import Files
from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.printable import printable
from logstore.format.filenames import TEMPORARY_SUFFIX, parse_segment_file, partition_dir
from logstore.manager import DirectoryContent, peek
from logstore.storage.base import FileInfo, Storage
from replication.mirror.errors import MirrorRefusedError
from replication.mirror.report import REPORT
from replication.mirror.source import SourceView

MIRROR_JSON = "mirror.json"
VERSION = 1


class MirrorState(Enum):
    MIRRORING = "mirroring"
    PROMOTED = "promoted"  # a cluster of its own, which must not follow its source any more


@dataclass(frozen=True, slots=True)
class MirrorIdentity:
    """
    Attributes:
        cluster_id: of the source.
        bootstrap: where the source was found last.
    """

    cluster_id: str
    bootstrap: str
    state: MirrorState = MirrorState.MIRRORING
    keep_deleted: bool = False
    topics: tuple[str, ...] = ()


class MirrorFile(CheckpointFile):
    """The file of one directory."""

    __slots__ = ()

    size_max = 16 << 20

    @classmethod
    def of(cls, directory: str, files: Files) -> MirrorFile:
        return cls(posixpath.join(directory, MIRROR_JSON), files)

    def read(self) -> MirrorIdentity | None:
        """The content, or None if the file is missing.

        Raises:
            MalformedCheckpointError: it is not such a file, or one of a later release.
            CheckpointFailedError: the medium refused.
        """
        data = self._load()
        if data is None:
            return None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise self._fault(1, data[:80], "is no JSON text") from None
        try:
            if found["version"] != VERSION:
                raise ValueError
            cluster_id, bootstrap = found["cluster_id"], found["bootstrap"]
            topics = found["topics"]
            if not all(isinstance(each, str) for each in (cluster_id, bootstrap, *topics)):
                raise TypeError
            return MirrorIdentity(
                cluster_id,
                bootstrap,
                MirrorState(found["state"]),
                found["keep_deleted"] is True,
                tuple(topics),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._fault(1, data[:80], f"is no {MIRROR_JSON} of version {VERSION}") from None

    def write(self, identity: MirrorIdentity) -> None:
        """Replace the file atomically and durably.

        Raises:
            CheckpointFailedError: the medium refused.
        """
        text = json.dumps(
            {
                "version": VERSION,
                "cluster_id": identity.cluster_id,
                "bootstrap": identity.bootstrap,
                "state": identity.state.value,
                "keep_deleted": identity.keep_deleted,
                "topics": list(identity.topics),
            }
        )
        self._store(text.encode() + b"\n")


def refusal(
    found: DirectoryContent, known: MirrorIdentity | None, cluster_id: str | None
) -> str | None:
    """Why a directory cannot mirror a cluster, from what it says of itself; None: it can.

    Args:
        cluster_id: of the source; None if it could not be asked.
    """
    if known is not None:
        if known.state is MirrorState.PROMOTED:
            return "it was promoted, and is a cluster of its own: it does not follow any more"
        if cluster_id not in (None, known.cluster_id):
            return f"it mirrors the cluster {known.cluster_id}, and this one is {cluster_id}"
        return None
    if found.meta is None:
        return (
            "it has logs, and no meta.properties that says of which cluster" if found.logs else None
        )
    if found.meta.cluster_id != cluster_id:
        return f"it belongs to the cluster {found.meta.cluster_id}, and the source is {cluster_id}"
    return None


def misplacement(directory: str, storage: Storage) -> str | None:
    """Why no mirror can begin in a directory, from what lies in and around it; None: one can."""
    parent = posixpath.dirname(directory)
    if posixpath.basename(directory) and any(
        storage.info(posixpath.join(parent, name)) for name in (MIRROR_JSON, META_PROPERTIES)
    ):
        return f"it lies in the log directory {parent}"
    if storage.info(directory) is None:
        return None
    entries = storage.scan_dir(directory)
    if any(each.is_file and parse_segment_file(each.name) is not None for each in entries):
        return "it is the directory of one partition, and not a log directory"
    if any(each.is_file and each.name == META_PROPERTIES for each in entries):
        return None
    strangers = [each.name for each in entries if not _may_be_here(each)]
    if strangers:
        return f"other things are in it, as {printable(strangers[0])}: give an empty directory"
    return None


def _may_be_here(entry: FileInfo) -> bool:
    """In a log directory, or in the root of an empty disk."""
    name = entry.name
    if entry.is_dir:
        return name.startswith(".") or name == "lost+found" or partition_dir(name) is not None
    return name.startswith((".", REPORT)) or name.endswith(("-checkpoint", TEMPORARY_SUFFIX))


def foreign_topics(
    found: DirectoryContent, view: SourceView, is_chosen: Callable[[str], bool]
) -> list[str]:
    """Topics of a copied directory that are others than the source's of the same name."""
    ids = {
        tp.topic: topic.topic_id
        for tp, own in found.logs.items()
        if is_chosen(tp.topic)
        and (topic := view.topics.get(tp.topic)) is not None
        and None not in (own, topic.topic_id)
        and own != topic.topic_id
    }
    return sorted(ids)


def settle(
    directory: str,
    storage: Storage,
    wanted: Callable[[str], MirrorIdentity],
    view: SourceView | None,
    is_chosen: Callable[[str], bool],
) -> MirrorIdentity:
    """Find out whether a directory is, or may become, a mirror of the source. Nothing is changed
    but ``mirror.json``. Call it under no lock: `LogManager` checks the cluster's id once more.

    Args:
        wanted: gives the identity to write, by the id of the cluster.
        view: None if the source cannot be asked now.
    Raises:
        MirrorRefusedError: it is not.
        MalformedCheckpointError, CheckpointFailedError: its ``mirror.json`` cannot be read.
    """
    file = MirrorFile.of(directory, storage)
    known, found = file.read(), peek(directory, storage)
    cluster_id = None if view is None else view.cluster_id
    if view is not None and cluster_id is None:
        raise MirrorRefusedError(directory, "the source does not say which cluster it is")
    reason = refusal(found, known, cluster_id)
    if reason is None and known is None:
        reason = misplacement(directory, storage)
    if reason is None and known is None and view is not None:
        foreign = foreign_topics(found, view, is_chosen)
        if foreign:
            names = ", ".join(foreign[:5]) + (", …" if len(foreign) > 5 else "")
            reason = f"the source has other topics under the names {names} (their ids differ)"
    if reason is not None:
        raise MirrorRefusedError(directory, reason)
    if known is not None and known.keep_deleted and not wanted("").keep_deleted:
        reason = (
            f"it keeps what the source deletes, and --keep-deleted is missing; without keep_deleted"
            f" in its {MIRROR_JSON} that is deleted"
        )
        raise MirrorRefusedError(directory, reason)
    cluster_id = cluster_id or (None if known is None else known.cluster_id)
    if cluster_id is None:
        raise MirrorRefusedError(directory, "it is new, and the source cannot be asked")
    return wanted(cluster_id)


__all__ = [
    "MIRROR_JSON",
    "MirrorFile",
    "MirrorIdentity",
    "MirrorState",
    "foreign_topics",
    "misplacement",
    "refusal",
    "settle",
]
