"""Which segments are checked, and what becomes of those that cannot be."""

from __future__ import annotations

import pytest
from verify_logs import LOG_DIR, PARTITION, copy, log_dir, names, patch

from logstore.storage.base import FileInfo
from logstore.storage.memory import MemoryStorage
from logstore.verify import SegmentJob, SegmentResult, VerifyOptions, verify
from logstore.verify.plan import VerifyPlan
from logstore.verify.replicas import replicas


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), MemoryError()])
@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_that_fails_does_not_hide_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, number: int
) -> None:
    """S-49, I-18. Nothing is made up of what was not read: no gap, no end below a checkpoint."""
    storage = log_dir()
    first, second = names(storage, ".log")
    failing, other = (first, second) if number == 0 else (second, first)
    patch(storage, other, 100, b"\xff\xff")
    check = replicas.verify_segment

    def refuse(storage: object, job: SegmentJob, *rest: object) -> SegmentResult:
        if job.path(".log") == failing:
            raise failure
        return check(storage, job, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(replicas, "verify_segment", refuse)
    report = verify([LOG_DIR], storage=storage)
    assert [line.split(":")[0] for line in report.unusable] == [failing]
    assert [(f.rule, f.file) for f in report.findings] == [("log-checksum", other)]
    assert report.partitions == []
    assert not report.clean


def test_an_unknown_scheme_is_unusable_and_the_rest_is_checked() -> None:
    report = verify(["nowhere://bucket/logs", LOG_DIR])
    assert "nowhere" in report.unusable[0]
    assert len(report.unusable) == 2


def test_a_job_has_what_concerns_its_segment() -> None:
    """Not all snapshots and epochs of the log: jobs travel between machines."""
    storage = MemoryStorage()
    storage.make_dir(PARTITION)
    epochs = "".join(f"{n} {n * 10}\n" for n in range(1000))
    storage.write_file(f"{PARTITION}/leader-epoch-checkpoint", f"0\n1000\n{epochs}".encode())
    for n in range(1000):
        for suffix in (".log", ".index", ".timeindex", ".snapshot"):
            storage.write_file(f"{PARTITION}/{n * 10:020}{suffix}", b"")
    plan = VerifyPlan(VerifyOptions())
    plan.add(LOG_DIR, storage)
    (only,) = plan.replica_sets()
    only.prepare(plan.report)
    (check,) = only.checks
    assert len(check.jobs) == len(check.sizes) == 1000
    assert check.jobs[7].snapshots == (80,)
    assert check.jobs[7].epoch_starts == (70, 80)
    assert check.jobs[-1].next_base == -1


def test_what_is_given_twice_is_checked_once() -> None:
    """It is no replica of itself, and nothing is counted twice."""
    storage = log_dir()
    once = verify([LOG_DIR], storage=storage)
    for paths in ([LOG_DIR, LOG_DIR + "/", f"{LOG_DIR}/../{LOG_DIR}"], [PARTITION, LOG_DIR]):
        again = verify(paths, storage=storage)
        assert again.to_dict() == once.to_dict(), paths
    logs = names(storage, ".log")
    assert verify([*logs, *logs], storage=storage).files == verify(logs, storage=storage).files


def directory_of(name: str) -> MemoryStorage:
    """A directory with one log directory, which could be a partition by its name."""
    storage = log_dir()
    storage.make_dir("/all")
    storage.make_dir(f"/all/{name}")
    meta = b"version=1\nnode.id=0\ncluster.id=c\n"
    storage.write_file(f"/all/{name}/meta.properties", meta)
    storage.make_dir(f"/all/{name}/orders-0")
    return storage


def test_a_directory_of_log_directories_is_none() -> None:
    report = verify(["/all"], storage=directory_of("kafka-0"))
    assert report.partitions == []
    assert report.unusable == [
        "/all/kafka-0: a log directory inside another directory: its own path is wanted"
    ]


def test_the_brokers_of_a_cluster_are_checked() -> None:
    """``logstore serve`` calls their directories so: these are no partitions of a topic."""
    report = verify(["/all"], storage=directory_of("broker-0"))
    assert [each.directory for each in report.partitions] == ["/all/broker-0/orders-0"]
    assert report.unusable == []


def test_a_partition_deleted_meanwhile_is_told_and_the_rest_is_checked() -> None:
    """F-288. Its broker renames the directory, and removes it a minute later."""

    class Deleting(MemoryStorage):
        def scan_dir(self, path: str) -> list[FileInfo]:
            if path == f"{LOG_DIR}/aaa-0":
                raise FileNotFoundError(2, "No such file or directory", path)
            return super().scan_dir(path)

    made, storage = log_dir(), Deleting()
    copy(made, LOG_DIR, storage, LOG_DIR)
    storage.make_dir(f"{LOG_DIR}/aaa-0")
    for progress in (None, lambda done, total: None):
        report = verify([LOG_DIR], storage=storage, progress=progress)
        assert [(f.rule, f.topic, f.partition) for f in report.findings] == [
            ("file-vanished", "aaa", 0)
        ]
        assert report.clean
        assert [part.topic for part in report.partitions] == ["orders"]
