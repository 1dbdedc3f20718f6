"""Which segments are checked, and what becomes of those that cannot be."""

from __future__ import annotations

import pytest
from verify_logs import LOG_DIR, PARTITION, log_dir, names, patch

from logstore.storage.memory import MemoryStorage
from logstore.verify import SegmentJob, SegmentResult, VerifyOptions, replicas, verify
from logstore.verify.plan import Plan


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
    assert [(f.rule, f.file) for f in report.findings] == [("F-53", other)]
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
    plan = Plan(VerifyOptions())
    plan.add(LOG_DIR, storage)
    (only,) = plan.replica_sets()
    only.prepare(plan.report)
    (check,) = only.checks
    assert len(check.jobs) == len(check.sizes) == 1000
    assert check.jobs[7].snapshots == (80,)
    assert check.jobs[7].epoch_starts == (70, 80)
    assert check.jobs[-1].next_base == -1
