"""The outcome that ``logstore rescue`` of the verified directories would have.

A rescue judges by itself: nothing of it is repeated here, it is asked in a dry run.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from checkpoints import TopicPartition
from checkpoints.printable import printable
from logstore import terminal
from logstore.common.errors import LogstoreError
from logstore.common.random_id import random_id
from logstore.storage.base import Storage
from logstore.storage.broker_directories import broker_directories
from logstore.storage.local import LocalStorage
from logstore.storage.uri import log_directory
from logstore.verify import Progress, Severity, VerifyReport

if TYPE_CHECKING:
    from logstore.rescue import PartitionRescue

_READ_MAX = 16 << 30
"""More bytes than that are not read once more for it. The command is shown anyway."""

_LISTED_MAX = 20
_LOST = "index-without-log"  # a warning, because retention may have been stopped on its way


class Outlook(NamedTuple):
    """``partitions`` is None where they were not looked at, for a ``reason``."""

    command: str
    partitions: list[PartitionRescue] | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return self._asdict() | {"partitions": [part.to_dict() for part in self.partitions or ()]}

    def lines(self) -> Iterator[str]:
        if self.partitions is None:
            yield f"What a rescue would bring back is not known: {self.reason}"
        else:
            yield "A rescue of these directories would bring back"
            yield from map(_line, self.partitions[:_LISTED_MAX])
            if len(self.partitions) > _LISTED_MAX:
                yield f"  and so on: {len(self.partitions):,} partitions in all"
        yield "It changes none of them, and makes a new one:"
        yield f"  {self.command}"

    def print(self) -> None:
        """On a terminal wrapped at words, but for the command, which can be copied."""
        *texts, command = self.lines()
        if terminal.is_terminal():
            from logstore.terminal import tables

            for text in texts:
                tables.print_paragraph(text, "none")
        else:
            terminal.lines(texts)
        terminal.line(command)


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
    errors = [f for f in report.findings if f.severity is Severity.ERROR or f.rule == _LOST]
    unread = [part for part in report.partitions if part.unreadable]
    damaged = {TopicPartition(f.topic, f.partition) for f in errors if f.topic}
    damaged |= {TopicPartition(part.topic, part.partition) for part in unread if part.topic}
    if not damaged or not all((info := storage.info(path)) and info.is_dir for path in paths):
        return None
    if stores := [path for path in paths if log_directory(path) != path]:
        command = f"logstore restore {shlex.quote(printable(stores[0]))} --lossy --to DST"
        return Outlook(command, reason="a store is restored, and what is damaged left out")
    sources: list[str] = []
    for path in paths:
        names = broker_directories(storage, path)
        sources += [os.path.join(path, name) for name in names] or [path]
    command = f"logstore rescue {shlex.join(map(printable, sources))} --to DST"
    brokers = Counter(finding.broker for finding in errors if finding.broker.isdigit())
    if brokers and len({part.broker for part in report.partitions}) > 1:
        command += f" --broker {brokers.most_common(1)[0][0]}"
    size = sum(p.bytes for p in report.partitions if (p.topic, p.partition) in damaged)
    if size > _READ_MAX:
        return Outlook(f"{command} --dry-run", reason=f"the partitions have {size:,} bytes")
    from logstore.rescue import rescue

    never_made = os.path.join(os.path.dirname(os.path.abspath(sources[0])), random_id())
    try:
        found = rescue(
            sources,
            never_made,
            dry_run=True,
            partitions=damaged,
            storage=storage,
            progress=progress,
        )
    except (LogstoreError, OSError) as error:
        return Outlook(command, reason=str(error))
    return Outlook(command, found.partitions) if found.partitions else None


def _line(part: PartitionRescue) -> str:
    text = f"  {part.topic}-{part.partition}: {'all of it, ' if part.whole else ''}"
    text += f"{part.records:,} records"
    if part.gaps:
        lost = sum(gap.next - gap.first for gap in part.gaps)
        ranges = ", ".join(f"{gap.first}…{gap.next - 1}" for gap in part.gaps[:5])
        text += f"; {lost:,} offsets are lost: {ranges}{', …' if len(part.gaps) > 5 else ''}"
    return printable(text + (f"; {len(part.doubts):,} in doubt" if part.doubts else ""))
