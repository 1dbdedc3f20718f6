"""A whole mirror, or a part of it, beside its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from checkpoints.errors import MalformedCheckpointError
from checkpoints.meta_properties import META_PROPERTIES, MetaPropertiesFile
from checkpoints.printable import printable
from checkpoints.topic_properties import TOPIC_PROPERTIES, TopicPropertiesFile
from checkpoints.types import TopicPartition
from logstore.common.clock import Clock
from logstore.common.errors import ConfigError, CorruptDataError, LogstoreError
from logstore.directory.errors import NotALogDirectoryError
from logstore.directory.layout import LogDirFiles, list_partitions
from logstore.directory.listing import PartitionLayout
from logstore.storage.uri import join_uri, open_storage, shown
from replication.admin import AdminClient, Answered
from replication.admin.topics import describe_configs
from replication.mirror.checking.local_batches import LocalExtent, extent_of, local_extent
from replication.mirror.checking.partition_check import CheckedPartition, MirroredPartitionCheck
from replication.mirror.checking.report import (
    DifferenceKind,
    MirrorCheckReport,
    PartitionComparison,
    UncomparedReason,
)
from replication.mirror.checking.source_batches import ReadPace, SourceBatches, SourceBounds
from replication.mirror.config import MirrorConfig
from replication.mirror.identity import MIRROR_JSON, MirrorFile

CLEANUP_POLICY = "cleanup.policy"
_COMPACT = "compact"
_AT_ONCE = 1000  # partitions whose ends are asked for in one request

Progress = Callable[[int, int], None]
"""Called with the bytes that were compared, and those that there are to compare."""


@dataclass(frozen=True, slots=True)
class MirrorCheckOptions:
    """
    Attributes:
        wants: which topics, by name; None: those that the directory mirrors, or all.
        bytes_per_s: at most so much is read from the source; None is no limit.
    """

    wants: Callable[[str], bool] | None = None
    bytes_per_s: float | None = None


def check(
    client: AdminClient,
    directory: str,
    options: MirrorCheckOptions | None = None,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> MirrorCheckReport:
    """Compare each partition of a log directory with that of a running cluster, which may be in use
    on both sides. Nothing is written, and no lock is taken.

    Args:
        directory: a mirror, a backup of one, or any copy of a log directory; a path or a URI.
    Raises:
        ConfigError: the directory is that of another cluster.
        NotALogDirectoryError: it is none.
        WireError: no broker answers.
        OSError: the files cannot be read.
    """
    options = options or MirrorCheckOptions()
    wants = options.wants or _mirrored(directory)
    layouts = list_partitions([directory], lambda topic, *_: wants(topic))
    source = SourceBatches(client, ReadPace(options.bytes_per_s, clock))
    cluster_id, topics = source.topics()
    _refuse_another_cluster(directory, cluster_id)
    report = MirrorCheckReport(cluster_id or "")
    mine = {TopicPartition(each.topic, each.partition): each for each in layouts}
    extents, damaged = _extents(mine)
    theirs = _partitions_of(topics, wants)
    tps = sorted({*mine, *theirs})
    compacted = _compacted(client, {tp.topic for tp in mine if tp.topic in topics}, mine)
    total = sum(sum(s.size for s in each.layout.segments) for each in extents.values())
    done = 0

    def on_bytes(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, max(done, total))

    asked = [tp for tp in tps if theirs.get(tp)]
    bounds: dict[TopicPartition, SourceBounds] = {}
    for at in range(0, len(asked), _AT_ONCE):
        bounds |= source.bounds(asked[at : at + _AT_ONCE])
    for tp in tps:
        found = PartitionComparison(tp)
        if tp in damaged:
            found.add(DifferenceKind.MISSING, -1, -1, f"the log cannot be read: {damaged[tp]}")
        elif (known := _unasked(tp, topics, bounds, mine.get(tp), found)) is not None:
            topic_id = topics[tp.topic].value.topic_id
            look = partial(_look, mine[tp].uri, directory)
            checked = CheckedPartition(
                tp, topic_id, extents[tp], look, compacted.get(tp.topic, True)
            )
            found = MirroredPartitionCheck(checked, source, known, on_bytes).run()
        report.partitions.append(found)
    return report


def _mirrored(directory: str) -> Callable[[str], bool]:
    """Which topics a mirror follows; all of any other directory."""
    storage, path = open_storage(directory)
    with suppress(MalformedCheckpointError, NotADirectoryError, ConfigError):
        identity = MirrorFile.of(path, storage).read()
        if identity is not None:
            return MirrorConfig(topics=identity.topics).choice()
    return lambda topic: True


def _refuse_another_cluster(directory: str, cluster_id: str | None) -> None:
    """
    Raises:
        ConfigError: ``meta.properties`` or ``mirror.json`` names another cluster.
    """
    for name, read in ((META_PROPERTIES, MetaPropertiesFile), (MIRROR_JSON, MirrorFile)):
        own = None
        storage, path = open_storage(join_uri(directory, name))
        with suppress(MalformedCheckpointError, NotADirectoryError):
            found = read(path, storage).read()
            own = None if found is None else found.cluster_id
        if own and cluster_id and own != cluster_id:
            raise ConfigError(
                f"{printable(shown(directory))} is of the cluster {printable(own)}, and not of "
                f"{printable(cluster_id)}, which answers"
            )


def _extents(
    layouts: Mapping[TopicPartition, PartitionLayout],
) -> tuple[dict[TopicPartition, LocalExtent], dict[TopicPartition, str]]:
    """Where each log begins and ends, and why that is not known of some."""
    found, damaged = {}, {}
    for tp, layout in layouts.items():
        try:
            found[tp] = extent_of(layout)
        except CorruptDataError as error:
            damaged[tp] = str(error)
        except FileNotFoundError:
            damaged[tp] = "it was deleted while it was listed"
    return found, damaged


def _look(uri: str, directory: str) -> LocalExtent | None:
    beside = LogDirFiles(directory, note=lambda text: None)
    try:
        beside.read()
        return local_extent(uri, beside)
    except (NotALogDirectoryError, FileNotFoundError, CorruptDataError):
        return None


def _partitions_of(
    topics: Mapping[str, Answered], wants: Callable[[str], bool]
) -> dict[TopicPartition, bool]:
    """The partitions that the source names, and whether without an error of their topic."""
    return {
        each.tp: not answer.code
        for name, answer in topics.items()
        if wants(name)
        for each in answer.value.partitions
    }


def _unasked(
    tp: TopicPartition,
    topics: Mapping[str, Answered],
    bounds: Mapping[TopicPartition, SourceBounds],
    layout: PartitionLayout | None,
    found: PartitionComparison,
) -> SourceBounds | None:
    """The bounds of a partition that can be compared; None, and a note, for another."""
    answer = topics.get(tp.topic)
    if answer is not None and answer.code:
        found.leave_out(UncomparedReason.NOT_ASKED, -1, -1, str(answer))
        return None
    known = bounds.get(tp)
    if known is None:
        found.leave_out(UncomparedReason.GONE, -1, -1)
        return None
    if known.failure is not None:
        found.leave_out(UncomparedReason.NOT_ASKED, -1, -1, str(known.failure))
        return None
    if layout is None:
        span = (known.start, known.end) if known.start < known.end else (-1, -1)
        found.leave_out(UncomparedReason.NOT_HERE, *span)
        return None
    theirs = topics[tp.topic].value.topic_id if answer is not None else None
    if layout.topic_id and theirs and layout.topic_id != theirs:
        message = f"another topic of the name: id {layout.topic_id} here, {theirs} at the source"
        found.add(DifferenceKind.TOPIC, -1, -1, message)
        return None
    return known


def _compacted(
    client: AdminClient, names: set[str], layouts: Mapping[TopicPartition, PartitionLayout]
) -> dict[str, bool]:
    """Whether the source compacts a topic; a topic without an answer may be."""
    found: dict[str, bool] = {}
    own = {tp.topic: layout.uri for tp, layout in layouts.items()}
    answers: Mapping[str, Answered] = {}
    with suppress(LogstoreError):
        answers = describe_configs(client, sorted(names)) if names else {}
    for name in names:
        answer = answers.get(name)
        if answer is not None and not answer.code:
            policy = (answer.value.get(CLEANUP_POLICY) or ("", 0))[0] or ""
        else:
            policy = _own_policy(own[name])
        found[name] = _COMPACT in policy
    return found


def _own_policy(uri: str) -> str:
    """As the mirror has it on file; not known is taken for compacted."""
    storage, path = open_storage(join_uri(uri, TOPIC_PROPERTIES))
    try:
        stored = TopicPropertiesFile(path, storage).read()
    except MalformedCheckpointError:
        stored = None
    return _COMPACT if stored is None else stored.values.get(CLEANUP_POLICY, "")
