"""Act one, in order: write, kill, recover, prove, write to the end, prove again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from examples.demo import topic
from examples.demo.flights import Flight, Rows, by_partition, flights
from examples.demo.outcome import DemoOutcome, DemoPartition, DemoStep
from examples.demo.show import Show
from examples.demo.victim import Victim, WriterReport
from logstore import PartitionLog
from logstore.common.errors import LogstoreError
from logstore.verify import Severity, verify

BATCH_RECORDS_MAX = 2500
_BATCHES_MIN = 40
_TICK = 1000


def run(outcome: DemoOutcome, directory: str, partitions: int, show: Show) -> list[Rows]:
    """Run the story in the empty ``directory``. Returns the flights as they were sent.

    Raises only for bad input. What could not be proven is in ``outcome.faults``.
    """
    batch = batch_records(outcome.records)
    sent, written = _write_and_kill(outcome, directory, partitions, batch, show)
    try:
        _recover_and_finish(outcome, directory, sent, written, batch, show)
        if not outcome.faults:
            _check_the_end(outcome, directory, sent, show)
        if not outcome.faults:
            _verify(outcome, directory, show)
    except (LogstoreError, OSError) as error:  # after a crash this is not bad input
        outcome.faults.append(f"{type(error).__name__}: {error}")
    return sent


def batch_records(records: int) -> int:
    """The records of a batch: fewer in a short run, so that there is a middle for the kill."""
    return max(1, min(BATCH_RECORDS_MAX, records // _BATCHES_MIN))


def _write_and_kill(
    outcome: DemoOutcome, directory: str, partitions: int, batch: int, show: Show
) -> tuple[list[Rows], WriterReport]:
    rng = random.Random(outcome.seed)
    kill_after = int(outcome.records * rng.uniform(0.15, 0.85))
    part = rng.uniform(0.4, 1.1)
    with Victim(directory, outcome.records, partitions, batch) as victim:
        with show.progress("reading the flights", outcome.records) as advance:
            sent = by_partition(_counted(flights(outcome.records), advance), partitions)
        show.line(
            f"{outcome.records:,} flights in {partitions} partitions; a writer process appends "
            f"them to {directory}"
        )
        with show.progress("writer appends", outcome.records) as advance:
            written = victim.kill_in_append(kill_after, part, advance)
    outcome.steps.append(
        DemoStep("append, killed", written.appended, written.size, written.seconds)
    )
    show.line(
        f"killed the writer (SIGKILL, seed {outcome.seed}) "
        f"{'in mid-append' if written.in_append else 'before the last batch'} after "
        f"{written.appended:,} records; {sum(written.flushed):,} were flushed, in "
        f"{written.flushes} flushes"
    )
    return sent, written


def _recover_and_finish(
    outcome: DemoOutcome,
    directory: str,
    sent: list[Rows],
    written: WriterReport,
    batch: int,
    show: Show,
) -> None:
    started = time.perf_counter()
    manager, logs = topic.open_logs(directory, len(sent))
    seconds = time.perf_counter() - started
    with manager:
        for log, rows, flushed in zip(logs, sent, written.flushed, strict=True):
            report = log.recovery_report
            outcome.partitions.append(
                DemoPartition(
                    partition=log.topic_partition.partition,
                    sent=len(rows),
                    flushed=flushed,
                    recovered=log.log_end_offset,
                    bytes_scanned=report.bytes_scanned,
                    bytes_cut=report.bytes_cut,
                    cut_reason=report.cut_reason,
                    seconds=report.seconds,
                )
            )
        _tell_recovery(outcome, logs, seconds, show)
        _prove_recovered(outcome, logs, sent, written, show)
        if not outcome.faults:
            _append_rest(outcome, logs, sent, batch, show)


def _tell_recovery(
    outcome: DemoOutcome, logs: Sequence[PartitionLog], seconds: float, show: Show
) -> None:
    reports = [log.recovery_report for log in logs]
    scanned = sum(report.bytes_scanned for report in reports)
    records = sum(report.records_scanned for report in reports)
    outcome.steps.append(DemoStep("recovery", records, scanned, seconds))
    cut = sum(report.bytes_cut for report in reports)
    reasons = {report.cut_reason for report in reports if report.bytes_cut}
    why = f" ({', '.join(sorted(reasons))})" if reasons else ""
    show.line(
        f"opened again in {seconds * 1000:.0f} ms: {scanned / 1e6:.1f} MB of "
        f"{sum(log.size for log in logs) / 1e6:.1f} MB scanned, {cut:,} bytes cut{why}, "
        f"{sum(log.log_end_offset for log in logs):,} records recovered"
    )


def _prove_recovered(
    outcome: DemoOutcome,
    logs: list[PartitionLog],
    sent: list[Rows],
    written: WriterReport,
    show: Show,
) -> None:
    for log, flushed in zip(logs, written.flushed, strict=True):
        if log.log_end_offset < flushed:
            outcome.faults.append(
                f"{log.name}: {flushed:,} records were flushed and {log.log_end_offset:,} are left"
            )
    started = time.perf_counter()
    faults = [topic.compare(log, rows) for log, rows in zip(logs, sent, strict=True)]
    seconds = time.perf_counter() - started
    outcome.faults += filter(None, faults)
    recovered = sum(log.log_end_offset for log in logs)
    if recovered >= outcome.records:
        outcome.faults.append("the writer was done before it was killed")
    outcome.steps.append(DemoStep("compare", recovered, sum(log.size for log in logs), seconds))
    show.proven(outcome, "nothing that was flushed is gone")
    show.proven(
        outcome,
        "each partition is a prefix of what was sent: key, value and timestamp, record by record",
    )


def _append_rest(
    outcome: DemoOutcome, logs: list[PartitionLog], sent: list[Rows], batch: int, show: Show
) -> None:
    started = time.perf_counter()
    size = count = 0
    before = sum(log.log_end_offset for log in logs)
    with show.progress("appending the rest", outcome.records - before) as advance:
        for info in topic.append_missing(logs, sent, batch):
            count, size = count + info.record_count, size + info.size
            advance(count)
    for log in logs:
        log.flush()
    seconds = time.perf_counter() - started
    outcome.steps.append(DemoStep("append, the rest", count, size, seconds))
    show.line(f"went on where the logs end: {count:,} more records, flushed, closed")


def _check_the_end(outcome: DemoOutcome, directory: str, sent: list[Rows], show: Show) -> None:
    manager, logs = topic.open_logs(directory, len(sent))
    with manager:
        for log, rows, partition in zip(logs, sent, outcome.partitions, strict=True):
            partition.final = log.log_end_offset
            if not log.recovery_report.clean:
                outcome.faults.append(f"{log.name}: the stop was not a clean one")
            if partition.final != len(rows):
                outcome.faults.append(f"{log.name}: {partition.final:,} of {len(rows):,} records")
            outcome.faults += filter(None, [topic.compare(log, rows)])
        started = time.perf_counter()
        count = topic.read_all(logs)
        seconds = time.perf_counter() - started
        outcome.steps.append(
            DemoStep("read, checked", count, sum(log.size for log in logs), seconds)
        )
    show.proven(outcome, "closed cleanly; every flight is there once and in order, none is extra")


def _verify(outcome: DemoOutcome, directory: str, show: Show) -> None:
    """Check every file, byte by byte, with the second, independent reader."""
    started = time.perf_counter()
    report = verify([directory])
    seconds = time.perf_counter() - started
    count = sum(partition.records for partition in report.partitions)
    size = sum(partition.bytes for partition in report.partitions)
    outcome.steps.append(DemoStep("verify", count, size, seconds))
    outcome.faults += report.unusable
    outcome.faults += [str(f) for f in report.findings if f.severity is not Severity.INFO]
    if count != outcome.records:
        outcome.faults.append(f"verify counts {count:,} records")
    show.proven(
        outcome,
        f"every byte of {report.files} files verified: checksums, records, indexes, checkpoints",
    )


def _counted(source: Iterator[Flight], advance: Callable[[int], None]) -> Iterator[Flight]:
    for count, flight in enumerate(source, 1):
        if count % _TICK == 0:
            advance(count)
        yield flight
