"""What ``logstore rescue`` of the directories that were verified would bring back.

A rescue judges by itself: nothing of it is repeated here, it is asked in a dry run.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkpoints import TopicPartition
from checkpoints.printable import printable
from logstore.common.errors import LogstoreError
from logstore.common.random_id import random_id
from logstore.storage.base import Storage
from logstore.storage.broker_directories import broker_directories
from logstore.storage.local import LocalStorage
from logstore.verify import Progress, Severity, VerifyReport

if TYPE_CHECKING:
    from logstore.rescue import PartitionRescue, RescueReport

_READ_MAX = 16 << 30
"""More bytes than that are not read once more for it. The command is told all the same."""

_LISTED_MAX = 20
_LOST = ("index-without-log",)
"""A warning, because retention may have been stopped on its way; or a segment is lost."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """``found`` is the report of the dry run; without one ``reason`` says why."""

    command: str
    found: RescueReport | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        found = [] if self.found is None else self.found.partitions
        return {
            "command": self.command,
            "reason": self.reason or None,
            "partitions": [part.to_dict() for part in found],
        }

    def lines(self) -> Iterator[str]:
        if self.found is None:
            yield f"What a rescue would bring back is not known: {self.reason}"
        else:
            yield "A rescue of these directories would bring back"
            for part in self.found.partitions[:_LISTED_MAX]:
                yield f"  {_name(part)}: {_outcome(part)}"
            rest = self.found.partitions[_LISTED_MAX:]
            if rest:
                records, lost = sum(p.records for p in rest), sum(map(_lost, rest))
                yield f"  {len(rest):,} more partitions: {_records(records)}, {lost:,} offsets lost"
        yield f"It changes none of them, and makes a new one: {self.command}"


def outlook(
    report: VerifyReport,
    paths: Sequence[str],
    progress: Progress | None = None,
    storage: Storage | None = None,
) -> Outlook | None:
    """None where nothing is lost here, or where a rescue does not work: on URIs and single files.

    Only the partitions with errors, or with records that cannot be read, are read once more.
    """
    storage = storage or LocalStorage()
    errors = [f for f in report.findings if f.severity is Severity.ERROR or f.rule in _LOST]
    damaged = {TopicPartition(f.topic, f.partition) for f in errors if f.topic}
    damaged |= {
        TopicPartition(p.topic, p.partition) for p in report.partitions if p.unreadable and p.topic
    }
    if not damaged or not all((info := storage.info(path)) and info.is_dir for path in paths):
        return None
    sources: list[str] = []
    for path in paths:
        names = broker_directories(storage, path)
        sources += [os.path.join(path, name) for name in names] or [path]
    brokers = Counter(finding.broker for finding in errors if finding.broker.isdigit())
    several = len({part.broker for part in report.partitions}) > 1
    chosen = f" --broker {brokers.most_common(1)[0][0]}" if several and brokers else ""
    command = f"logstore rescue {shlex.join(map(printable, sources))} --to DST{chosen}"
    size = sum(p.bytes for p in report.partitions if (p.topic, p.partition) in damaged)
    if size > _READ_MAX:
        return Outlook(f"{command} --dry-run", reason=f"the partitions have {size:,} bytes")
    from logstore.rescue import rescue

    try:
        beside = os.path.dirname(os.path.abspath(sources[0]))
        target = os.path.join(beside, random_id())  # never made
        found = rescue(
            sources,
            target,
            dry_run=True,
            partitions=damaged,
            storage=storage,
            progress=progress,
        )
    except (LogstoreError, OSError) as error:
        return Outlook(command, reason=str(error))
    return Outlook(command, found) if found.partitions else None


def _outcome(part: PartitionRescue) -> str:
    if part.whole:
        return f"all of it, {_records(part.records)}"
    text = _records(part.records)
    if part.gaps:
        ranges = ", ".join(f"{gap.first}…{gap.next - 1}" for gap in part.gaps[:5])
        more = ", …" if len(part.gaps) > 5 else ""
        text += f"; {_lost(part):,} offsets are lost: {ranges}{more}"
    return text + (f"; {len(part.doubts):,} in doubt" if part.doubts else "")


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def _lost(part: PartitionRescue) -> int:
    return sum(gap.next - gap.first for gap in part.gaps)


def _name(part: PartitionRescue) -> str:
    return printable(f"{part.topic}-{part.partition}")
