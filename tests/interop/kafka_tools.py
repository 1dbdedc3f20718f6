"""Apache Kafka's own tools and clients as functions: dump, check, create, produce, consume.

Each call is one short JVM of about a second; ``produce`` takes many steps in one call for that
reason.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import kafka_jars

from tests.support.until import patience

PACKAGE = "logstore.interop"


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create ``topic``. ``configs`` are topic configs by Kafka's names."""

    topic: str
    partitions: int = 1
    configs: Mapping[str, str | int] = field(default_factory=dict)
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class ProduceRecords:
    """Write ``count`` records that follow from the fields alone; waits for acknowledgement.

    ``outcomes`` cuts the records into that many transactions of equal size and ends each as its
    letter says: ``C`` commits, ``A`` aborts, ``O`` leaves it open, which only the last one may.
    An open one stays open for 15 minutes, the longest that a broker allows. Empty: no transactions.

    Record ``i`` has the timestamp ``timestamp_start + i * timestamp_step``, less a random part of
    up to ``timestamp_jitter``; its value has 0 to ``value_bytes`` bytes. With ``null_keys`` every
    fifth key is null, with ``null_values`` every seventh value; with ``headers`` a record has none
    to three, among them null and empty values, repeated and non-ASCII names.
    """

    topic: str
    count: int
    partition: int = 0
    codec: str = "none"
    idempotent: bool = False
    outcomes: str = ""
    transactional_id: str = ""
    seed: int = 0
    headers: bool = False
    null_keys: bool = False
    null_values: bool = False
    value_bytes: int = 200
    batch_bytes: int = 4096
    timestamp_start: int = 1_700_000_000_000
    timestamp_step: int = 10
    timestamp_jitter: int = 0

    def __post_init__(self) -> None:
        if self.outcomes and not (self.idempotent and self.transactional_id):
            raise ValueError("a transaction needs idempotent=True and a transactional_id")
        if "O" in self.outcomes[:-1]:
            raise ValueError(f"only the last transaction may stay open: {self.outcomes}")


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """Raise the log start offset, as DeleteRecords requests do."""

    topic: str
    before_offset: int
    partition: int = 0


Step = CreateTopic | ProduceRecords | DeleteRecords
_OPERATIONS = {CreateTopic: "create", ProduceRecords: "produce", DeleteRecords: "deleteRecords"}


def _step(step: Step) -> str:
    fields: dict[str, Any] = {"op": _OPERATIONS[type(step)]}
    for name, value in asdict(step).items():
        head, *rest = name.split("_")
        fields[head + "".join(part.capitalize() for part in rest)] = value
    return json.dumps(fields)


def produce(
    bootstrap: str, *steps: Step, timeout_s: float = 2 * patience()
) -> list[dict[str, Any]]:
    """Carry out ``steps`` in order against the broker at ``bootstrap``.

    Returns:
        One dict a step: ``topic`` and ``topicId``; ``topic``, ``partition``, ``count``,
        ``firstOffset``, ``lastOffset`` of the records, without the control records after them; or
        ``topic``, ``partition``, ``logStartOffset``.
    Raises:
        JavaError: a step failed or was not done in time.
    """
    result = kafka_jars.run_java(
        f"{PACKAGE}.Produce",
        bootstrap,
        classes=kafka_jars.helper_classes(),
        stdin="".join(_step(step) + "\n" for step in steps),
        timeout_s=timeout_s,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def consume(
    bootstrap: str,
    topics: str | Sequence[str],
    *,
    read_committed: bool = False,
    group: str = "",
    timeout_s: int = int(patience()),
) -> list[dict[str, Any]]:
    """Read ``topics`` from their first offset to the end that the isolation level allows.

    A ``group`` commits its offsets at the end, which fills ``__consumer_offsets``.

    Returns:
        One dict a record, in offset order within a partition: ``topic``, ``partition``,
        ``offset``, ``timestamp``, ``timestampType`` (``CreateTime`` or ``LogAppendTime``), ``key``
        and ``value`` (bytes or ``None``), ``headers`` (list of name and bytes or ``None``),
        ``leaderEpoch`` (``None`` when the batch tells none).
    Raises:
        JavaError: the end was not reached in ``timeout_s``, or a batch was refused.
    """
    result = kafka_jars.run_java(
        f"{PACKAGE}.Consume",
        bootstrap,
        "read_committed" if read_committed else "read_uncommitted",
        str(timeout_s),
        group,
        *([topics] if isinstance(topics, str) else topics),
        classes=kafka_jars.helper_classes(),
        timeout_s=timeout_s + 30,
    )
    records = []
    for line in result.stdout.splitlines():
        record = json.loads(line)
        record["key"] = _bytes(record["key"])
        record["value"] = _bytes(record["value"])
        record["headers"] = [(name, _bytes(value)) for name, value in record["headers"]]
        records.append(record)
    return records


def look_up(
    bootstrap: str, questions: Sequence[tuple[str, int, int]], *, timeout_s: float = 2 * patience()
) -> list[tuple[int, int]]:
    """Ask the broker for offsets by timestamp, as a consumer's ``offsetsForTimes`` does.

    Args:
        questions: topic, partition and timestamp in ms; or −1, −2, −3 for the end, the start and
            the record with the largest timestamp.
    Returns:
        For each the offset and the timestamp found, both −1 where there is none.
    """
    fields = ("topic", "partition", "timestamp")
    lines = [json.dumps(dict(zip(fields, question, strict=True))) for question in questions]
    result = kafka_jars.run_java(
        f"{PACKAGE}.LookUp",
        bootstrap,
        classes=kafka_jars.helper_classes(),
        stdin="".join(line + "\n" for line in lines),
        timeout_s=timeout_s,
    )
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    return [(answer["offset"], answer["timestamp"]) for answer in answers]


def dump_log(paths: Iterable[Path], *, deep: bool = True, timeout_s: float = 2 * patience()) -> str:
    """Return what ``DumpLogSegments`` prints of ``.log``, index and ``.snapshot`` files.

    What it complains about comes last, under the line ``stderr:``. An index is read beside its
    ``.log`` file; Kafka creates an index file that it misses, so give it a directory of your own.
    """
    args = ["--files", ",".join(str(path) for path in paths)]
    if deep:
        args.append("--deep-iteration")
    result = kafka_jars.run_java(
        "org.apache.kafka.tools.DumpLogSegments", *args, timeout_s=timeout_s
    )
    return result.stdout + (f"stderr:\n{result.stderr}" if result.stderr else "")


def index_sanity(paths: Iterable[Path], *, timeout_s: float = 5 * patience()) -> list[str]:
    """Return what Kafka's classes find wrong with ``.log`` files, their indexes, and snapshots.

    Empty means accepted. Every batch's CRC is checked and every record unpacked; both sparse
    indexes must pass the check that decides at start whether they are rebuilt, must agree with
    the log entry by entry, and must lead look-ups by offset and by time to the answers that a scan
    of the log gives; every entry of the transaction index must have its abort marker. Files are
    not changed. What no CRC covers is only found where an index disagrees.

    After SIGKILL the indexes of an active segment end in zeros, which is a finding although a
    broker would merely rebuild them.
    """
    result = kafka_jars.run_java(
        f"{PACKAGE}.CheckIndexes",
        *(str(path) for path in paths),
        classes=kafka_jars.helper_classes(),
        jvm_options=("-Xmx2g", "-XX:+UseSerialGC"),  # every timestamp of a segment is in memory
        timeout_s=timeout_s,
        statuses=(0, 1),
    )
    findings = result.stdout.splitlines()
    if result.returncode != bool(findings):
        raise kafka_jars.JavaError(f"no findings yet status 1: {result.stderr}")
    return findings
