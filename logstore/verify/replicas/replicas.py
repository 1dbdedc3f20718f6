"""One partition in one or more directories: planned, and joined when its segments are done."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from checkpoints.partition_metadata import PARTITION_METADATA
from checkpoints.topic_properties import TOPIC_PROPERTIES, TopicProperties
from logstore.format import filenames
from logstore.storage.base import Storage
from logstore.verify.common.report import (
    Finding,
    PartitionReport,
    Severity,
    VerifyReport,
    error,
    info,
    warning,
)
from logstore.verify.partition.partition_check import PartitionCheck
from logstore.verify.replicas.compare import compare, plan_ranges
from logstore.verify.replicas.compared_replica import ComparedReplica
from logstore.verify.segment.scan import Progress, verify_segment
from logstore.verify.segment.segment_check import SegmentJob, SegmentResult, VerifyOptions

_LOOKS_MAX = 4


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a segment could not be read. ``name`` is the file, if it was not the log.

    The directory is left out, because an executor may know it by another name.
    """

    reason: str
    name: str = ""


def run_job(
    storage: Storage, job: SegmentJob, options: VerifyOptions, progress: Progress | None = None
) -> SegmentResult | Failure:
    """Run `verify_segment`, and return a failure as a value so that the other segments go on."""
    try:
        return verify_segment(storage, job, options, progress)
    except OSError as failure:
        name = os.path.basename(os.fsdecode(failure.filename or ""))
        return Failure(failure.strerror or str(failure), name)
    except MemoryError:
        return Failure("not enough memory to check it")


def _incoherent(check: PartitionCheck, results: Sequence[SegmentResult]) -> bool:
    """Whether the results may mix two moments of the directory.

    That is so if files were replaced since they were listed, and there is either a finding or a
    segment that vanished after one that did not. Retention deletes from the start on.

    Raises:
        OSError: the directory cannot be listed any more.
    """
    gone = [filenames.LOG_SUFFIX in result.vanished for result in results]
    suspects = any(finding.severity is not Severity.INFO for finding in check.findings)
    return (suspects or gone != sorted(gone, reverse=True)) and check.is_disturbed()


def _look_again(
    check: PartitionCheck, report: VerifyReport
) -> tuple[PartitionCheck, PartitionReport | None, list[SegmentResult]]:
    """Check a partition again whose segments were replaced during the check.

    If they are replaced each time there is no report, and the report of the run says so. Only
    findings of every attempt are kept.

    Raises:
        OSError: the partition cannot be read.
    """
    always = set(map(_identity, check.findings))
    for _ in range(_LOOKS_MAX):
        check = check.again()
        results, swapped = (
            [verify_segment(check.storage, job, check.options) for job in jobs]
            for jobs in (check.jobs, check.replacements.jobs)
        )
        partition = check.finish(results, swapped)
        if not _incoherent(check, results):
            return check, partition, results
        always &= set(map(_identity, check.findings))
    check.findings = [finding for finding in check.findings if _identity(finding) in always]
    message = f"busy: segments were replaced each of the {_LOOKS_MAX + 1} times they were read"
    report.refuse(check.directory, message)
    return check, None, results


def _identity(finding: Finding) -> tuple[str, str, int, int]:
    return finding.rule, finding.file, finding.position, finding.offset


def _differs(check: PartitionCheck, message: str) -> Finding:
    """A change is under way where a broker is at work, or was when it was killed."""
    severity = warning if check.facts.clean is None or check.closed_cleanly() else info
    return check.finding(TOPIC_PROPERTIES, severity("topic-properties", message))


@dataclass(slots=True)
class TopicIds:
    """Partitions of a topic share one id, on every broker, and with no other topic (F-37); and they
    have one configuration.
    """

    _first: dict[tuple[str, str], tuple[str, object]] = field(default_factory=dict)
    _owners: dict[tuple[str, UUID], dict[str, str]] = field(default_factory=dict)
    """The topics that have an id, each with the first file that says so."""
    _properties: dict[tuple[str, str], tuple[str, TopicProperties]] = field(default_factory=dict)
    _without: dict[tuple[str, str], list[PartitionCheck]] = field(default_factory=dict)
    """Partitions without properties, of topics where no partition with properties was seen."""

    def check(self, cluster: str, check: PartitionCheck) -> Iterator[Finding]:
        if check.tp is None or check.metadata is None:
            return
        path = os.path.join(check.directory, PARTITION_METADATA)
        topic, topic_id = check.tp.topic, check.metadata.topic_id
        first_path, first_id = self._first.setdefault((cluster, topic), (path, topic_id))
        if topic_id != first_id:
            message = f"topic id {topic_id}, in {first_path} it is {first_id}"
            yield check.finding(PARTITION_METADATA, error("topic-id", message, 2))
        owners = self._owners.setdefault((cluster, topic_id), {topic: path})
        if owners.setdefault(topic, path) == path != (first_path := next(iter(owners.values()))):
            message = f"topic id {topic_id} is that of another topic in {first_path}"
            yield check.finding(PARTITION_METADATA, error("topic-id", message, 2))

    def check_properties(self, check: PartitionCheck) -> Iterator[Finding]:
        """All partitions of a topic in one broker's directories have one configuration."""
        if check.tp is None or check.own is None:
            return
        path = os.path.join(check.directory, TOPIC_PROPERTIES)
        key, own = (check.facts.broker, check.tp.topic), check.own.properties
        if own is None:
            self._without.setdefault(key, []).append(check)
        else:
            first_path, first = self._properties.setdefault(key, (path, own))
            message = f"revision {own.revision}, in {first_path} it is {first.revision}"
            if own.revision == first.revision:
                message = f"not as in {first_path}, though of one revision"
            if own != first:
                yield _differs(check, message)
        if key in self._properties:
            message = f"missing, and there is {self._properties[key][0]}"
            for other in self._without.pop(key, ()):
                missing = os.path.join(other.directory, TOPIC_PROPERTIES)
                if other.storage.info(missing) is None:  # otherwise it is reported already, or new
                    yield _differs(other, message)


@dataclass(slots=True)
class ReplicaSet:
    """The given directories that hold one partition, often just one."""

    cluster: str
    options: VerifyOptions
    topic_ids: TopicIds
    checks: list[PartitionCheck] = field(default_factory=list)

    def prepare(self, report: VerifyReport) -> None:
        """List the directories and make the jobs."""
        ready = []
        for check in self.checks:
            try:
                check.prepare()
            except FileNotFoundError:
                # It was there when its log directory was listed (F-288).
                message = "vanished during the check: deleted or moved by its broker"
                report.findings.append(check.finding("", info("file-vanished", message)))
                continue
            except OSError as failure:
                report.refuse(check.directory, failure)
                continue
            ready.append(check)
            report.findings.extend(self.topic_ids.check(self.cluster, check))
            report.findings.extend(self.topic_ids.check_properties(check))
        self.checks = ready
        if self.options.compare:
            plan_ranges(ready)

    def finish(self, outcomes: Sequence[SegmentResult | Failure], report: VerifyReport) -> None:
        """Join the outcomes of all jobs, in the order of ``checks`` and of their ``jobs``."""
        replicas = []
        following = iter(outcomes)
        for check in self.checks:
            own, swaps = (
                list(islice(following, len(jobs))) for jobs in (check.jobs, check.replacements.jobs)
            )
            for job, outcome in zip(check.all_jobs, own + swaps, strict=True):
                if isinstance(outcome, Failure):
                    name = outcome.name or os.path.basename(job.path(filenames.LOG_SUFFIX))
                    report.refuse(os.path.join(job.directory, name), outcome.reason)
            results, swapped = (
                [outcome for outcome in some if isinstance(outcome, SegmentResult)]
                for some in (own, swaps)
            )
            try:
                partition: PartitionReport | None = check.finish(results, swapped)
                if len(results) == len(own) and _incoherent(check, results):
                    check, partition, results = _look_again(check, report)
                    own = [*results]
            except OSError as failure:
                report.refuse(check.directory, failure)
            else:
                # Otherwise a part of the counts would pass for all.
                if partition is not None and len(results) == len(own) and check.whole:
                    report.partitions.append(partition)
                    replicas.append(ComparedReplica(check, partition, results))
            report.files += check.files
            report.suppressed += check.suppressed
            report.extend(check.findings)
        if self.options.compare and len(replicas) > 1:
            self._compare(replicas, report)

    def _compare(self, replicas: Sequence[ComparedReplica], report: VerifyReport) -> None:
        try:
            report.extend(compare(replicas, self.options))
        except OSError as failure:
            report.refuse(self.checks[0].directory, f"not compared with its replicas: {failure}")
