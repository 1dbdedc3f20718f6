"""A mirror of a scripted source: what it must hold whatever the source says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from checkpoints.types import TopicPartition
from logstore.storage.local import LocalStorage
from logstore.verify import Severity, verify
from replication.common.config import ReplicationConfig
from replication.mirror import Mirror
from tests.support.builders import batch
from tests.support.mirrors import mirror_of
from tests.support.scripted_source import (
    BatchHeader,
    ScriptedSource,
    SourceLog,
    SourceTopic,
    header_of,
    split,
)
from tests.support.until import until

QUICK = ReplicationConfig(
    replica_fetch_backoff_ms=20,
    replica_fetch_wait_max_ms=50,
    replica_socket_timeout_ms=2000,
)


def log_of(*runs: tuple[int, int], size: int = 2, start: int = 0, word: str = "v") -> SourceLog:
    """``(batches, epoch)``, each batch of ``size`` records that say where they are."""
    batches: list[bytes] = []
    at = start
    for count, epoch in runs:
        for _ in range(count):
            value = f"{word}{at}@{epoch}".encode()
            batches.append(batch(at, size, epoch=epoch, value=value))
            at += size
    last = max((epoch for _, epoch in runs), default=0)
    return SourceLog(batches, leader_epoch=last, log_start=start, base=start)


def grow(log: SourceLog, batches: int = 1, size: int = 2, word: str = "v") -> None:
    for _ in range(batches):
        at = log.end
        value = f"{word}{at}@{log.leader_epoch}".encode()
        log.batches.append(batch(at, size, epoch=log.leader_epoch, value=value))


def one_partition(log: SourceLog, **options: Any) -> SourceTopic:
    return SourceTopic({0: log}, **options)


@contextmanager
def mirroring(
    source: ScriptedSource, directory: Path, topics: Sequence[str] = (".*",), **options: Any
) -> Iterator[Mirror]:
    keys = {
        "reconnect.backoff.ms": "5",
        "reconnect.backoff.max.ms": "50",
        "request.timeout.ms": "2000",
    }
    settings = {"replication": QUICK, "metadata_interval_ms": 100, **options}
    with mirror_of(
        source.bootstrap,
        LocalStorage(),
        directory=str(directory),
        keys=keys,
        topics=tuple(topics),
        **settings,
    ) as mirror:
        mirror.start()
        yield mirror


# -- what lies on the disk -------------------------------------------------------------------------


def batches_of(directory: Path, tp: TopicPartition) -> list[bytes]:
    """All that the segments of a partition hold, also while it changes."""
    found = []
    for segment in sorted((directory / f"{tp.topic}-{tp.partition}").glob("*.log")):
        with suppress(FileNotFoundError):  # it was deleted, or begun again elsewhere
            found += split(segment.read_bytes())
    return found


def headers_of(directory: Path, tp: TopicPartition) -> list[BatchHeader]:
    return [header_of(each) for each in batches_of(directory, tp)]


def end_of(directory: Path, tp: TopicPartition) -> int:
    found = headers_of(directory, tp)
    return found[-1].last + 1 if found else 0


def check_is_run_of(found: Sequence[bytes], truth: Sequence[bytes], what: str = "") -> None:
    """What is kept is a run of what the source has, byte for byte."""
    if not found:
        return
    assert found[0] in truth, f"{what}: the source never had {header_of(found[0])}"
    at = truth.index(found[0])
    for number, (ours, theirs) in enumerate(zip(found, truth[at:], strict=False)):
        assert ours == theirs, f"{what}: batch {number}: {header_of(ours)}, not {header_of(theirs)}"
    assert len(found) <= len(truth) - at, f"{what}: more than the source had"


def check_holds(directory: Path, logs: Mapping[TopicPartition, SourceLog]) -> None:
    for tp, log in logs.items():
        check_is_run_of(batches_of(directory, tp), log.batches, str(tp))


def check_verifies(directory: Path) -> None:
    report = verify([str(directory)])
    wrong = [
        each for each in report.findings if each.severity in (Severity.ERROR, Severity.WARNING)
    ]
    assert not wrong, wrong


def report_of(directory: Path) -> list[dict[str, Any]]:
    path = directory / "mirror-report.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def reported(directory: Path, tp: TopicPartition) -> list[dict[str, Any]]:
    return [
        each
        for each in report_of(directory)
        if each.get("topic") == tp.topic and each.get("partition") in (None, tp.partition)
    ]


# -- waiting ---------------------------------------------------------------------------------------


def until_equal(source: ScriptedSource, directory: Path, *tps: TopicPartition) -> None:
    """Until the files hold all that the source has of these."""
    for tp in tps or tuple(source.logs()):
        log = source.logs()[tp]

        def is_there(tp: TopicPartition = tp, log: SourceLog = log) -> bool:
            wanted = [each for each in log.batches if header_of(each).last < log.committed]
            found = batches_of(directory, tp)
            return found[-len(wanted) :] == wanted if wanted else not found

        until(is_there, f"all of {tp} is mirrored")


def until_count(how_many: Callable[[], int], count: int, what: str) -> None:
    until(lambda: how_many() >= count, what)
