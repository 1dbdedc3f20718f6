"""Log directories that another cluster wrote, looked at and planned for; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoints.partition_metadata import topic_id_to_text
from logstore.common.errors import ConfigError, CorruptDataError
from logstore.common.random_id import new_uuid, random_id
from logstore.format import filenames
from logstore.storage.base import Storage
from logstore.storage.overlay import OverlayStorage
from replication.adopt.cluster_metadata import ClusterImage, read_cluster_metadata
from replication.adopt.found import LogDirs, find_broker, log_dirs_of
from replication.adopt.plan import AdoptedCluster, AdoptionRules, plan
from replication.adopt.report import Kind, Remark
from replication.protocol import ProtocolError


def plan_adoption(
    paths: Sequence[str],
    overlay: OverlayStorage,
    rules: AdoptionRules,
    first_id: int | None = None,
    *,
    by_metadata: bool = True,
) -> AdoptedCluster:
    """Return the cluster that log directories are.

    Args:
        overlay: where recoveries write; nothing else is written.
        first_id: the broker of directories without ``meta.properties``.
        by_metadata: believe the metadata of the cluster that is there.
    Raises:
        ConfigError: they do not belong together, or cannot be read.
        LogDirLockedError: a broker has one open.
        StorageFailedError: a disk refused.
    """
    dirs = log_dirs_of(paths, overlay, first_id)
    cluster_id = dirs.cluster_id or topic_id_to_text(new_uuid(random_id))
    image = _image(dirs, overlay.lower) if by_metadata else None  # a view there copies nothing
    brokers = {
        broker: find_broker(broker, own, cluster_id, overlay)
        for broker, own in dirs.brokers.items()
    }
    return plan(cluster_id, brokers, image, rules, _notes(dirs, image))


def _image(dirs: LogDirs, storage: Storage) -> ClusterImage | None:
    """The newest metadata of all that are there."""
    found: list[ClusterImage] = []
    for path in dirs.with_metadata:
        try:
            image = read_cluster_metadata(path, storage)
        except (CorruptDataError, ProtocolError) as error:
            raise ConfigError(
                f"the metadata of the cluster cannot be read: {error}. Without it topics and "
                "replicas are those whose logs are here, and topics keep everything: move "
                "__cluster_metadata-0 elsewhere for that"
            ) from error
        if image is not None:
            found.append(image)
    return max(found, key=lambda image: image.end_offset, default=None)


def _notes(dirs: LogDirs, image: ClusterImage | None) -> list[Remark]:
    others: dict[Kind, list[str]] = {}
    for name in dirs.others:
        is_deleted = name.endswith(filenames.DELETE_DIR_SUFFIX)
        others.setdefault(Kind.DELETED if is_deleted else Kind.LEFT_ALONE, []).append(name)
    found = [kind.note(names) for kind, names in others.items()]
    if image is None:
        return [Kind.NO_METADATA.note(), *found]
    return [*(Remark("metadata", note) for note in image.notes), *found]
