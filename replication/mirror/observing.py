"""A mirror for people, probes and Prometheus: pure functions of one look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from replication.broker.metrics import Sample
from replication.mirror.continuous_backup import BackupStatus
from replication.mirror.report import MirrorEventKind
from replication.mirror.status import MirroredStatus, MirrorStatus, PartitionState

SILENT_MS = 60_000
"""A source that has not answered for so long is not healthy."""
PARTITIONS_MAX = 2000
"""With more partitions than that there are metrics of topics only, and with more topics than that
only of the whole: what Prometheus keeps of each grows without a bound otherwise."""
NAMED_MAX = 20
"""The most partitions that one answer names as unwell."""
_UNWELL = (PartitionState.REFUSED, PartitionState.FAILED)


class MirrorView(NamedTuple):
    """One look.

    Attributes:
        events: of this run, by kind.
        backup: None: it makes no backups.
    """

    status: MirrorStatus
    events: Mapping[MirrorEventKind, int] = {}
    backup: BackupStatus | None = None


def problems(view: MirrorView) -> list[str]:
    """Why it is not well, a line each; none while it is. To be behind is no problem."""
    status, found = view.status, []
    if status.failure:
        found.append(status.failure)
    ago_ms = status.answered_ms_ago
    if ago_ms is None or ago_ms >= SILENT_MS:
        since = "in this run" if ago_ms is None else f"for {ago_ms // 1000} s"
        reason = f": {status.unreachable}" if status.unreachable else ""
        found.append(f"the source has not answered {since}{reason}")
    unwell = [(tp, each) for tp, each in status.partitions.items() if each.state in _UNWELL]
    found += [f"{tp} is {each.state.value}: {each.reason}" for tp, each in unwell[:NAMED_MAX]]
    if len(unwell) > NAMED_MAX:
        found.append(f"{len(unwell) - NAMED_MAX} more partitions are not mirrored")
    if view.backup is not None and view.backup.failure:
        found.append(f"no backup to {view.backup.uri}: {view.backup.failure}")
    return found


def summary(view: MirrorView) -> dict[str, Any]:
    """The numbers of the whole, as JSON."""
    status, backup = view.status, view.backup
    found: dict[str, Any] = {
        "clusterId": status.cluster_id,
        "partitions": len(status.partitions),
        "caughtUp": status.count(PartitionState.CAUGHT_UP),
        "states": {
            state.value: count for state in PartitionState if (count := status.count(state))
        },
        "lag": status.lag,
        "bytes": status.bytes,
        "cuts": status.cuts,
        "findings": status.findings,
        "answeredMsAgo": status.answered_ms_ago,
        "problems": problems(view),
    }
    if backup is not None:
        found["backup"] = {
            "uri": backup.uri,
            "completed": backup.completed,
            "completedMsAgo": backup.completed_ms_ago,
            "failures": backup.failures,
            "failure": backup.failure,
            "findings": list(backup.findings),
        }
    return found


def state(view: MirrorView) -> dict[str, Any]:
    """As ``summary``, and each partition."""
    return summary(view) | {
        "partitions": [_partition(tp, each) for tp, each in sorted(view.status.partitions.items())]
    }


def _partition(tp: TopicPartition, each: MirroredStatus) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "state": each.state.value,
        "logStartOffset": each.log_start_offset,
        "logEndOffset": each.log_end_offset,
        "sourceHighWatermark": each.source_high_watermark,
        "lag": each.lag,
        "bytes": each.bytes,
        "cuts": each.cuts,
        "reason": each.reason,
    }


def samples(view: MirrorView) -> Iterator[Sample]:
    """The metrics: a bounded number of them, whatever the source has."""
    status = view.status
    yield Sample("lag_records", status.lag)
    yield Sample("bytes", status.bytes, is_counter=True)
    yield Sample("cuts", status.cuts, is_counter=True)
    yield Sample("findings", status.findings, is_counter=True)
    for kind in MirrorEventKind:
        labels = (("kind", kind.word),)
        yield Sample("events", view.events.get(kind, 0), labels, is_counter=True)
    for each in PartitionState:
        yield Sample("partitions", status.count(each), (("state", each.value),))
    yield Sample("failed", bool(status.failure))
    yield Sample("source_reachable", not status.unreachable and status.answered_ms_ago is not None)
    if status.answered_ms_ago is not None:
        yield Sample("seconds_since_answer", status.answered_ms_ago / 1000)
    yield from _lags(status.partitions)
    if (backup := view.backup) is not None:
        yield Sample("backups", backup.completed, is_counter=True)
        yield Sample("backup_failures", backup.failures, is_counter=True)
        yield Sample("backup_failing", bool(backup.failure))
        if backup.completed_ms_ago is not None:
            yield Sample("seconds_since_backup", backup.completed_ms_ago / 1000)


def _lags(partitions: Mapping[TopicPartition, MirroredStatus]) -> Iterator[Sample]:
    rows = sorted(partitions.items())
    topics = [(topic, [*own]) for topic, own in groupby(rows, key=lambda row: row[0].topic)]
    if len(topics) <= PARTITIONS_MAX:
        for topic, own in topics:
            known = [each.lag for _, each in own if each.lag is not None]
            if known:  # nobody is told of a lag of 0 before the source has said where it ends
                yield Sample("topic_lag_records", sum(known), (("topic", topic),))
    if len(rows) <= PARTITIONS_MAX:
        for tp, each in rows:
            if each.lag is not None:
                labels = (("topic", tp.topic), ("partition", str(tp.partition)))
                yield Sample("partition_lag_records", each.lag, labels)


__all__ = ["MirrorView", "problems", "samples", "state", "summary"]
