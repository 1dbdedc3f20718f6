"""Reports made by hand, as large and as nasty as needed."""

from __future__ import annotations

from logstore.verify.common.report import UNKNOWN, Finding, PartitionReport, Severity, VerifyReport

MADE_MS = 1_700_000_000_000
BROKERS = ("1", "2", "3")


def directory(broker: str, topic: str, partition: int) -> str:
    return f"/data/broker-{broker}/{topic}-{partition}"


def replica(
    broker: str,
    topic: str,
    partition: int,
    *,
    end: int = 100_000,
    epochs: tuple[tuple[int, int, int], ...] = (),
    segments: int = 4,
) -> PartitionReport:
    """A replica with offsets from 0 to ``end``, in segments of equal size."""
    each = max(end // segments, 1)
    return PartitionReport(
        directory(broker, topic, partition),
        topic,
        partition,
        segments=segments,
        bytes=end * 117,
        batches=end // 100,
        records=end,
        log_end_offset=end,
        fingerprint=f"{end:032x}",
        broker=broker,
        high_watermark=end - 25,
        recovery_point=end // 2,
        min_timestamp=MADE_MS,
        max_timestamp=MADE_MS + end * 10,
        epochs=epochs or ((0, 0, end // 3), (4, end // 3 + 1, end - 1)),
        segment_sizes=tuple((base, each * 117, each) for base in range(0, end, each)),
    )


def finding(
    severity: Severity,
    rule: str,
    broker: str,
    topic: str,
    partition: int,
    offset: int,
    message: str,
    file: str = "00000000000000000000.log",
) -> Finding:
    place = offset * 117 if offset >= 0 else UNKNOWN
    return Finding(
        severity,
        rule,
        f"{directory(broker, topic, partition)}/{file}",
        message,
        topic,
        partition,
        position=place,
        offset=offset,
        broker=broker,
    )


def cluster() -> VerifyReport:
    """Three brokers, four partitions; one replica lags, one parted, one has damaged batches."""
    report = VerifyReport(files=196, suppressed=17)
    for topic, partition, size in (("flights", 0, 90), ("flights", 1, 61), ("orders", 0, 20)):
        for broker in BROKERS:
            behind = 7_000 if (topic, partition, broker) == ("flights", 1, "3") else 0
            report.partitions.append(
                replica(broker, topic, partition, end=size * 1_000 - behind, segments=size // 10)
            )
    parted = ((0, 0, 8_000), (1, 8_001, 9_500), (3, 9_501, 17_499))
    for broker in BROKERS:
        epochs = (*parted, (5, 17_500, 29_999))
        if broker == "2":
            epochs = (*parted[:2], (2, 9_501, 12_000), (5, 12_001, 29_999))
        report.partitions.append(
            replica(broker, "payments", 0, end=30_000, epochs=epochs, segments=3)
        )
    report.extend(
        [
            finding(
                Severity.ERROR,
                "log-checksum",
                "2",
                "flights",
                0,
                offset,
                "the checksum does not match",
            )
            for offset in (1_200, 1_300, 1_400, 40_000, 41_000, 77_777)
        ]
    )
    report.extend(
        [
            finding(
                Severity.ERROR,
                "I-22",
                "2",
                "payments",
                0,
                9_501,
                "diverges from broker 1 at offset 9501: epoch 2, 61 records here; epoch 3, "
                "100 records there; they parted after epoch 1",
            ),
            finding(
                Severity.WARNING,
                "log-torn-end",
                "3",
                "flights",
                1,
                54_000,
                "a torn batch of 61 bytes: the next start cuts it",
            ),
            finding(
                Severity.WARNING,
                "timeindex-last-entry",
                "3",
                "flights",
                1,
                40_000,
                "final entry missing",
                "00000000000000040000.timeindex",
            ),
            finding(
                Severity.INFO,
                "epochs-start",
                "1",
                "orders",
                0,
                UNKNOWN,
                "missing: leader epochs are compared with their neighbours only",
                "leader-epoch-checkpoint",
            ),
            finding(
                Severity.INFO,
                "log-compacted-gap",
                "1",
                "orders",
                0,
                12_000,
                "3 gaps between offsets",
            ),
            Finding(Severity.WARNING, "meta-missing", "/data/broker-3/meta.properties", "missing"),
        ]
    )
    return report


def hostile() -> VerifyReport:
    """What an attacker could write: markup, control characters, a path that is no UTF-8."""
    evil = '<script>document.title="owned"</script><img src=x onerror="document.title=1">'
    report = VerifyReport(files=1, unusable=[f"{evil}: permission denied"])
    report.partitions.append(
        PartitionReport(
            f"/data/{evil}",
            evil,
            0,
            bytes=10,
            records=1,
            log_end_offset=1,
            broker='"><b>1',
            segments=1,
            epochs=((0, 0, 0),),
        )
    )
    report.findings.append(
        Finding(
            Severity.ERROR,
            evil,
            f"/data/{evil}/\udcff\u202e.log",
            f"{evil}\x00\n\x1b[31m",
            evil,
            0,
            position=1,
            offset=0,
            broker='"><b>1',
        )
    )
    return report


def large(partitions: int = 5_000, findings: int = 10_000) -> VerifyReport:
    """As many partitions and findings as asked for, with paths and messages of usual length."""
    report = VerifyReport(files=partitions * 12)
    for number in range(partitions):
        broker, topic = BROKERS[number % 3], f"a-topic-with-a-rather-long-name-{number // 30}"
        report.partitions.append(replica(broker, topic, number // 3 % 10, end=1_000 + number))
    for number in range(findings):
        held = report.partitions[number % partitions]
        report.findings.append(
            finding(
                list(Severity)[number % 3],
                f"F-{number % 60}",
                held.broker,
                held.topic,
                held.partition,
                number % 1_000,
                "the checksum of the batch is 0x1234abcd, its content gives 0xabcd1234",
            )
        )
    return report
